"""The state of a shipped store at a point: the result of all points up to it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterable, Sequence
from typing import NamedTuple, Self

import msgspec
import numpy as np
import numpy.typing as npt

from wheelmq.backup.index import COMMIT_LOG, BlockFacts, Chunk, FileSizes, Floor, Point, QueueEnds, StateFile
from wheelmq.formats.disk.origin import INDEX_MASK, block_stream, by_stream, origin_of, stream_number

Indexes = npt.NDArray[np.int64]


class StreamEnd(NamedTuple):
    """The end of the shipped part of a stream, and the store time of its last record."""

    position: int
    last_ms: int


class History:
    """The chunks of each stream, the files, and the facts of deleted records."""

    def __init__(self) -> None:
        self.log: list[Chunk] = []
        self.blocks: dict[str, list[Chunk]] = {}
        self.facts: dict[str, BlockFacts] = {}
        self.files: dict[str, StateFile] = {}
        self.sizes = FileSizes()
        self.floor: Floor | None = None
        """The facts of records before the first chunk. None until the first complete point."""
        self.log_start = 0
        self.last = 0
        """Number of the last capture."""
        self.made_ms = 0
        self.is_complete = False

    @classmethod
    def of(cls, points: Iterable[Point]) -> Self:
        made = cls()
        for point in points:
            made.apply(point)
        return made

    def copy(self) -> History:
        """Return a copy that can change alone. The chunks and files are shared, because they never change."""
        made = History()
        made.__dict__.update(self.__dict__)
        made.log = list(self.log)
        made.blocks = {name: list(chunks) for name, chunks in self.blocks.items()}
        made.facts, made.files = dict(self.facts), dict(self.files)
        return made

    def apply(self, point: Point) -> None:
        """Change the state to that at `point`, the next one."""
        if point.is_restart:
            self.restart()
        for stream, position in point.cuts.items():
            self.cut(stream, position)
        self.add_blocks(point)
        for chunk in point.chunks:
            self.add(chunk)
        for name in point.gone:
            self.remove_block(name)
        self.take_files(point.files)
        if point.log_start >= 0:
            self.log_start = point.log_start
        self.take_floor(point.floor)
        self.last, self.made_ms = point.last, point.made_ms
        self.is_complete = point.is_complete

    def restart(self) -> None:
        """Forget everything: the next points do not continue the earlier ones."""
        for table in (self.log, self.blocks, self.facts, self.files):
            table.clear()
        self.floor, self.sizes, self.log_start, self.is_complete = None, FileSizes(), 0, False

    def add_blocks(self, point: Point) -> None:
        """Add the new blocks of a point, and note its file sizes."""
        for name, facts in point.blocks.items():
            self.facts[name] = facts
            self.blocks.setdefault(name, [])
        self.sizes = point.sizes or self.sizes

    def add(self, chunk: Chunk) -> None:
        """Add a chunk at the end of its stream."""
        self.chunks(chunk.stream).append(chunk)

    def chunks(self, stream: str) -> list[Chunk]:
        return self.log if stream == COMMIT_LOG else self.blocks.setdefault(stream, [])

    def cut(self, stream: str, position: int) -> None:
        """Drop the chunks of a stream from `position` on, where one begins."""
        chunks = self.chunks(stream)
        while chunks and chunks[-1].start >= position:
            chunks.pop()
        assert not chunks or chunks[-1].end <= position, (stream, position)

    def remove_block(self, name: str) -> None:
        self.blocks.pop(name, None)
        self.facts.pop(name, None)

    def take_files(self, files: Iterable[StateFile]) -> None:
        """Take over new versions of files."""
        for file in files:
            if file.is_gone:
                self.files.pop(file.name, None)
            else:
                self.files[file.name] = file

    def take_floor(self, floor: Floor | None) -> None:
        """Take over the floor of a point. A later one has more settled messages."""
        if self.floor is None or floor is None:
            self.floor = self.floor or floor
            return
        settled = dict(self.floor.settled)
        for number, indexes in floor.settled.items():
            settled[number] = settled.get(number, b"") + indexes
        self.floor = msgspec.structs.replace(self.floor, settled=settled)

    def end(self, stream: str) -> StreamEnd:
        chunks = self.chunks(stream)
        last_ms = next((chunk.last_ms for chunk in reversed(chunks) if chunk.records), 0)
        return StreamEnd(chunks[-1].end if chunks else 0, last_ms)

    def lacks_before(self, log_start: int) -> bool:
        """Return whether the shipped log ends before `log_start`: records in between are deleted, and not shipped."""
        return bool(self.log) and self.log[-1].end < log_start

    def floor_at(self, position: int) -> Floor:
        """Return the facts of all records before `position`, where a log file begins."""
        known = self.floor or Floor(0)
        ends: QueueEnds = {topic: dict(queues) for topic, queues in known.queue_ends.items()}
        numbers = {facts.number for facts in self.facts.values()}
        settled = [_indexes_to_origins(known.settled)]
        for chunk in self.log:
            if chunk.end > position:
                break
            raise_ends(ends, chunk.ends)
            settled.append(np.frombuffer(chunk.settled, ">i8").astype(np.int64))
        return Floor(max(position, known.position), ends, indexes_by_block(np.concatenate(settled), numbers))

    def trim(self) -> None:
        """Drop the chunks before the start of the log, and keep the facts that they prove in the floor."""
        if self.log and self.log[0].start < self.log_start:
            self.floor = self.floor_at(self.log_start)
            self.log = [chunk for chunk in self.log if chunk.start >= self.log_start]

    def replace(self, merged: Iterable[Point], names: Container[str]) -> None:
        """Replace chunks of the objects `names` by those of the points that the objects were merged into.

        Some points may have chunks that a later one of them cuts off. Such a chunk replaces nothing.
        """
        left = History.of(merged)
        for chunk in left.all_chunks():
            chunks = self.chunks(chunk.stream) if chunk.stream == COMMIT_LOG or chunk.stream in self.facts else []
            first = bisect_left(chunks, chunk.start, key=lambda one: one.start)
            stop = bisect_left(chunks, chunk.end, key=lambda one: one.start)
            old = chunks[first:stop]
            if old and all(one.object in names and one.end <= chunk.end for one in old):
                chunks[first:stop] = [chunk]

    def all_chunks(self) -> list[Chunk]:
        """Return the chunks of the log, and those of the blocks."""
        return [*self.log, *(chunk for chunks in self.blocks.values() for chunk in chunks)]

    def live_chunks(self) -> list[Chunk]:
        """Return all chunks that a restore of this state needs."""
        return [one for one in self.all_chunks() if one.stream != COMMIT_LOG or one.start >= self.log_start]


def raise_ends(ends: QueueEnds, more: QueueEnds) -> None:
    """Raise the ends of queues to those in `more`."""
    for topic, queues in more.items():
        known = ends.setdefault(topic, {})
        for queue_id, end in queues.items():
            known[queue_id] = max(end, known.get(queue_id, 0))


def _indexes_to_origins(settled: dict[int, bytes]) -> Indexes:
    parts = [
        np.frombuffer(raw, ">i8").astype(np.int64) | origin_of(block_stream(number), 0)
        for number, raw in settled.items()
    ]
    return np.concatenate([np.empty(0, np.int64), *parts])


def indexes_by_block(origins: Indexes, numbers: set[int]) -> dict[int, bytes]:
    """Return the indexes of settled messages in the blocks `numbers`, as a floor stores them."""
    origins = np.unique(origins)
    return {
        stream_number(stream): (origins[mine] & INDEX_MASK).astype(">i8").tobytes()
        for stream, mine in by_stream(origins)
        if stream_number(stream) in numbers
    }


def without(floor: Floor, chunks: Sequence[Chunk]) -> Floor:
    """Return `floor` without the messages that records in `chunks` settle. The last chunks settle most of them."""
    left = _indexes_to_origins(floor.settled)
    for chunk in reversed(chunks):
        if not len(left):
            break
        left = left[~np.isin(left, np.frombuffer(chunk.settled, ">i8").astype(np.int64))]
    return msgspec.structs.replace(floor, settled=indexes_by_block(left, set(floor.settled)))
