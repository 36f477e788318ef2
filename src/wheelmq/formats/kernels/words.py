"""Integers of several bytes in byte arrays, each as one instruction of the machine.

A loop over single bytes would compile to the same result, but Numba needs four times as long for it: it pastes the loop
into each caller, and determines the types of each copy.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

_IS_LITTLE: Final = sys.byteorder == "little"


def load_of(count: int) -> Callable[[F], F]:
    """Replace the decorated function, in kernels, by a load of `count` bytes, big-endian, as an int64.

    The function is the twin of the load. It runs if Numba compiles nothing (NUMBA_DISABLE_JIT=1).
    """
    return _replaced_by(_load, count)


def store_of(count: int) -> Callable[[F], F]:
    """Replace the decorated function, in kernels, by a store of the low `count` bytes of an integer, big-endian."""
    return _replaced_by(_store, count)


def _replaced_by(make: Callable[[int, str], Any], count: int) -> Callable[[F], F]:
    from numba import config

    def replace(twin: F) -> F:
        if config.DISABLE_JIT:
            return twin
        word: F = make(count, twin.__name__)
        return word

    return replace


def _load(count: int, name: str) -> Any:
    from numba import types
    from numba.extending import intrinsic

    def load(context: Any, array: Any, at: Any) -> Any:
        """Return signature and code of the load."""
        if not (_is_bytes(array) and isinstance(at, types.Integer)):
            return None

        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            value = builder.load(_pointer(context, builder, signature, arguments, count), align=1)
            value = builder.bswap(value) if _IS_LITTLE else value
            return builder.zext(value, context.get_value_type(types.int64)) if count < 8 else value

        return types.int64(array, at), code

    load.__name__ = name
    return intrinsic(load)


def _store(count: int, name: str) -> Any:
    from numba import types
    from numba.extending import intrinsic

    def store(context: Any, array: Any, at: Any, value: Any) -> Any:
        """Return signature and code of the store."""
        if not (_is_bytes(array) and array.mutable and isinstance(at, types.Integer)):
            return None
        if not isinstance(value, types.Integer):
            return None

        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            number = context.cast(builder, arguments[2], signature.args[2], types.int64)
            number = builder.trunc(number, _word(context, count)) if count < 8 else number
            number = builder.bswap(number) if _IS_LITTLE else number
            builder.store(number, _pointer(context, builder, signature, arguments, count), align=1)
            return context.get_dummy_value()

        return types.none(array, at, value), code

    store.__name__ = name
    return intrinsic(store)


def _is_bytes(array: Any) -> bool:
    """Return whether `array` is the type of a contiguous array of bytes."""
    from numba import types

    return isinstance(array, types.Array) and (array.dtype, array.ndim, array.layout) == (types.uint8, 1, "C")


def _pointer(context: Any, builder: Any, signature: Any, arguments: Any, count: int) -> Any:
    """Return the pointer to `count` bytes as one integer. Checks both ends with NUMBA_BOUNDSCHECK=1."""
    from numba import types
    from numba.core import cgutils

    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    at = context.cast(builder, arguments[1], signature.args[1], types.intp)
    if context.enable_boundscheck:
        (length,) = cgutils.unpack_tuple(builder, array.shape, count=1)
        for index in (at, builder.add(at, at.type(count - 1))):
            cgutils.do_boundscheck(context, builder, index, length)
    return builder.bitcast(builder.gep(array.data, [at]), _word(context, count).as_pointer())


def _word(context: Any, count: int) -> Any:
    """Return the machine's type of an integer of `count` bytes."""
    from numba import types

    return context.get_value_type(types.Integer.from_bitwidth(8 * count))
