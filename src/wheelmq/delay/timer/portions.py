"""Portions of a store for tasks that cannot map it. The broker reads them off its loop.

The reader has its own view of the store, so it never touches data that the loop changes. It returns only bytes that are
on disk (invariant I4): records below `OnDisk.log`, queue units that name such records, timer log units below
`OnDisk.timer_log`, and the units of the plan's blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from wheelmq.delay.timer.view import Files, Positions, StoreSizes, StoreUnreadable, StoreView, chain, units_at
from wheelmq.formats.disk.block import BLOCK_UNIT
from wheelmq.formats.disk.message import FIXED_BYTES_V4, MAGIC_V1, MAGIC_V2, SYS_BORN_HOST_V6, SYS_STORE_HOST_V6
from wheelmq.formats.disk.queue_unit import QUEUE_UNIT
from wheelmq.formats.wire.portions import (
    CHAIN_HEAD,
    CHAINED,
    HOLE,
    PORTION_BYTES_MAX,
    FileKind,
    PortionError,
    Ranges,
)
from wheelmq.store.spans import joined
from wheelmq.system.mapped_file import MappedFile

NEAR_BYTES: Final = 128 << 10
"""Maximum gap between records that are read from disk together, with the bytes between them."""
POSITION_MAX: Final = 1 << 62
_SIZE_AT, _MAGIC_AT, _SYS_FLAG_AT, _BODY_SIZE_AT = 0, 4, 36, 84
"""Byte positions of these fields in a record (formats.disk.message)."""


class OnDisk(NamedTuple):
    """The ends of the parts of log, timer log and blocks that are on disk."""

    log: int
    timer_log: int
    blocks: Mapping[str, int] = MappingProxyType({})
    """For each folder of a block, the number of its units whose messages are on disk."""


class Portion(NamedTuple):
    """An answer: its bytes, and the number of ranges that it covers, from the front."""

    body: bytes
    covered: int


class PortionReader:
    """Reads portions for the tasks of successive turns. One thread at a time."""

    def __init__(self, root: Path, sizes: StoreSizes) -> None:
        self._root = root
        self._sizes = sizes
        self._turn = (-1, -1)
        self._view: StoreView | None = None
        self.bytes_read = 0

    def read(self, turn: tuple[int, int], kind: FileKind, name: str, ranges: Ranges, on_disk: OnDisk) -> Portion:
        """Read as `read_portion` does, from this turn's files. `turn` is epoch and turn: turns may be planned again."""
        if self._view is None or turn != self._turn:
            self._turn, self._view = turn, StoreView(self._root, self._sizes)
        try:
            portion = read_portion(self._view, kind, name, ranges, on_disk)
        except FileNotFoundError:
            self._view.refresh()
            raise
        self.bytes_read += len(portion.body)
        return portion


def read_portion(view: StoreView, kind: FileKind, name: str, ranges: Ranges, on_disk: OnDisk) -> Portion:
    """Read as many of `ranges` as fit into one answer, at least the first one.

    Raises PortionError for a range out of reach, FileNotFoundError for expired data, StoreUnreadable.
    """
    if not len(ranges):
        return Portion(b"", 0)
    if ranges["position"].max() > POSITION_MAX:
        raise PortionError(f"position {ranges['position'].max()} is out of range: the greatest is {POSITION_MAX}")
    match kind:
        case FileKind.QUEUE:
            return _queue_units(view.queue(name), ranges, on_disk)
        case FileKind.BLOCK:
            return _block_units(view, name, ranges, on_disk)
        case FileKind.WHEEL:
            return _slots(view, ranges)
        case FileKind.RECORD:
            return _records(view, ranges, on_disk)
        case FileKind.CHAIN:
            return _chains(view.timer_log, ranges, on_disk)


def _queue_units(files: Files, ranges: Ranges, on_disk: OnDisk) -> Portion:
    count = _that_fit(ranges["size"])
    parts = []
    for position, size in ranges[:count].tolist():
        _must_be_in_one_file(files, position, size)
        if position % QUEUE_UNIT.size or size % QUEUE_UNIT.size or not size:
            raise PortionError(f"{size} bytes at queue position {position} are not whole units")
        units = files.read(position, size)
        last = QUEUE_UNIT.unpack(units, size - QUEUE_UNIT.size)
        if last["position"] + last["size"] > on_disk.log:
            raise PortionError(f"the unit at queue position {position + size - QUEUE_UNIT.size} is not on disk")
        parts.append(units)
    return Portion(b"".join(parts), count)


def _block_units(view: StoreView, name: str, ranges: Ranges, on_disk: OnDisk) -> Portion:
    stop = on_disk.blocks.get(name, 0) * BLOCK_UNIT.size
    if not stop:
        raise PortionError(f"block {name!r} is not in the plan")
    files = view.block_queue(name)
    count = _that_fit(ranges["size"])
    parts = []
    for position, size in ranges[:count].tolist():
        _must_be_in_one_file(files, position, size)
        if position + size > stop:
            raise PortionError(f"{size} bytes at {position} of block {name} are not on disk")
        parts.append(files.read(position, size))
    return Portion(b"".join(parts), count)


def _slots(view: StoreView, ranges: Ranges) -> Portion:
    count = _that_fit(ranges["size"])
    parts = []
    for position, size in ranges[:count].tolist():
        if position + size > view.wheel.size:
            raise PortionError(f"{size} bytes at {position} are not in a wheel of {view.wheel.size} bytes")
        parts.append(view.wheel.view[position : position + size])
    return Portion(b"".join(parts), count)


def _records(view: StoreView, ranges: Ranges, on_disk: OnDisk) -> Portion:
    """Read common records without their bodies. Other records come whole: those with IPv6 hosts, and invalid ones."""
    positions, sizes = ranges["position"], ranges["size"].astype(np.int64)
    if (positions + sizes).max() > on_disk.log:
        raise PortionError(
            f"records up to {(positions + sizes).max()} are not on disk: the log is on disk up to {on_disk.log}"
        )
    files: dict[int, MappedFile] = {}
    bases = positions - positions % view.log.file_bytes
    holes = np.zeros(len(ranges), HOLE)
    for base in np.unique(bases).tolist():
        if base < view.log.start:
            raise FileNotFoundError(f"the log begins at {view.log.start}, not at {base}")
        chosen = np.flatnonzero(bases == base)
        at, size = positions[chosen] - base, sizes[chosen]
        if size.min() < FIXED_BYTES_V4 or (at + size).max() > view.log.file_bytes:
            raise StoreUnreadable(f"ranges in the log file {base} are not records")
        files[base] = view.log.file_at(base)
        _bring_in(files[base], at, size)
        holes["size"][chosen] = _body_sizes(files[base].array, at, size)
    holes["at"] = FIXED_BYTES_V4
    count = _that_fit(sizes - holes["size"] + HOLE.itemsize)
    parts: list[Any] = [holes[:count].tobytes()]
    for base, position, size, hole in zip(
        bases[:count].tolist(), positions.tolist(), sizes.tolist(), holes["size"].tolist(), strict=False
    ):
        view_of, at = files[base].view, position - base
        if hole:
            parts.append(view_of[at : at + FIXED_BYTES_V4])
            at, size = at + FIXED_BYTES_V4 + hole, size - FIXED_BYTES_V4 - hole
        parts.append(view_of[at : at + size])
    return Portion(b"".join(parts), count)


def _body_sizes(array: npt.NDArray[np.uint8], at: Positions, sizes: Positions) -> Positions:
    """Return the body sizes of the common records at `at`; 0 for other records."""

    def field(offset: int) -> Positions:
        raw = array[at[:, None] + np.arange(offset, offset + 4)]
        values: Positions = raw.view(">u4")[:, 0].astype(np.int64)
        return values

    magic, body = field(_MAGIC_AT), field(_BODY_SIZE_AT)
    usual = (field(_SIZE_AT) == sizes) & ((magic == MAGIC_V1) | (magic == MAGIC_V2))
    usual &= (field(_SYS_FLAG_AT) & (SYS_BORN_HOST_V6 | SYS_STORE_HOST_V6)) == 0
    bodies: Positions = np.where(usual & (body <= sizes - FIXED_BYTES_V4), body, 0)
    return bodies


def _bring_in(file: MappedFile, at: Positions, sizes: Positions) -> None:
    """Read the ranges into memory without holding the interpreter lock."""
    order = np.argsort(at, kind="stable")
    starts, stops = at[order], np.maximum.accumulate((at + sizes)[order])
    for start, stop in joined(starts, stops, file.size, NEAR_BYTES):
        file.populate(start, stop)


def _chains(files: Files, ranges: Ranges, on_disk: OnDisk) -> Portion:
    room = (PORTION_BYTES_MAX - CHAIN_HEAD.itemsize) // CHAINED.itemsize
    found: list[npt.NDArray[Any]] = []
    head = np.zeros(1, CHAIN_HEAD)
    head["next"] = -1
    for newest in ranges["position"].tolist():
        if not room:
            break
        positions, next_position = chain(files, newest, 1 << 62, room)
        if len(positions) and positions.max() >= on_disk.timer_log:
            raise PortionError(f"the timer log is on disk up to {on_disk.timer_log}, not to {positions.max()}")
        rows = np.zeros(len(positions), CHAINED)
        rows["position"], rows["unit"] = positions, units_at(files, positions).view(CHAINED["unit"])
        found.append(rows)
        room -= len(rows)
        if next_position >= 0:
            head["next"] = next_position
            break
        head["whole"] += 1
    body = head.tobytes() + b"".join(rows.tobytes() for rows in found)
    return Portion(body, int(head["whole"][0]))


def _that_fit(sizes: npt.NDArray[Any]) -> int:
    """Return the number of first ranges that fit into an answer. Raises PortionError if not even one fits."""
    count = int(np.searchsorted(np.cumsum(sizes, dtype=np.int64), PORTION_BYTES_MAX, "right"))
    if not count:
        raise PortionError(f"{sizes[0]} bytes exceed the limit of {PORTION_BYTES_MAX} bytes per portion")
    return count


def _must_be_in_one_file(files: Files, position: int, size: int) -> None:
    at = position % files.file_bytes
    if not files.start <= position < files.end or at + size > files.file_bytes:
        raise PortionError(f"{size} bytes at {position} are not within one file between {files.start} and {files.end}")
