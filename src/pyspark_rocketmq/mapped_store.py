"""Read a queue from the files of a store, in a task on the machine of the broker.

The broker then copies no message, and the task decodes the records where they are mapped. Any difference between files
and expectations raises NotInStore, and the task pulls from the broker instead. Formats: wheelmq.formats.disk.
"""

from __future__ import annotations

import itertools
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from pyspark_rocketmq.offsets import Queue
from pyspark_rocketmq.records import Records
from wheelmq.formats.disk.message import RecordError
from wheelmq.formats.disk.paths import StorePaths, file_start
from wheelmq.formats.disk.queue_unit import BLANK_SIZE, QUEUE_UNIT

Units = np.ndarray[Any, np.dtype[Any]]

BATCH_BYTES: Final = 8 << 20
"""Bytes of records from which a batch is full."""
LOG_FILE_BYTES_MAX: Final = (1 << 31) - 1
"""Arrow describes the parts of a log file by 32-bit numbers."""


class NotInStore(Exception):
    """The files do not have the messages, or have others."""


class MappedStore:
    """The queues and the log of a store that a broker may write meanwhile."""

    def __init__(self, root: Path) -> None:
        self._paths = StorePaths(root)
        self._maps: dict[Path, mmap.mmap] = {}

    def units(self, queue: Queue, first: int, end: int) -> Units:
        """Return the queue units of [first, end). Raises NotInStore."""
        folder = self._paths.consume_queue(queue.topic, queue.number)
        at, stop = first * QUEUE_UNIT.size, end * QUEUE_UNIT.size
        found: list[Units] = []
        for start, path in _files(folder):
            if at >= stop:
                break
            size = _size(path)
            if start <= at < start + size:
                upto = min(stop, start + size)
                found.append(_read_units(path, at - start, (upto - at) // QUEUE_UNIT.size))
                at = upto
        units = np.concatenate(found) if found else np.zeros(0, QUEUE_UNIT.dtype)
        if len(units) != end - first:
            raise NotInStore(f"{folder} has {len(units)} of the {end - first} units from offset {first} on")
        is_ordered = (np.diff(units["position"].astype(np.int64)) > 0).all()
        if not (is_ordered and (units["size"] > 0).all() and (units["size"] != BLANK_SIZE).all()):
            raise NotInStore(f"{folder} has units without a record after offset {first}")
        return units

    def records(self, queue: Queue, units: Units, first: int) -> Iterator[Records]:
        """Yield the records of `units`, whose first one is at queue offset `first`. Raises NotInStore.

        Each group of records is in one file, and has some BATCH_BYTES at most.
        """
        positions, sizes = units["position"].astype(np.int64), units["size"].astype(np.int64)
        files = _files(self._paths.commit_log)
        starts = np.array([start for start, _ in files], np.int64)
        places = np.searchsorted(starts, positions, side="right") - 1
        if (places < 0).any():
            raise NotInStore(f"the log begins after position {positions[0]}")
        groups = np.cumsum(sizes) // BATCH_BYTES
        bounds = [0, *(np.flatnonzero(np.diff(places) | np.diff(groups)) + 1).tolist(), len(units)]
        for low, high in itertools.pairwise(bounds):
            start, path = files[int(places[low])]
            data, at = self._mapped(path), positions[low:high] - start
            is_whole = at + sizes[low:high] <= len(data)
            upto = high if is_whole.all() else low + int(np.argmin(is_whole))
            if upto > low:
                found = _records(path, data, at[: upto - low])
                expected = np.arange(first + low, first + upto)
                is_same = np.array_equal(found.queue_offsets, expected) and np.array_equal(found.sizes, sizes[low:upto])
                is_same &= np.array_equal(found.positions, positions[low:upto])
                if not (is_same and (found.queue_ids == queue.number).all() and found.are_of(queue.topic)):
                    raise NotInStore(f"{path} has other records than its queue says")
                yield found
            if upto < high:
                raise NotInStore(f"{path} ends before position {positions[upto] + sizes[upto]}")

    def record(self, queue: Queue, offset: int) -> bytes:
        """Return the bytes of the record at a queue offset. Raises NotInStore."""
        [unit] = self.units(queue, offset, offset + 1)
        position, size = int(unit["position"]), int(unit["size"])
        for start, path in reversed(_files(self._paths.commit_log)):
            if start <= position:
                return bytes(self._mapped(path)[position - start : position - start + size])
        raise NotInStore(f"the log begins after position {position}")

    def _mapped(self, path: Path) -> mmap.mmap:
        """Return the mapping of a log file. It stays while a batch uses it, also if the broker deletes the file."""
        data = self._maps.get(path)
        if data is None:
            try:
                with path.open("rb") as file:
                    data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except (OSError, ValueError) as error:
                raise NotInStore(f"{path}: {error}") from None
            if len(data) > LOG_FILE_BYTES_MAX:
                raise NotInStore(f"{path} is longer than {LOG_FILE_BYTES_MAX} bytes")
            self._maps = {path: data}  # a task reads forward, so it needs no earlier file
        return data


def _records(path: Path, data: mmap.mmap, starts: Units) -> Records:
    try:
        return Records(data, starts)
    except RecordError as error:
        raise NotInStore(f"{path}: {error}") from None


def _files(folder: Path) -> list[tuple[int, Path]]:
    """Return the files of a log or a queue in order, each with its first byte. Raises NotInStore."""
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        raise NotInStore(f"{folder}: {error}") from None
    return [(start, folder / name) for name in names if (start := file_start(name)) is not None]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise NotInStore(f"{path}: {error}") from None


def _read_units(path: Path, at: int, count: int) -> Units:
    try:
        return np.fromfile(path, QUEUE_UNIT.dtype, count, offset=at)
    except OSError as error:
        raise NotInStore(f"{path}: {error}") from None
