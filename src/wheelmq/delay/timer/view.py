"""A task's view of a store: files that it maps, or the same bytes fetched over the wire (wire_view).

Staging names the ranges before it reads them (`need`). A view of mapped files has them all; the other fetches them.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from wheelmq.formats.disk.paths import BlockPaths, StorePaths
from wheelmq.formats.disk.timer import TIMER_SLOT, TIMER_TOPIC, TIMER_UNIT
from wheelmq.formats.kernels import jit, timer
from wheelmq.formats.kernels.arrays import read_only
from wheelmq.formats.names import SCHEDULE_TOPIC
from wheelmq.formats.wire.portions import FileKind
from wheelmq.store.mapped import MappedSequence
from wheelmq.system.disk import ReadOnlyDisk
from wheelmq.system.mapped_file import Bytes

Positions = npt.NDArray[np.int64]

CHAIN_UNITS_MAX: Final = 1 << 40
"""A caller that wants a whole chain asks for this number of units."""
TIMER_QUEUE: Final = f"{TIMER_TOPIC}/0"
"""Name of the timer queue among consume queues."""


def level_queue(level: int) -> str:
    return f"{SCHEDULE_TOPIC}/{level - 1}"


class StoreUnreadable(RuntimeError):
    """The files do not have the data that the plan names: the view is of another store, or the files are damaged."""


class File(Protocol):
    """The bytes of one file."""

    @property
    def array(self) -> Bytes: ...
    @property
    def view(self) -> memoryview: ...


class ReadableBytes(Protocol):
    """A sequence of bytes from `start` to before `end`, of which a view can read some."""

    @property
    def file_bytes(self) -> int: ...
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...
    def read(self, position: int, size: int) -> memoryview:
        """Return the bytes. They are in one file. Raises FileNotFoundError, StoreUnreadable."""
        ...


class Files(ReadableBytes, Protocol):
    """A sequence of files of one size that reads as one array of bytes. It begins at `start`, not at 0."""

    def file_at(self, position: int) -> File: ...


class LoadedRecords(NamedTuple):
    """Records in memory: record i is at `data[starts[i]]`."""

    data: Bytes
    starts: Positions


class ReadView(Protocol):
    """A read-only view of a store."""

    @property
    def log(self) -> ReadableBytes: ...
    @property
    def slot_count(self) -> int:
        """The number of slots of the timer wheel."""
        ...

    def queue(self, name: str) -> ReadableBytes:
        """Return the consume queue TOPIC/ID."""
        ...

    def block_queue(self, name: str) -> ReadableBytes:
        """Return the queue of the block in folder NAME."""
        ...

    def need(self, kind: FileKind, positions: Positions, sizes: Positions, name: str = "") -> None:
        """Make these ranges readable. Ranges of this kind from earlier calls may become unreadable.

        Raises FileNotFoundError for expired records, StoreUnreadable, and the errors of the connection to the store.
        """
        ...

    def refresh(self) -> None:
        """Update the list of log files that still exist."""
        ...

    def records(self, positions: Positions) -> LoadedRecords:
        """Return the first of these records, as many as are in one array; none if the first one cannot be read.

        Raises FileNotFoundError for expired records.
        """
        ...

    def slots(self, places: Positions) -> npt.NDArray[Any]:
        """Return the slots of the timer wheel at `places`, in their order. Raises StoreUnreadable."""
        ...

    def chain(self, position: int, log_end: int) -> Positions:
        """Return the timer log positions below `log_end` of a chain, newest first. Raises StoreUnreadable."""
        ...

    def timer_units(self, positions: Positions) -> npt.NDArray[Any]:
        """Return the timer log units at `positions`, in their order. Raises StoreUnreadable."""
        ...


NO_RECORDS: Final = LoadedRecords(np.zeros(0, np.uint8), np.empty(0, np.int64))


class StoreSizes(msgspec.Struct, frozen=True):
    """Sizes with which a store was created. They are part of the terms of a lease."""

    log_file_bytes: int
    queue_file_bytes: int
    timer_log_file_bytes: int
    timer_slots: int
    block_queue_file_bytes: int


class FileView:
    """The part of a view that reads mapped files."""

    log: Files
    timer_log: Files

    def __init__(self, wheel: npt.NDArray[Any]) -> None:
        """`wheel` has all slots, as an array of TIMER_SLOT."""
        self._wheel = wheel

    @property
    def slot_count(self) -> int:
        return len(self._wheel)

    def records(self, positions: Positions) -> LoadedRecords:
        file_bytes = self.log.file_bytes
        base = int(positions[0]) // file_bytes * file_bytes
        if not self.log.start <= base < self.log.end:
            return NO_RECORDS
        count = int(np.searchsorted(positions, base + file_bytes))
        return LoadedRecords(self.log.file_at(base).array, positions[:count] - base)

    def slots(self, places: Positions) -> npt.NDArray[Any]:
        found: npt.NDArray[Any] = self._wheel[places]
        return found

    def chain(self, position: int, log_end: int) -> Positions:
        return chain(self.timer_log, position, log_end)[0]

    def timer_units(self, positions: Positions) -> npt.NDArray[Any]:
        return units_at(self.timer_log, positions)


class StoreView(FileView):
    """The files of a store, mapped. Each task creates its own view, because files come and go."""

    log: MappedSequence
    timer_log: MappedSequence

    def __init__(self, root: Path, sizes: StoreSizes) -> None:
        disk = ReadOnlyDisk()
        self._paths = StorePaths(root)
        self._list_log = partial(MappedSequence, disk, self._paths.commit_log, sizes.log_file_bytes)
        self._list_queue = partial(MappedSequence, disk, file_bytes=sizes.queue_file_bytes)
        self._list_block_queue = partial(MappedSequence, disk, file_bytes=sizes.block_queue_file_bytes)
        self._queues: dict[str, MappedSequence] = {}
        self.log = self._list_log()
        self.timer_log = MappedSequence(disk, self._paths.timer_log, sizes.timer_log_file_bytes)
        self.wheel = disk.map(self._paths.timer_wheel, sizes.timer_slots * 2 * TIMER_SLOT.size)
        super().__init__(self.wheel.array.view(TIMER_SLOT.dtype))

    def queue(self, name: str) -> MappedSequence:
        if name not in self._queues:
            topic, _, queue_id = name.rpartition("/")
            self._queues[name] = self._list_queue(self._paths.consume_queue(topic, int(queue_id)))
        return self._queues[name]

    def block_queue(self, name: str) -> MappedSequence:
        return self._list_block_queue(BlockPaths(self._paths.blocks / name).queue)

    def need(self, kind: FileKind, positions: Positions, sizes: Positions, name: str = "") -> None:
        """Do nothing, because mapped files have all ranges."""

    def refresh(self) -> None:
        self.log = self._list_log()


def sees_store(root: Path, identity: str) -> bool:
    """Return whether the folder `root`, as this process sees it, is the store that a broker identifies."""
    return identity != "" and ReadOnlyDisk().identity(StorePaths(root).lock) == identity


def chain(files: Files, position: int, log_end: int, most: int = CHAIN_UNITS_MAX) -> tuple[Positions, int]:
    """Return the timer log positions of a chain's units from `position` on, newest first, and the next position.

    Leaves out units at `log_end` or later, and stops after about `most` units. The next position is -1 at the end. Each
    unit must link to an older one, so damaged links form no cycle. Raises StoreUnreadable.
    """
    found: list[Positions] = []
    count = 0
    scratch = np.zeros(min(most, 65_535) + 1, np.int64)
    while position >= 0 and count < most:
        if not files.start <= position < files.end:
            raise StoreUnreadable(f"a chain points to timer log position {position}, where no file exists")
        here = position
        file = files.file_at(here)
        base = here - here % files.file_bytes
        if jit.available():
            position = int(timer.chain_in_file(read_only(file.array), base, here, log_end, scratch))
            found.append(scratch[: int(scratch[-1])].copy())
        else:
            at = here - base
            unit = TIMER_UNIT.unpack(file.view, at) if at + TIMER_UNIT.size <= files.file_bytes else {"size": 0}
            previous = unit["previous_position"] if unit["size"] == TIMER_UNIT.size else timer.BROKEN
            position = previous if -1 <= previous < here else timer.BROKEN
            found.append(np.array([here] if here < log_end else [], np.int64))
        if position == timer.BROKEN:
            raise StoreUnreadable(f"the chain through timer log position {here} is broken")
        count += len(found[-1])
    return np.concatenate(found) if found else np.empty(0, np.int64), position


def units_at(files: Files, positions: Positions) -> npt.NDArray[Any]:
    """Return the timer log units at `positions`, in their order."""
    units = np.zeros(len(positions), TIMER_UNIT.dtype)
    raw = units.view(np.uint8).reshape(-1, TIMER_UNIT.size)
    for base in np.unique(positions - positions % files.file_bytes).tolist():
        here = np.flatnonzero((positions >= base) & (positions < base + files.file_bytes))
        starts = positions[here] - base
        raw[here] = files.file_at(base).array[starts[:, None] + np.arange(TIMER_UNIT.size)]
    return units
