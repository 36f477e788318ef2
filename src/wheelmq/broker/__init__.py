"""The broker: requests in, one append a tick, answers out. Pure of sockets and clocks."""
