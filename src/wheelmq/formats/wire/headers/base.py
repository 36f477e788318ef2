"""The base of all headers, and the functions that read and write them.

Readers ignore unknown fields. A field without a default is required. Numbers and booleans are sent as strings.
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
"""Numbers with the ranges of Java's headers. A number out of range is rejected before the request has any effect."""


class HeaderError(ValueError):
    """A request's header lacks a field or holds a value that is not valid. The message names it."""


class Header(msgspec.Struct, rename="camel", kw_only=True):
    """Base of the request headers."""


def read(ext: dict[str, str], header: type[H]) -> H:
    """Return the header in a request's extFields. Raises HeaderError, as for a text that is no number.

    Any boolean text but `true` is false, as in Java: the C++ client writes 1.
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
    return tuple(one.encode_name for one in msgspec.structs.fields(header) if one.type in (bool, bool | None))


def write(header: Header) -> dict[str, str]:
    return texts(**msgspec.to_builtins(header))


def texts(**fields: Any) -> dict[str, str]:
    """Return answer header fields as strings, the only form that every client reads. Leaves out None."""
    return {
        name: ("true" if value else "false") if isinstance(value, bool) else str(value)
        for name, value in fields.items()
        if value is not None
    }
