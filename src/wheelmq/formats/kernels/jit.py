"""Decorators of kernels, and the switch between the kernels and their twins.

All code asks `available` before each call of a kernel, so the switch can turn while a process runs. It turns once, from
the twins to the kernels, and only in a process that had to begin without compiled code (`broker.kernels`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from wheelmq.formats.kernels.cache import use_cache

F = TypeVar("F", bound=Callable[..., Any])

PLAIN: Final = "plain"
COMPILED: Final = "compiled"
BACKGROUND: Final = "background"

MODE: Final = os.environ.get("WHEELMQ_KERNELS") or BACKGROUND
"""`plain` to run the twins, `compiled` to compile before a broker listens, or `background` to compile meanwhile."""

_is_held_back = False


def available() -> bool:
    """Return whether to call a kernel now. If not, its twin does the work."""
    return MODE != PLAIN and not _is_held_back


def hold_back() -> None:
    """Run the twins until `put_to_use`, because the kernels are not loaded yet."""
    global _is_held_back
    _is_held_back = True


def put_to_use() -> None:
    """Run the kernels from now on. They must be loaded: the first call of one would load or compile it."""
    global _is_held_back
    _is_held_back = False


def kernel(function: F) -> F:
    from numba import njit

    compiled: F = njit(cache=True, nogil=False, boundscheck=None, error_model="numpy")(function)
    return compiled


def free_kernel(function: F) -> F:
    """Compile a kernel that runs off the loop without the interpreter's lock, on bytes that no other thread writes."""
    from numba import njit

    compiled: F = njit(cache=True, nogil=True, boundscheck=None, error_model="numpy")(function)
    return compiled


def inline(function: F) -> F:
    from numba import njit

    compiled: F = njit(inline="always", boundscheck=None, error_model="numpy")(function)
    return compiled


def part(function: F) -> F:
    """Compile a function that kernels call. It creates no arrays and counts no references to its arguments.

    Its caller holds the arguments. Counting would cost two atomic operations per array and call.
    """
    from numba import njit

    compiled: F = njit(cache=True, boundscheck=None, error_model="numpy", _nrt=False)(function)
    return compiled


def external(name: str, result: str, arguments: Sequence[str]) -> Any:
    """Return a function of the C library that kernels can call. The types are names of Numba's types.

    `ExternalFunction` is internal to Numba, but a kernel that calls one can be kept in the cache.
    """
    from numba import types

    return types.ExternalFunction(name, getattr(types, result)(*(getattr(types, one) for one in arguments)))


if MODE != PLAIN:
    use_cache()
