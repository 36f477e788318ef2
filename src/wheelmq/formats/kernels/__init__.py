"""The hot loops over bytes, compiled by Numba, each with a plain twin that defines it.

A kernel takes arrays, indexes them, checks lengths before it trusts them, and returns codes; it never raises. It may
answer "not mine" for whatever it does not know, and then the plain code does the work, on the same state. Tests hold
kernel and twin equal on random and hostile bytes.

`kernels.jit.available()` says whether kernels run; WHEELMQ_KERNELS=plain turns them off.
"""
