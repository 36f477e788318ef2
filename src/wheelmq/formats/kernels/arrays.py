"""Arrays as kernels take them."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy.typing as npt

Array = TypeVar("Array", bound=npt.NDArray[Any])


def read_only(array: Array) -> Array:
    """Return a view of `array` that no code may write, for a kernel that only reads it.

    Numba compiles a kernel for each type of its arguments, and an array for reading has a type of its own. A kernel
    that always gets this type is compiled once, for arrays of the broker as for files mapped for reading.
    """
    view = array.view()
    view.setflags(write=False)  # cheaper than `view.flags`
    return view
