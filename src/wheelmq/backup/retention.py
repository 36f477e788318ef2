"""Remove the chunks that no restore needs any more.

Let A be the last complete point before the window. A restore to A or later needs the log from the start that it had at
A, and the blocks of A. The broker deletes no log file with a pending message, so the log from there on has the parked
record of each pending message, however old it is. All points up to A become one point with these chunks. The facts
that only deleted records prove go into its floor.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from wheelmq.backup.catalog import BASE, BLOCKS, LOG, NEW, POINTS, PointObject, object_name
from wheelmq.backup.history import History
from wheelmq.backup.index import COMMIT_LOG, Chunk, Index, Point
from wheelmq.backup.merging import write_points
from wheelmq.backup.objects import ObjectWriter, Packed, unpack
from wheelmq.backup.target import Target
from wheelmq.formats.units import Millis
from wheelmq.system.failpoint import reach

BLOCK_OBJECT_BYTES: Final = 16 << 20
"""Size up to which chunks of blocks are put together again."""
DEAD_SHARE: Final = 0.5
"""An object of blocks is written again once this share of its bytes is not needed."""


class Expired(NamedTuple):
    """The result of an expiry: the first objects of the list of points, and their successor."""

    replaced: int
    """Number of objects with points that `base` replaces."""
    base: PointObject
    obsolete: list[str]
    """Names of objects that are not needed any more."""


def expire(target: Target, objects: list[PointObject], before_ms: Millis) -> Expired | None:
    """Replace the points before `before_ms` by one point. Returns None if there is nothing to gain.

    The caller removes the obsolete objects. Raises TargetDamaged, OSError.
    """
    count = _expired_count(objects, before_ms)
    if count == 0 or (count == 1 and len(objects[0].points) == 1):
        return None
    old = [point for one in objects[:count] for point in one.points]
    history = History.of(old)
    history.trim()
    chunks = [*history.log, *(chunk for stream in history.blocks.values() for chunk in stream)]
    kept = _repack(target, [chunk for chunk in chunks if chunk.stream != COMMIT_LOG], old)
    base = Point(
        first=1,
        last=history.last,
        since_ms=old[-1].made_ms,
        made_ms=old[-1].made_ms,
        log_start=history.log_start,
        chunks=[*history.log, *kept],
        blocks=history.facts,
        files=list(history.files.values()),
        sizes=history.sizes,
        floor=history.floor,
    )
    written = write_points(target, [base], target.read, end=BASE)
    needed = {chunk.object for chunk in base.chunks}
    needed |= {chunk.object for one in objects[count:] for point in one.points for chunk in point.chunks}
    used = {chunk.object for point in old for chunk in point.chunks} | {one.name for one in objects[:count]}
    return Expired(count, written, sorted(used - needed - {written.name}))


def _expired_count(objects: list[PointObject], before_ms: Millis) -> int:
    """Return the number of objects at the front whose points can become one."""
    count = 0
    for number, one in enumerate(objects, 1):
        if one.points[-1].made_ms > before_ms or not one.name.startswith(POINTS):
            break
        if one.points[-1].is_complete:
            count = number
    return count


def _repack(target: Target, chunks: list[Chunk], old: list[Point]) -> list[Chunk]:
    """Return chunks of blocks, with those of small or mostly dead objects in new objects."""
    used: dict[str, int] = {}
    for chunk in chunks:
        used[chunk.object] = used.get(chunk.object, 0) + chunk.size
    total: dict[str, int] = {}
    for point in old:
        for chunk in point.chunks:
            if chunk.stream != COMMIT_LOG:
                total[chunk.object] = total.get(chunk.object, 0) + chunk.size
    dead = {name for name, size in used.items() if size < (1 - DEAD_SHARE) * total[name]}
    small = {name for name, size in used.items() if size < BLOCK_OBJECT_BYTES // 4}
    moved = dead | (small if len(small) > 1 else set())
    return _move(target, chunks, moved, old[-1].last) if moved else chunks


def _move(target: Target, chunks: list[Chunk], moved: set[str], last: int) -> list[Chunk]:
    """Copy the chunks of the objects `moved` into new objects. Returns all chunks with their places."""
    packer = _BlockPacker(target, last)
    places: dict[int, Chunk] = {}
    for name in sorted(moved):
        content = target.read(name)
        for number, chunk in enumerate(chunks):
            if chunk.object == name:
                unpack(content, chunk)
                packed = Packed(content[chunk.at : chunk.at + chunk.size], chunk.crc)
                places[number] = packer.add(chunk, packed)
    packer.finish()
    return [places.get(number, chunk) for number, chunk in enumerate(chunks)]


class _BlockPacker:
    """Writes objects of blocks, each up to a size."""

    def __init__(self, target: Target, last: int) -> None:
        self._target = target
        self._base = object_name(BLOCKS, 1, last)
        self._number = 0
        self._writer = ObjectWriter()
        self._chunks: list[Chunk] = []

    def add(self, chunk: Chunk, packed: Packed) -> Chunk:
        if self._chunks and self._writer.size + len(packed.raw) > BLOCK_OBJECT_BYTES:
            self.finish()
        made = self._writer.add(chunk, packed, name=f"{self._base}.{self._number}")
        self._chunks.append(made)
        return made

    def finish(self) -> None:
        if self._chunks:
            plain = [msgspec.structs.replace(chunk, object="") for chunk in self._chunks]
            self._target.write(f"{self._base}.{self._number}", self._writer.finish(Index(chunks=plain)))
            reach("ship.repacked")
        self._number += 1
        self._writer, self._chunks = ObjectWriter(), []


def names_of_all(target: Target) -> list[str]:
    """Return the names of all objects, except that of the identity. Raises OSError."""
    return [name for folder in (LOG, BLOCKS, NEW, POINTS) for name in target.names(folder)]


def orphans(names: Iterable[str], objects: list[PointObject]) -> list[str]:
    """Return the objects among `names` that no point needs: a shipper was stopped while it wrote or removed them."""
    needed = {one.name for one in objects}
    needed |= {stored.object for one in objects for point in one.points for stored in (*point.chunks, *point.files)}
    return [name for name in names if name not in needed]
