"""The hot loops over bytes, compiled by Numba. Each kernel has a plain twin that defines its behaviour.

A kernel takes arrays, checks lengths before it uses them, and returns codes. It never raises. It may return "not
mine" for any case that it does not know. Then the plain code does the work, on the same state. Tests compare kernel
and twin on random and hostile bytes.

`kernels.jit.available()` is true if kernels run. WHEELMQ_KERNELS=plain disables them.
"""
