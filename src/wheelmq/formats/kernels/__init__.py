"""The hot loops over bytes, compiled by Numba. Each kernel has a plain twin that defines its behaviour.

A kernel takes arrays, checks lengths before it uses them, and returns codes. It never raises. For any case that it does
not know, it may return "not mine": the plain code then does the work, on the same state. Tests compare both on random
and hostile bytes. WHEELMQ_KERNELS=plain disables kernels.
"""
