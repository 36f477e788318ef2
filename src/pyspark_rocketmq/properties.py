r"""Properties of many messages as Arrow columns: `name \x01 value \x02`, repeated (wheelmq.formats.disk.properties).

The rules are those of Apache's reader: a pair without a name or a value is dropped, and the last value of a name wins.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

Array = np.ndarray[Any, np.dtype[Any]]

_NAME_END: Final = 1
_PAIR_END: Final = 2
_COUNTED_PER_KEY: Final = 16
"""Counters for each key up to which counting is faster than sorting."""


class PropertyColumns:
    """The properties of `blocks`, a binary array with one encoded block for each message."""

    def __init__(self, blocks: pa.Array) -> None:
        self._count = len(blocks)
        data, bounds = _contents(blocks)
        starts, middles, ends = _pairs(data, bounds)
        rows = np.searchsorted(bounds, starts, "right") - 1
        flat = np.empty(4 * len(starts), np.int32)
        flat[0::4], flat[1::4], flat[2::4], flat[3::4] = starts, middles, middles + 1, ends
        count = max(0, len(flat) - 1)
        parts = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(flat), pa.py_buffer(data)])
        names = text_column(parts.take(pa.array(np.arange(0, count, 4)))).dictionary_encode()
        values = text_column(parts.take(pa.array(np.arange(2, count, 4))))
        codes = names.indices.to_numpy().astype(np.int64)
        self._names: list[str] = names.dictionary.to_pylist()
        last = _last_of_each(rows * max(1, len(self._names)) + codes)
        if last is not None:
            rows, codes, values = rows[last], codes[last], values.take(pa.array(last))
        self._rows, self._codes, self._values = rows, codes, values

    def has(self, name: str) -> bool:
        return name in self._names

    def values_of(self, name: str) -> pa.Array:
        """Return the value of the property `name` of each message, or null."""
        if name not in self._names:
            return pa.nulls(self._count, pa.string())
        found = np.flatnonzero(self._codes == self._names.index(name))
        if len(found) == self._count:
            return self._values.take(pa.array(found))
        places, is_missing = np.zeros(self._count, np.int64), np.ones(self._count, np.bool_)
        places[self._rows[found]], is_missing[self._rows[found]] = found, False
        return self._values.take(pa.array(places, mask=is_missing))

    def maps(self) -> pa.Array:
        """Return all properties as a map of each message."""
        bounds = np.searchsorted(self._rows, np.arange(self._count + 1)).astype(np.int32)
        names = pa.array(self._names, pa.string()).take(pa.array(self._codes))
        return pa.MapArray.from_arrays(pa.array(bounds), names, self._values)


def text_column(raw: pa.Array) -> pa.Array:
    """Return binary values as texts. Bytes that are no UTF-8 are replaced."""
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [None if one is None else one.decode("utf-8", "replace") for one in raw.to_pylist()]
        return pa.array(texts, pa.string())


def _contents(blocks: pa.Array) -> tuple[Array, Array]:
    """Return the bytes of all blocks, and the bounds of the blocks in them."""
    assert blocks.offset == 0
    _, offsets, data = blocks.buffers()
    bounds = np.frombuffer(offsets, np.int32)[: len(blocks) + 1] if len(blocks) else np.zeros(1, np.int32)
    contents = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    return contents[: bounds[-1]], bounds


def _pairs(data: Array, bounds: Array) -> tuple[Array, Array, Array]:
    """Return start, end of the name and end of the value of each pair with a name and a value, in order."""
    pair_ends = np.flatnonzero(data == _PAIR_END)
    block_ends = bounds[1:]
    skipped = np.zeros(len(data) + 1, np.bool_)
    skipped[pair_ends] = True
    is_end = skipped.copy()
    is_end[block_ends] = True
    ends = np.flatnonzero(is_end)
    # A pair begins after the end of the one before it. The end of a block is no separator, so nothing is skipped there.
    starts = np.empty_like(ends)
    if len(ends):
        starts[0] = 0
        starts[1:] = ends[:-1] + skipped[ends[:-1]]
    middles_all = np.flatnonzero(data == _NAME_END)
    at = np.searchsorted(middles_all, starts)
    middles = np.append(middles_all, len(data) + 1)[at]
    is_pair = (middles > starts) & (middles + 1 < ends)
    return starts[is_pair], middles[is_pair], ends[is_pair]


def _last_of_each(keys: Array) -> Array | None:
    """Return the indexes of the last occurrence of each key, in order; None if no key occurs twice."""
    if not len(keys):
        return None
    if int(keys.max()) < _COUNTED_PER_KEY * len(keys):
        is_unique = int(np.bincount(keys).max()) == 1
    else:
        is_unique = bool((np.diff(np.sort(keys)) > 0).all())
    if is_unique:
        return None
    _, back = np.unique(keys[::-1], return_index=True)
    return np.sort(len(keys) - 1 - back)
