"""Any file of a store as readable rows, each with its position and its values."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from wheelmq.formats.disk.block import (
    BLOCK_CHECKPOINT,
    BLOCK_CHECKPOINT_MAGIC,
    BLOCK_CHECKPOINT_SLOT_BYTES,
    BLOCK_UNIT,
    FLAG_BLANK,
)
from wheelmq.formats.disk.checkpoint import CHECKPOINT
from wheelmq.formats.disk.done_bits import pack_streams
from wheelmq.formats.disk.index import INDEX_HEADER, INDEX_UNIT, SLOT_BYTES, SLOTS, UNITS
from wheelmq.formats.disk.message import BLANK, BLANK_BYTES, BLANK_MAGIC, Host, RecordError, decode_record
from wheelmq.formats.disk.paths import file_start
from wheelmq.formats.disk.queue_unit import QUEUE_UNIT
from wheelmq.formats.disk.snapshot import SNAPSHOT, SNAPSHOT_BLOCK, SNAPSHOT_QUEUE, Snapshot, SnapshotDamaged
from wheelmq.formats.disk.timer import (
    TIMER_CHECK,
    TIMER_DONE,
    TIMER_MARK,
    TIMER_MARK_SLOT_BYTES,
    TIMER_SLOT,
    TIMER_UNIT,
)
from wheelmq.formats.disk.timer_detail import read_details
from wheelmq.formats.field import Layout
from wheelmq.formats.wire import bodies

Row = dict[str, Any]
"""The values at byte `at`, which counts from the start of the sequence for logs and queues, else from the start of
the file. A row with `problem` is the last row of a file: the bytes at `at` are not valid."""

Reader = Callable[[memoryview, int], Iterator[Row]]
"""Yields the rows of a file. The second argument is the first byte of the file in its sequence."""


class UnknownFile(ValueError):
    """The path is no file of a store. The message names the files that are."""


def dump(path: Path, view: memoryview) -> Iterator[Row]:
    """Return the rows of the file at `path` with the bytes `view`. Raises UnknownFile."""
    folders = [folder.name for folder in path.parents]
    base = file_start(path.name)
    if base is not None:
        for depth, folder, reader in _SEQUENCES:
            if folders[depth : depth + 1] == [folder]:
                return reader(view, base)
    if folders[:1] == ["index"]:
        return _index(view, 0)
    if folders[1:2] == ["scheduledtempdata"] and path.name == "checkpoint":
        return _block_checkpoint(view, 0)
    if path.name in _SINGLE:
        return _SINGLE[path.name](view, 0)
    raise UnknownFile(
        f"{path} is not a store file of a known format: give one below commitlog, consumequeue, index, timerlog or "
        f"scheduledtempdata, or one of {', '.join(sorted(_SINGLE))}"
    )


def _records(view: memoryview, base: int) -> Iterator[Row]:
    at = 0
    while at < len(view):
        if len(view) - at >= BLANK_BYTES and BLANK.unpack_from(view, at) == (len(view) - at, BLANK_MAGIC):
            yield {"at": base + at, "blank_bytes": len(view) - at}
            return
        try:
            record = decode_record(view[at:])
        except RecordError as error:
            if any(view[at : at + 512]):
                yield {"at": base + at, "problem": str(error)}
            return
        message = record.message
        yield {
            "at": base + at,
            "size": record.size,
            "topic": message.topic,
            "queue_id": message.queue_id,
            "queue_offset": record.queue_offset,
            "store_ms": record.store_ms,
            "born_ms": message.born_ms,
            "born_host": _host_text(message.born_host),
            "store_host": _host_text(record.store_host),
            "flag": message.flag,
            "sys_flag": message.sys_flag,
            "reconsume_times": message.reconsume_times,
            "prepared_position": message.prepared_position,
            "properties": message.properties,
            "body_bytes": len(message.body),
            "body": message.body.decode("utf-8", "backslashreplace"),
            "body_is_intact": record.body_is_intact,
        }
        if record.position != base + at:
            yield {"at": base + at, "problem": f"the record names log position {record.position}"}
            return
        at += record.size


def _units(layout: Layout, start: int, end: Callable[[Row], bool]) -> Reader:
    """Return a reader of values of `layout` from byte `start`. The first value with a true `end` stops it."""

    def read(view: memoryview, base: int) -> Iterator[Row]:
        for at in range(start, len(view) - layout.size + 1, layout.size):
            row = layout.unpack(view, at)
            if end(row):
                return
            yield {"at": base + at, **row}

    return read


def _queue(view: memoryview, base: int) -> Iterator[Row]:
    for row in _units(QUEUE_UNIT, 0, lambda unit: unit["size"] == 0)(view, base):
        yield {"queue_offset": row["at"] // QUEUE_UNIT.size, **row}


def _timer_log(view: memoryview, base: int) -> Iterator[Row]:
    """Yield the units, with queue offset and due time from a valid detail, or None where it has no due time."""
    for row in _units(TIMER_UNIT, 0, lambda unit: unit["size"] != TIMER_UNIT.size)(view, base):
        details = read_details(np.frombuffer(view, TIMER_UNIT.dtype, 1, row["at"] - base))
        if details.is_known[0]:
            due_ms = int(details.due_ms[0]) or None
            row |= {
                "queue_offset": int(details.queue_offsets[0]),
                "due_ms": due_ms,
                "is_long": bool(details.is_long[0]),
            }
        yield row


def _index(view: memoryview, base: int) -> Iterator[Row]:
    """Yield header and units; the units' chains give the slots. The file has four units per slot, like Apache's."""
    header = INDEX_HEADER.unpack(view)
    yield {"at": 0, **header}
    units = max(header["count"], 1)
    slots = (len(view) - INDEX_HEADER.size) // (SLOT_BYTES + UNITS // SLOTS * INDEX_UNIT.size)
    if not _holds(view, slots, units):
        yield {"at": INDEX_HEADER.size, "problem": "the file is damaged, or does not have 4 units per slot"}
        return
    start = INDEX_HEADER.size + slots * SLOT_BYTES
    for number in range(1, units):
        at = start + number * INDEX_UNIT.size
        yield {"at": at, "number": number, **INDEX_UNIT.unpack(view, at)}


def _holds(view: memoryview, slots: int, units: int) -> bool:
    """Return whether the head unit of each used slot has a hash of this slot, in a file of `slots` slots."""
    start = INDEX_HEADER.size + slots * SLOT_BYTES
    if start + units * INDEX_UNIT.size > len(view):
        return False
    heads = np.frombuffer(view, ">i4", slots, INDEX_HEADER.size)
    used = np.flatnonzero(heads)
    if (heads[used] < 0).any() or (heads[used] >= units).any():
        return False
    hashes = np.frombuffer(view, INDEX_UNIT.dtype, units, start)["hash"]
    return bool((hashes[heads[used]] % slots == used).all())


def _wheel(view: memoryview, base: int) -> Iterator[Row]:
    slots = np.frombuffer(view, TIMER_SLOT.dtype, len(view) // TIMER_SLOT.size)
    for number in np.flatnonzero(slots["time"]).tolist():
        at = number * TIMER_SLOT.size
        yield {"at": at, "slot": number, **TIMER_SLOT.unpack(view, at)}


def _mark(view: memoryview, base: int) -> Iterator[Row]:
    for at in (0, TIMER_MARK_SLOT_BYTES):
        yield {"at": at, **TIMER_MARK.unpack(view, at)}


def _block_queue(view: memoryview, base: int) -> Iterator[Row]:
    for row in _units(BLOCK_UNIT, 0, lambda unit: unit["size"] == 0 and unit["flags"] != FLAG_BLANK)(view, base):
        yield {"index": row["at"] // BLOCK_UNIT.size, **row}


def _block_checkpoint(view: memoryview, base: int) -> Iterator[Row]:
    for at in (0, BLOCK_CHECKPOINT_SLOT_BYTES):
        row = BLOCK_CHECKPOINT.unpack(view, at)
        if row["magic"] == BLOCK_CHECKPOINT_MAGIC:
            yield {"at": at, **row}


def _done(view: memoryview, base: int) -> Iterator[Row]:
    bits = np.unpackbits(np.frombuffer(view, np.uint8, offset=TIMER_DONE.size), bitorder="little")
    yield {"at": 0, **TIMER_DONE.unpack(view), "settled": int(bits.sum())}


def _snapshot(view: memoryview, base: int) -> Iterator[Row]:
    yield {"at": 0, **SNAPSHOT.unpack(view)}
    try:
        found = Snapshot.decode(bytes(view))
    except SnapshotDamaged as error:
        yield {"at": 0, "problem": str(error)}
        return
    at = SNAPSHOT.size + len(pack_streams(found.done)) + 8 * len(found.damaged)
    for (topic, queue_id), end in found.queue_ends.items():
        yield {"at": at, "topic": topic, "queue_id": queue_id, "end_queue_offset": end}
        at += SNAPSHOT_QUEUE.size + len(topic.encode())
    at = len(view) - len(found.blocks_gone) * SNAPSHOT_BLOCK.size
    for number, position in found.blocks_gone.items():
        yield {"at": at, "block_gone": number, "log_position": position}
        at += SNAPSHOT_BLOCK.size


def _metrics(view: memoryview, base: int) -> Iterator[Row]:
    yield {"at": 0, **msgspec.to_builtins(bodies.read(bytes(view), bodies.TimerMetrics))}


def _one(layout: Layout) -> Reader:
    def read(view: memoryview, base: int) -> Iterator[Row]:
        yield {"at": 0, **layout.unpack(view)}

    return read


def _host_text(host: Host) -> str:
    if len(host.address) == 4:
        return f"{socket.inet_ntop(socket.AF_INET, host.address)}:{host.port}"
    return f"[{socket.inet_ntop(socket.AF_INET6, host.address)}]:{host.port}"


_SEQUENCES: Final[tuple[tuple[int, str, Reader], ...]] = (
    (2, "consumequeue", _queue),
    (0, "commitlog", _records),
    (0, "timerlog", _timer_log),
    (0, "log", _records),
    (0, "queue", _block_queue),
)
"""For each sequence of files: the number of folders between it and its files, its folder, and the reader."""
_SINGLE: Final[dict[str, Reader]] = {
    "timerwheel": _wheel,
    "checkpoint": _one(CHECKPOINT),
    "timercheck": _one(TIMER_CHECK),
    "timermark": _mark,
    "timerdone": _done,
    "timermetrics": _metrics,
    "snapshot": _snapshot,
}
