"""Ship a store to a target: capture changes, store them, and keep the target tidy.

The target alone says how far the shipper is. After any stop it continues from there.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

import msgspec

from wheelmq.backup.capture import Capture, Capturer, chunk_of, final_floor
from wheelmq.backup.catalog import (
    NEW,
    PointObject,
    TargetIdentity,
    object_name,
    placed,
    read_catalog,
    read_identity,
    write_identity,
)
from wheelmq.backup.comparison import cut_blocks, cut_log
from wheelmq.backup.history import History
from wheelmq.backup.housekeeping import Housekeeping
from wheelmq.backup.index import COMMIT_LOG, Chunk, Index, Point, StateFile
from wheelmq.backup.merging import ChunkObjects, write_points
from wheelmq.backup.objects import ObjectWriter, Packed, pack
from wheelmq.backup.retention import names_of_all, orphans
from wheelmq.backup.settings import ShipSettings
from wheelmq.backup.source import FileVersion, Source
from wheelmq.backup.tails import Tail, captured_tails, has_lost_tails, shipped_tails
from wheelmq.backup.target import Target
from wheelmq.formats.units import Millis
from wheelmq.system.clock import Clock
from wheelmq.system.failpoint import reach
from wheelmq.system.workers import Worker

log = logging.getLogger(__name__)


class TargetForeign(OSError):
    """The target holds something else: files of others, or another store."""


class ShipStep(NamedTuple):
    """The result of one step."""

    is_complete: bool
    """Whether the step reached the end of the store."""
    capture: int
    """Number of the new capture; 0 without one."""
    raw_bytes: int
    stored_bytes: int
    records: int
    problems: list[str]


@dataclass
class _Attempt:
    """A capture that is being stored. It is tried again until it is there, because an attempt that failed may have
    stored a part."""

    capture: Capture
    versions: list[FileVersion]
    """All versions of files that were read. Those in the capture are new for the target."""
    point: Point
    chunks: list[tuple[Chunk, Packed]]
    files: list[tuple[StateFile, Packed | None]]

    @property
    def stored_bytes(self) -> int:
        packed = [one for _, one in (*self.chunks, *self.files) if one is not None]
        return sum(len(one.raw) for one in packed)


class Shipper:
    """Ships one store to one target. `step` does all work, in the thread of the caller."""

    def __init__(
        self,
        source: Source,
        target: Target,
        clock: Clock,
        settings: ShipSettings,
        worker: Worker,
        randomness: Random,
        run_callback: Callable[[], None] = lambda: None,
    ) -> None:
        """`run_callback` waits for the next callback of `worker` and runs it, in the thread of the caller."""
        self._source = source
        self._target = target
        self._clock = clock
        self._settings = settings
        self._randomness = randomness
        self.history = History()
        self.identity = TargetIdentity(0, "", 0)
        self.complete_ms: Millis | None = None
        """All records stored before this time are in the target. None before the first complete step."""
        self._cuts: dict[str, int] = {}
        self._splits_ms: dict[str, int] = {}
        self._is_restart = False
        self._tails: dict[str, Tail] = {}
        """The last shipped bytes of each stream."""
        self._attempt: _Attempt | None = None
        self.housekeeping = Housekeeping(target, clock, settings, worker, self._merged, run_callback)

    @property
    def objects(self) -> list[PointObject]:
        """The objects with points, in order."""
        return self.housekeeping.objects

    # Start ---------------------------------------------------------------------------------------------------------

    def open(self, known: str | None) -> None:
        """Read the target, and find out how far it agrees with the store.

        `known` is the history that this store was shipped to before. Raises TargetForeign, TargetDamaged, OSError.
        """
        self._target.settle()
        self.identity = read_identity(self._target) or self._begin_history()
        names = names_of_all(self._target)  # a shipper that runs by mistake may store captures from now on
        self.housekeeping.objects = read_catalog(self._target)
        for name in orphans(names, self.objects):
            self._target.remove(name)
        reach("ship.opened")
        self.history = History.of(point for one in self.objects for point in one.points)
        self._source.expect_files(self.history.files)
        self._source.log.refresh()
        self._source.list_blocks()
        self._compare(is_known=self.identity.history == known)
        self._target.remove_unfinished()
        self._tails = shipped_tails(self._source, self.history)

    def _begin_history(self) -> TargetIdentity:
        if self._target.names(""):
            raise TargetForeign("the target has other files: choose an empty folder, or a new one below it")
        made = TargetIdentity(1, self._randomness.randbytes(8).hex(), self._clock.now_ms())
        write_identity(self._target, made)
        return made

    def _compare(self, *, is_known: bool) -> None:
        """Cut the shipped streams where the store has lost or replaced records. Raises TargetForeign, OSError."""
        history, source = self.history, self._source
        if not self.objects:
            return
        position = cut_log(source, history)
        end = history.end(COMMIT_LOG).position
        if position == -1 and not is_known:
            raise TargetForeign(
                "the target has the records of another store: choose another target, or remove the target"
            )
        if position == -1 and source.log.start <= history.log[0].start:
            position = history.log[0].start  # the power was cut before anything was on disk
        if (position == -1 and end != source.log.start) or end < source.log.start:
            self._begin_again(f"the broker has deleted or replaced all records up to {end} that were shipped")
            return
        if source.log.start < history.log_start:
            # a restored store, or another replica: flags of the target may be of records that the store does not have
            self._begin_again(f"the store has records before {history.log_start}, which the target may not have")
            return
        cuts = cut_blocks(source, history)
        if position is not None and position >= 0:
            cuts[COMMIT_LOG] = position
        for stream, start in cuts.items():
            log.warning("%s: the store has lost its records from %d on: the next point cuts them off", stream, start)
            self._splits_ms[stream] = history.end(stream).last_ms
            history.cut(stream, start)
        self._cuts |= cuts

    def _begin_again(self, reason: str) -> None:
        """Forget the shipped records. Points before this moment stay restorable."""
        log.warning(
            "%s: shipping begins again at %d, and moments in between cannot be restored",
            reason,
            self._source.log.start,
        )
        self.history.restart()
        self._is_restart, self._cuts, self._splits_ms = True, {}, {}
        self._source.forget_files()

    # Steps ---------------------------------------------------------------------------------------------------------

    def step(self) -> ShipStep:
        """Capture once, and store the changes. Raises TargetTaken, OSError."""
        if self._attempt is None:
            self._notice_cut()
            capturer = Capturer(self._source, self.history, self._settings.step_bytes_max)
            self._attempt = self._prepare(capturer.capture(self._clock.now_ms(), self._splits_ms))
        attempt = self._attempt
        capture, number = attempt.capture, 0
        if not self._is_idle(attempt):
            self._store(attempt)
            number = attempt.point.last
        self._source.note_files(attempt.versions)
        self._attempt = None
        if capture.is_complete:
            self.complete_ms = capture.made_ms
        self.housekeeping.run(self.history.sizes)
        raw_bytes = sum(len(piece.raw) for _, piece in capture.pieces)
        records = sum(len(piece.rows) for _, piece in capture.pieces)
        return ShipStep(capture.is_complete, number, raw_bytes, attempt.stored_bytes, records, capture.problems)

    def _notice_cut(self) -> None:
        """Compare the store again if it lost shipped records, or deleted records that were not shipped."""
        reader = self._source.log
        reader.refresh()
        if self.history.lacks_before(reader.start) or has_lost_tails(self._source, self._tails):
            self.housekeeping.wait()
            if self.housekeeping.problem is not None:  # the failed job may have stored its objects
                self.open(self.identity.history)
                return
            self._source.list_blocks()
            self._compare(is_known=True)
            self._tails = shipped_tails(self._source, self.history)

    def _is_idle(self, attempt: _Attempt) -> bool:
        return attempt.capture.is_empty and not attempt.point.cuts and not self._is_restart

    def _prepare(self, capture: Capture) -> _Attempt:
        """Compress a capture, and make its point."""
        chunks = [(chunk_of(stream, piece), pack(piece.raw)) for stream, piece in capture.pieces]
        files: list[tuple[StateFile, Packed | None]] = []
        versions = capture.files
        capture.files = [version for version in versions if self._is_new(version.name, version.content)]
        for version in capture.files:
            file = StateFile(name=version.name, is_gone=version.content is None)
            files.append((file, None if version.content is None else pack(version.content)))
        number = self.history.last + 1
        # a restore to a time before the loss leaves out a cut with all that follows it
        streams = {stream for stream, _ in capture.pieces}
        cuts = {stream: at for stream, at in self._cuts.items() if capture.is_complete or stream in streams}
        point = Point(
            first=number,
            last=number,
            since_ms=capture.made_ms,
            made_ms=capture.made_ms,
            is_complete=capture.is_complete,
            is_restart=self._is_restart,
            log_start=capture.log_start,
            cuts=cuts,
            blocks=capture.blocks,
            gone=capture.gone,
            sizes=capture.sizes,
            floor=final_floor(capture, self.history, [chunk for chunk, _ in chunks]),
        )
        return _Attempt(capture, versions, point, chunks, files)

    def _is_new(self, name: str, content: bytes | None) -> bool:
        known = self.history.files.get(name)
        if content is None or known is None:
            return (content is None) != (known is None)
        return zlib.crc32(content) != known.crc

    def _store(self, attempt: _Attempt) -> None:
        """Store an attempt, and note its point. Raises TargetTaken, OSError."""
        if attempt.stored_bytes <= self._settings.small_bytes_max:
            made = self._store_small(attempt)
        else:
            made = self._store_large(attempt)
        reach("ship.stored")
        point = made.points[0]
        self.history.apply(point)
        self.history.trim()
        self.objects.append(made)
        self._cuts = {stream: at for stream, at in self._cuts.items() if stream not in point.cuts}
        self._splits_ms = {stream: ms for stream, ms in self._splits_ms.items() if stream in self._cuts}
        self._is_restart = False
        tails = self._tails | captured_tails(attempt.capture)
        self._tails = {stream: tails[stream] for stream in (COMMIT_LOG, *self.history.blocks) if stream in tails}

    def _store_small(self, attempt: _Attempt) -> PointObject:
        writer = ObjectWriter()
        chunks = [writer.add(chunk, packed) for chunk, packed in attempt.chunks]
        files = [file if packed is None else writer.add(file, packed) for file, packed in attempt.files]
        point = msgspec.structs.replace(attempt.point, chunks=chunks, files=files)
        name = object_name(NEW, point.last)
        content = writer.finish(Index(points=[point]))
        self._target.write(name, content)
        return PointObject(name, point.first, point.last, [placed(point, name)], content)

    def _store_large(self, attempt: _Attempt) -> PointObject:
        """Store chunks and point in objects of their own. The point comes last."""
        number = attempt.point.last
        objects = ChunkObjects(number, number)
        chunks = [objects.add(chunk, packed) for chunk, packed in attempt.chunks]
        objects.write(self._target)
        writer = ObjectWriter()
        files = [file if packed is None else writer.add(file, packed, name="files") for file, packed in attempt.files]
        content = writer.finish(Index())
        point = msgspec.structs.replace(attempt.point, chunks=chunks, files=files)
        return write_points(self._target, [point], lambda name: content)

    def _merged(self, obsolete: list[PointObject], merged: PointObject) -> None:
        """Take over the chunks of merged objects."""
        names = {one.name for one in obsolete}
        self.history.replace(merged.points, names)
