"""Rows that have only a body, encoded by NumPy and Arrow: most rows of a sink are such rows.

A row of any other kind, and a row that cannot be sent, is handled alone (rows.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_rocketmq.rows import KEY_CHARS, RowForm, UniqueKeys
from wheelmq.formats import names
from wheelmq.formats.disk import properties as props

Array = np.ndarray[Any, np.dtype[Any]]

_BEFORE_KEY: Final = f"{props.UNIQ_KEY}{props.NAME_END}".encode()
_AFTER_KEY: Final = props.PAIR_END.encode()
PROPERTIES_BYTES: Final = len(_BEFORE_KEY) + KEY_CHARS + len(_AFTER_KEY)
_ADDED_BYTES_MAX: Final = 64 + PROPERTIES_BYTES
"""More than the bytes that any encoding adds to a body."""
_BYTES_MAX: Final = 1 << 30
"""Arrow describes the parts of a buffer by 32-bit numbers."""


class PlainRows:
    """The bodies of the rows of a batch, and their unique keys."""

    def __init__(self, topic: str, bodies: pa.Array, sizes: Array, keys: UniqueKeys) -> None:
        self.topic = topic
        self.bodies = bodies
        self.sizes = sizes
        """The bytes of each body."""
        self._keys = keys.take(len(bodies))

    def __len__(self) -> int:
        return len(self.bodies)

    def key(self, i: int) -> str:
        """Return the unique key of a row."""
        return bytes(self._keys[i]).decode()

    def properties(self) -> Array:
        """Return the encoded properties of each row, `PROPERTIES_BYTES` long."""
        found = np.empty((len(self), PROPERTIES_BYTES), np.uint8)
        at = len(_BEFORE_KEY)
        found[:, :at] = np.frombuffer(_BEFORE_KEY, np.uint8)
        found[:, at : at + KEY_CHARS] = self._keys
        found[:, at + KEY_CHARS :] = np.frombuffer(_AFTER_KEY, np.uint8)
        return found


def plain_rows(form: RowForm, batch: pa.RecordBatch, keys: UniqueKeys, *, body_bytes_min: int = 0) -> PlainRows | None:
    """Return the rows of a batch if they have only a body, and all can be sent; else None."""
    if form.columns != ("body",) or form.topic is None or names.topic_problem(form.topic) is not None:
        return None
    bodies = batch.column(0)
    if not batch.num_rows or bodies.null_count:
        return None
    if not pa.types.is_binary(bodies.type):
        bodies = bodies.cast(pa.binary())
    sizes = pc.binary_length(bodies).to_numpy().astype(np.int64)
    if sizes.min() < body_bytes_min or sizes.max() > form.body_bytes_max:
        return None
    if sizes.sum() + len(bodies) * _ADDED_BYTES_MAX > _BYTES_MAX:
        return None
    return PlainRows(form.topic, bodies, sizes, keys)


class Entries:
    """Encoded rows, one after the other: a head, the body and a tail each."""

    def __init__(self, heads: Array, bodies: pa.Array, tails: Array) -> None:
        """`heads` and `tails` have the bytes of a row in each row."""
        whole = pc.binary_join_element_wise(_fixed(heads), bodies, _fixed(tails), b"")
        self._offsets = np.frombuffer(whole.buffers()[1], np.int32, len(whole) + 1, 4 * whole.offset)
        self._bytes = memoryview(whole.buffers()[2])

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def raw(self, first: int, end: int) -> bytes:
        """Return the bytes of the rows from `first` to before `end`."""
        return bytes(self._bytes[self._offsets[first] : self._offsets[end]])

    def chunks(self, rows_max: int, bytes_max: int) -> Iterator[tuple[int, int]]:
        """Yield the first row and the end of each chunk. A larger row is a chunk of its own."""
        first = 0
        while first < len(self):
            full = int(np.searchsorted(self._offsets, int(self._offsets[first]) + bytes_max, "right")) - 1
            end = min(max(full, first + 1), first + rows_max, len(self))
            yield first, end
            first = end


def _fixed(rows: Array) -> pa.Array:
    """Return the rows of a matrix of bytes as a binary array."""
    count, size = rows.shape
    bounds = size * np.arange(count + 1, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(bounds), pa.py_buffer(rows)])
