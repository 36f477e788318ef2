"""What every header is, and how it is read and written.

Unknown fields are ignored. A field without a default must be there; numbers and booleans travel as strings.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from wheelmq.formats.java import java_boolean

H = TypeVar("H", bound="Header")

Int32 = Annotated[int, Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
Int64 = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
"""Numbers as Java's headers have them: what does not fit is refused before anything is done."""


class HeaderError(ValueError):
    """A request's header lacks a field or holds what does not fit; the message names it."""


class Header(msgspec.Struct, rename="camel", kw_only=True):
    """Base of the request headers."""


def read(ext: dict[str, str], header: type[H]) -> H:
    """The header in a request's extFields. Raises HeaderError.

    What is no number is refused; of a truth value all but `true` is false, as in Java: the C++ client writes 1.
    """
    truth_values = _truth_values(header)
    if truth_values and (odd := [name for name in truth_values if ext.get(name, "false") not in ("true", "false")]):
        ext = {**ext, **{name: str(java_boolean(ext[name])).lower() for name in odd}}
    try:
        return msgspec.convert(ext, header, strict=False)
    except msgspec.ValidationError as error:
        raise HeaderError(f"{header.__name__}: {error}") from None


@lru_cache(None)
def _truth_values(header: type[Header]) -> tuple[str, ...]:
    """The fields of a header that hold one, by their names on the wire."""
    return tuple(one.encode_name for one in msgspec.structs.fields(header) if one.type in (bool, bool | None))


def write(header: Header) -> dict[str, str]:
    """The extFields that say `header`; a field that is None is left out."""
    return texts(**msgspec.to_builtins(header))


def texts(**fields: Any) -> dict[str, str]:
    """Answer header fields as strings, the only form every client reads; None is left out."""
    return {
        name: ("true" if value else "false") if isinstance(value, bool) else str(value)
        for name, value in fields.items()
        if value is not None
    }
