"""The kernels that serve sends. `broker.fast_send` calls them, and the plain path of a send is their twin."""
