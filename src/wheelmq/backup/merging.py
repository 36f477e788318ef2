"""Merge small objects of a target into larger ones. The new objects are written before the old ones are removed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import msgspec

from wheelmq.backup.catalog import BLOCKS, LOG, POINTS, PointObject, object_name, placed
from wheelmq.backup.history import raise_ends
from wheelmq.backup.index import COMMIT_LOG, Chunk, FileSizes, Index, Point, QueueEnds, StateFile, Stored
from wheelmq.backup.objects import ObjectWriter, Packed, pack, unpack
from wheelmq.backup.target import Target
from wheelmq.system.failpoint import reach

Contents = Callable[[str], bytes]
"""Returns an object by its name."""


class JoinRules(NamedTuple):
    """Which consecutive chunks of a stream may become one."""

    sizes: FileSizes
    borders: set[tuple[str, int]]
    """Streams and positions at which later points cut: a chunk must begin there."""
    bytes_max: int

    def allow(self, group: list[Chunk], chunk: Chunk) -> bool:
        """Return whether `chunk` may join the chunks of `group`, which it follows."""
        file_bytes = self.sizes.log if chunk.stream == COMMIT_LOG else self.sizes.block_log
        is_in_file = file_bytes and chunk.start % file_bytes
        fits = chunk.end - group[0].start <= self.bytes_max
        return bool(fits and is_in_file and (chunk.stream, chunk.start) not in self.borders)


class ChunkObjects:
    """The objects that the chunks of some captures go to: one for the commit log, and one for the blocks."""

    def __init__(self, first: int, last: int) -> None:
        self._writers = {LOG: ObjectWriter(), BLOCKS: ObjectWriter()}
        self._chunks: dict[str, list[Chunk]] = {LOG: [], BLOCKS: []}
        self._range = first, last

    def add(self, chunk: Chunk, packed: Packed) -> Chunk:
        """Add a chunk. Returns it with its place."""
        folder = LOG if chunk.stream == COMMIT_LOG else BLOCKS
        made = self._writers[folder].add(chunk, packed, name=object_name(folder, *self._range))
        self._chunks[folder].append(made)
        return made

    def write(self, target: Target) -> None:
        """Write the objects that have chunks. Raises OSError."""
        for folder, chunks in self._chunks.items():
            if chunks:
                plain = [msgspec.structs.replace(chunk, object="", ends={}, settled=b"") for chunk in chunks]
                content = self._writers[folder].finish(Index(chunks=plain))
                target.write(object_name(folder, *self._range), content)
                reach("ship.chunks")


def merge_captures(target: Target, objects: list[PointObject], joins: JoinRules) -> tuple[PointObject, list[str]]:
    """Merge objects of single captures. Returns the object of their points, and the names of obsolete objects.

    Raises TargetDamaged, OSError.
    """
    known = {one.name: one.content for one in objects}
    contents = _reader(target, known)
    first, last = objects[0].first, objects[-1].last
    chunks = ChunkObjects(first, last)
    runs = _runs(point for one in objects for point in one.points)
    points = [_merge(run, chunks, contents, joins) for run in runs]
    chunks.write(target)
    return write_points(target, points, contents), list(known)


def merge_points(target: Target, objects: list[PointObject]) -> tuple[PointObject, list[str]]:
    """Put the points of several objects into one. Returns it, and the names of obsolete objects. Raises OSError."""
    points = [point for one in objects for point in one.points]
    return write_points(target, points, _reader(target, {})), [one.name for one in objects]


def write_points(target: Target, points: list[Point], contents: Contents, *, end: str = "") -> PointObject:
    """Write an object of points, with copies of their files. `end` is the end of its name.

    Raises TargetDamaged, OSError.
    """
    name = object_name(POINTS, points[0].first, points[-1].last) + end
    writer = ObjectWriter()
    written = [_with_files(point, writer, contents) for point in points]
    target.write(name, writer.finish(Index(points=written)))
    reach("ship.points")
    return PointObject(name, points[0].first, points[-1].last, [placed(point, name) for point in written])


def _with_files(point: Point, writer: ObjectWriter, contents: Contents) -> Point:
    """Return the point with its files in the object of `writer`."""
    files = [file if file.is_gone else writer.add(file, _packed(file, contents)) for file in point.files]
    return msgspec.structs.replace(point, files=files)


def _packed(stored: Stored, contents: Contents) -> Packed:
    """Return bytes as they are stored, after a check."""
    content = contents(stored.object)
    unpack(content, stored)
    return Packed(content[stored.at : stored.at + stored.size], stored.crc)


def _reader(target: Target, known: dict[str, bytes | None]) -> Contents:
    """Return a function that reads each object once."""
    found = {name: content for name, content in known.items() if content is not None}

    def read(name: str) -> bytes:
        if name not in found:
            found[name] = target.read(name)
        return found[name]

    return read


def _runs(points: Iterable[Point]) -> Iterator[list[Point]]:
    """Yield consecutive points that may become one point.

    A cut or a restart begins a run, so that all chunks of a run continue each other. Incomplete points stay apart from
    complete ones. The first complete point stays alone, because it is the earliest moment that can be restored. Other
    points with a floor stay alone too, because a restore to an earlier time must not take it over. After a power cut, a
    block may be gone and then exist again under the same name: that begins a run too.
    """
    run: list[Point] = []
    for point in points:
        begins = point.cuts or point.is_restart or point.floor is not None
        begins = begins or any(name in before.gone for before in run for name in point.blocks)
        if run and (begins or run[-1].floor is not None or run[-1].is_complete != point.is_complete):
            yield run
            run = []
        run.append(point)
    if run:
        yield run


def _merge(run: list[Point], objects: ChunkObjects, contents: Contents, joins: JoinRules) -> Point:
    """Return one point for a run, with its chunks in `objects`."""
    chunks = []
    for group in _groups((chunk for point in run for chunk in point.chunks), joins, run[0].cuts):
        raw = b"".join(unpack(contents(chunk.object), chunk) for chunk in group)
        chunks.append(objects.add(_join(group), pack(raw)))
    files: dict[str, StateFile] = {file.name: file for point in run for file in point.files}
    return Point(
        first=run[0].first,
        last=run[-1].last,
        since_ms=run[0].since_ms,
        made_ms=run[-1].made_ms,
        is_complete=run[0].is_complete,
        is_restart=run[0].is_restart,
        log_start=next((point.log_start for point in reversed(run) if point.log_start >= 0), -1),
        cuts=run[0].cuts,
        chunks=chunks,
        blocks={name: facts for point in run for name, facts in point.blocks.items()},
        gone=[name for point in run for name in point.gone],
        files=list(files.values()),
        sizes=next((point.sizes for point in reversed(run) if point.sizes is not None), None),
        floor=run[0].floor,
    )


def _groups(chunks: Iterable[Chunk], joins: JoinRules, cuts: dict[str, int]) -> Iterator[list[Chunk]]:
    """Yield chunks of one stream that become one chunk.

    After a cut, the first chunks may have records from before it. A restore to a time in between separates chunks by
    their times, so chunks of a stream in `cuts` stay as they are.
    """
    by_stream: dict[str, list[Chunk]] = {}
    for chunk in chunks:
        by_stream.setdefault(chunk.stream, []).append(chunk)
    for mine in by_stream.values():
        group: list[Chunk] = []
        for chunk in mine:
            if group and (chunk.stream in cuts or not joins.allow(group, chunk)):
                yield group
                group = []
            group.append(chunk)
        yield group


def _join(group: list[Chunk]) -> Chunk:
    """Return the chunk of all records of a group, without its place."""
    ends: QueueEnds = {}
    for chunk in group:
        raise_ends(ends, chunk.ends)
    return Chunk(
        stream=group[0].stream,
        start=group[0].start,
        end=group[-1].end,
        first_ms=next((chunk.first_ms for chunk in group if chunk.records), 0),
        last_ms=next((chunk.last_ms for chunk in reversed(group) if chunk.records), 0),
        records=sum(chunk.records for chunk in group),
        ends=ends,
        settled=b"".join(chunk.settled for chunk in group),
    )
