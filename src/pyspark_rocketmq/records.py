"""Commit log records as Arrow columns, by NumPy and Arrow alone (layout: wheelmq.formats.disk.message).

Python handles one number per record, its position: only the sizes in the records connect them. All else are arrays.
A variable part is copied once, by Arrow: `slices` describes parts and gaps of the buffer as a binary array, and takes
the parts out of it.
"""

from __future__ import annotations

import mmap
import struct
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_rocketmq.properties import PropertyColumns
from wheelmq.client.compression import CompressionError, expand
from wheelmq.client.delays import YEAR_9999_MS
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import (
    FIXED_BYTES_V4,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    SYS_BORN_HOST_V6,
    SYS_COMPRESSED,
    SYS_STORE_HOST_V6,
    RecordError,
)
from wheelmq.formats.java import java_long

Array = np.ndarray[Any, np.dtype[Any]]

_SIZE: Final = struct.Struct(">I")
_HEAD: Final = [
    ("size", ">u4"), ("magic", ">u4"), ("body_crc", ">u4"), ("queue_id", ">i4"), ("flag", ">i4"),
    ("queue_offset", ">i8"), ("position", ">i8"), ("sys_flag", ">i4"), ("born_ms", ">i8"),
]  # fmt: skip
_TAIL: Final = [("reconsume", ">i4"), ("prepared", ">i8"), ("body_bytes", ">i4")]


def _fixed(born_host: str, store_host: str) -> np.dtype[Any]:
    """Return the fixed part of a record with these addresses of hosts, each of which has a port after it."""
    return np.dtype([*_HEAD, ("born", born_host), ("store_ms", ">i8"), ("store_host", store_host), *_TAIL])


_V4, _V6 = "V8", "V20"
_FIXED_V4: Final = _fixed(_V4, _V4)
_FIXED_V6: Final = {
    SYS_BORN_HOST_V6: _fixed(_V6, _V4),
    SYS_STORE_HOST_V6: _fixed(_V4, _V6),
    SYS_BORN_HOST_V6 | SYS_STORE_HOST_V6: _fixed(_V6, _V6),
}
"""The fixed parts with an IPv6 address, by the flags in sys_flag."""


def _host_at(layout: np.dtype[Any]) -> int:
    """Return the place of the store host in a fixed part."""
    assert layout.fields is not None
    return layout.fields["store_host"][1]


_V6_FLAGS: Final = SYS_BORN_HOST_V6 | SYS_STORE_HOST_V6
_AFTER_HOSTS: Final = {"store_ms": np.int64, "reconsume": np.int32, "body_bytes": np.int64}
"""The columns that are after an address in a record, with their types."""
_COMPRESSION_KIND: Final = 0x700
_LZ4: Final = 0x100
_ZSTANDARD: Final = 0x200
_INNER_BATCH: Final = 0x80
"""Flag of a record with several messages, in queues of type BatchCQ (RocketMQ: INNER_BATCH_FLAG)."""
_DUE_PROPERTIES: Final = (props.WMQ_DUE, props.TIMER_DELIVER_MS)
_EXPANDED_BYTES_MAX: Final = 64 << 20
YEAR_1_MS: Final = -62_135_596_800_000


class Records:
    """The records of a buffer. Raises RecordError if the bytes are no records."""

    def __init__(self, buffer: bytes | mmap.mmap, starts: Array | None = None) -> None:
        """`starts` has the positions of the records in ascending order; None: the records fill the buffer."""
        self._buffer = pa.py_buffer(buffer)
        self._bytes = np.frombuffer(buffer, np.uint8)
        self._starts = record_starts(bytes(buffer)) if starts is None else starts
        self._read_heads()

    def __len__(self) -> int:
        return len(self._starts)

    def _read_heads(self) -> None:
        starts = self._starts
        head = self._head = self._fields(_FIXED_V4, starts)
        if not ((head["magic"] == MAGIC_V1) | (head["magic"] == MAGIC_V2)).all():
            raise RecordError("the bytes have no magic of a record")
        self.sys_flags = head["sys_flag"].astype(np.int32)
        if (self.sys_flags & _INNER_BATCH).any():
            raise RecordError(
                "the queue has several messages in one record (queue type BatchCQ), which is not supported"
            )
        self.sizes = head["size"].astype(np.int64)
        ends = starts + self.sizes
        self._read_after_hosts()
        self._body_end = self._body_start + self._body_bytes
        self._check(ends <= len(self._bytes), self._body_bytes >= 0, self._body_end + 3 <= ends)
        is_long = head["magic"] == MAGIC_V2
        topic_bytes = self._numbers(self._body_end, is_long)
        self._topic_start = self._body_end + 1 + is_long
        topic_end = self._topic_end = self._topic_start + topic_bytes
        self._check(topic_end + 2 <= ends)
        self._properties_start = topic_end + 2
        self._properties_end = self._properties_start + self._numbers(topic_end, np.True_)
        self._check(self._properties_end == ends)

    def _read_after_hosts(self) -> None:
        """Read the fields whose place follows from the lengths of the two addresses."""
        columns = {name: self._head[name].astype(kind) for name, kind in _AFTER_HOSTS.items()}
        self._host_start = self._starts + _host_at(_FIXED_V4)
        self._body_start = self._starts + _FIXED_V4.itemsize
        kinds = self.sys_flags & _V6_FLAGS
        for kind in np.unique(kinds[kinds != 0]).tolist():
            layout, rows = _FIXED_V6[kind], np.flatnonzero(kinds == kind)
            found = self._fields(layout, self._starts[rows])
            for name, column in columns.items():
                column[rows] = found[name]
            self._host_start[rows] = self._starts[rows] + _host_at(layout)
            self._body_start[rows] = self._starts[rows] + layout.itemsize
        self.store_ms, self.reconsume_times, self._body_bytes = columns.values()

    @property
    def queue_offsets(self) -> Array:
        return self._head["queue_offset"].astype(np.int64)

    @property
    def queue_ids(self) -> Array:
        return self._head["queue_id"].astype(np.int32)

    @property
    def positions(self) -> Array:
        return self._head["position"].astype(np.int64)

    @property
    def born_ms(self) -> Array:
        return self._head["born_ms"].astype(np.int64)

    def _check(self, *conditions: Array) -> None:
        for condition in conditions:
            if not condition.all():
                at = int(self._starts[np.flatnonzero(~condition)[0]])
                raise RecordError(f"the lengths in the record at byte {at} do not fit its size")

    def _fields(self, kind: np.dtype[Any], at: Array) -> Array:
        """Return the fields of `kind` at bytes `at`. Raises RecordError beyond the buffer."""
        if not len(at):
            return np.zeros(0, kind)
        if int(at.max()) + kind.itemsize > len(self._bytes):
            raise RecordError("the bytes end inside the fixed part of a record")
        windows = np.lib.stride_tricks.sliding_window_view(self._bytes, kind.itemsize)
        return np.ascontiguousarray(windows[at]).view(kind)[:, 0]

    def _numbers(self, at: Array, is_two_bytes: Array | np.bool_) -> Array:
        """Return the lengths at bytes `at`, of one or two bytes."""
        first = self._bytes[at].astype(np.int64)
        return np.where(is_two_bytes, first << 8 | self._bytes[at + 1], first)

    # Columns -------------------------------------------------------------------------------------------------------

    def bodies(self) -> pa.Array:
        """Return the bodies, expanded. Raises RecordError for one that does not expand."""
        found = slices(self._buffer, self._body_start, self._body_end)
        packed = np.flatnonzero(self.sys_flags & SYS_COMPRESSED)
        if not len(packed):
            return found
        expanded = pa.array([_expanded(found[int(i)].as_py(), int(self.sys_flags[i])) for i in packed], pa.binary())
        places = np.arange(len(found))
        places[packed] = len(found) + np.arange(len(packed))
        return pa.concat_arrays([found, expanded]).take(pa.array(places))

    def are_of(self, topic: str) -> bool:
        """Return whether all records have this topic."""
        name = topic.encode()
        if not (self._topic_end - self._topic_start == len(name)).all():
            return False
        found = self._fields(np.dtype((np.void, len(name))), self._topic_start)
        return bool((found == np.void(name)).all())

    def properties(self) -> PropertyColumns:
        return PropertyColumns(slices(self._buffer, self._properties_start, self._properties_end))

    def message_ids(self, properties: PropertyColumns) -> pa.Array:
        """Return the unique keys of the messages, and the offset message ids of those without one."""
        keys = properties.values_of(props.UNIQ_KEY)
        if not keys.null_count:
            return keys
        host_bytes = np.where(self.sys_flags & SYS_STORE_HOST_V6, np.dtype(_V6).itemsize, np.dtype(_V4).itemsize)
        hosts = slices(self._buffer, self._host_start, self._host_start + host_bytes)
        ids = [
            None if key is not None else f"{host.hex()}{position & (1 << 64) - 1:016x}".upper()
            for key, host, position in zip(keys.to_pylist(), hosts.to_pylist(), self.positions.tolist(), strict=True)
        ]
        return pc.coalesce(keys, pa.array(ids, pa.string()))

    def due_times_ms(self, properties: PropertyColumns) -> pa.Array:
        """Return the due times in milliseconds since 1970; null for a message without one.

        A time that Spark's timestamps cannot have is null, too.
        """
        found = pa.nulls(len(self), pa.int64())
        for name in _DUE_PROPERTIES:
            if properties.has(name):
                found = pc.coalesce(found, _within(_longs(properties.values_of(name)), YEAR_1_MS, YEAR_9999_MS))
        born_ms = pa.array(self.born_ms)
        for name, unit_ms in ((props.TIMER_DELAY_SEC, 1000), (props.TIMER_DELAY_MS, 1)):
            if properties.has(name):
                most = YEAR_9999_MS // unit_ms
                delay = _within(_longs(properties.values_of(name)), -most, most)
                found = pc.coalesce(found, pc.add(born_ms, pc.multiply(delay, unit_ms)))
        return _within(found, YEAR_1_MS, YEAR_9999_MS)


def record_starts(buffer: bytes) -> Array:
    """Return the positions of the records in `buffer`. Raises RecordError if their sizes do not fill it."""
    starts = []
    at, end, unpack = 0, len(buffer), _SIZE.unpack_from
    while at + FIXED_BYTES_V4 <= end:
        (size,) = unpack(buffer, at)
        if size < RECORD_BYTES_MIN:
            raise RecordError(f"size {size} at byte {at} is not the size of a record")
        starts.append(at)
        at += size
    if at != end:
        raise RecordError(f"the records end at byte {at} of {end}")
    return np.array(starts, np.int64)


def slices(buffer: pa.Buffer, starts: Array, ends: Array) -> pa.Array:
    """Return the bytes from `starts` to `ends` as a binary array. The slices are in order and do not overlap."""
    bounds = np.empty(2 * len(starts), np.int32)
    bounds[0::2], bounds[1::2] = starts, ends
    count = max(0, len(bounds) - 1)
    whole = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(bounds), buffer])
    return whole.take(pa.array(np.arange(0, count, 2)))


def _longs(texts: pa.Array) -> pa.Array:
    """Return the numbers in `texts`; null for a text that Java does not parse."""
    try:
        return pc.cast(texts, pa.int64())
    except pa.ArrowInvalid:
        numbers = [None if text is None else java_long(text) for text in texts.to_pylist()]
        return pa.array(numbers, pa.int64())


def _within(values: pa.Array, least: int, most: int) -> pa.Array:
    """Return the values from `least` to before `most`; null for the others."""
    is_within = pc.and_(pc.greater_equal(values, least), pc.less(values, most))
    return pc.if_else(is_within, values, pa.scalar(None, pa.int64()))


def _expanded(body: bytes, sys_flag: int) -> bytes:
    kind = sys_flag & _COMPRESSION_KIND
    try:
        if kind not in (_LZ4, _ZSTANDARD):
            return expand(body, sys_flag)
        with pa.CompressedInputStream(pa.py_buffer(body), "lz4" if kind == _LZ4 else "zstd") as stream:
            found = stream.read(_EXPANDED_BYTES_MAX + 1)
    except (CompressionError, OSError, pa.ArrowException) as error:
        raise RecordError(f"a body does not expand: {error}") from None
    if len(found) > _EXPANDED_BYTES_MAX:
        raise RecordError(f"a body expands to more than {_EXPANDED_BYTES_MAX} bytes")
    return bytes(found)
