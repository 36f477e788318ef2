"""One declaration for each fixed-size format.

A `Layout` lists the fields of a big-endian format once. It gives a `struct.Struct` for one value, a NumPy dtype for
many values, and a table for the documents.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from wheelmq.formats.buffer import Buffer

_STRUCT_CODES = {"int64": "q", "int32": "i", "int16": "h", "uint32": "I", "bytes4": "4s"}
_DTYPES = {"int64": ">i8", "int32": ">i4", "int16": ">i2", "uint32": ">u4", "bytes4": "S4"}


@dataclass(frozen=True, slots=True)
class Field:
    """One field: its name, its type (a key of the tables above) and its meaning."""

    name: str
    type: str
    meaning: str


class Layout:
    """A fixed-size big-endian format: its name, its fields in order, and the views derived from them."""

    def __init__(self, name: str, *fields: Field) -> None:
        self.name = name
        self.fields = fields
        self.struct = struct.Struct(">" + "".join(_STRUCT_CODES[field.type] for field in fields))
        self.dtype = np.dtype([(field.name, _DTYPES[field.type]) for field in fields])
        self.size = self.struct.size
        assert self.dtype.itemsize == self.size, name

    def pack(self, *values: Any) -> bytes:
        return self.struct.pack(*values)

    def unpack(self, buffer: Buffer, at: int = 0) -> dict[str, Any]:
        values = self.struct.unpack_from(buffer, at)
        return {field.name: value for field, value in zip(self.fields, values, strict=True)}

    def position_of(self, name: str) -> int:
        return int(self.dtype.fields[name][1])  # type: ignore[index]

    def table(self) -> str:
        """Return the format as a Markdown table: byte, size, field, meaning."""
        lines = ["| byte | size | field | meaning |", "|---|---|---|---|"]
        for field in self.fields:
            size = np.dtype(_DTYPES[field.type]).itemsize
            lines.append(f"| {self.position_of(field.name)} | {size} | {field.name} | {field.meaning} |")
        return "\n".join(lines)
