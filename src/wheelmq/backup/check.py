"""Verify the objects that a restore needs, without writing anything."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from wheelmq.backup.index import COMMIT_LOG, Chunk, Point, Stored
from wheelmq.backup.objects import TargetDamaged, unpack
from wheelmq.backup.plan import Needed, Plan
from wheelmq.backup.scanning import chunk_scan, end_by, rows_of
from wheelmq.backup.tally import StoreCounts, Tally
from wheelmq.backup.target import Target
from wheelmq.delay.timer.snapshot import decode_done
from wheelmq.formats.disk.done_bits import StreamBits
from wheelmq.formats.kernels import scan as col
from wheelmq.store.recovery import Rows

_TIMER_DONE: Final = "timerdone"


class Checked(NamedTuple):
    """A verified state."""

    counts: StoreCounts
    log_start: int
    log_end: int
    last_ms: int
    objects: int
    stored_bytes: int


class TargetCheck:
    """Reads and verifies the chunks and files of one plan."""

    def __init__(self, target: Target, plan: Plan) -> None:
        self._target = target
        self._plan = plan
        self._name = ""
        self._content = b""
        self._objects: dict[str, int] = {}
        self._verified: set[tuple[str, int]] = set()
        self._last_ms = 0

    def verify_all(self, points: Iterable[Point]) -> None:
        """Verify the checksums of all other chunks and files in `points`. Raises TargetDamaged, OSError."""
        by_object: dict[str, list[Stored]] = {}
        for point in points:
            for stored in (*point.chunks, *(file for file in point.files if not file.is_gone)):
                if (stored.object, stored.at) not in self._verified:
                    by_object.setdefault(stored.object, []).append(stored)
        for name, mine in by_object.items():
            for stored in mine:
                unpack(self._object(name), stored)

    def run(self) -> Checked:
        """Verify checksums and records of the plan. Raises TargetDamaged, OSError."""
        history = self._plan.history
        tally = Tally(self._done())
        log_end = self._log(tally)
        floor = history.floor_at(history.log_start)
        for name in self._plan.blocks():
            number = history.facts[name].number
            tally.add_settled(number, floor.settled.get(number, b""))
            position = 0
            for needed in self._plan.needed(name):
                position = self._follow(needed.chunk, position)
                for rows in self._rows(needed):
                    tally.add_block(number, rows)
            tally.end_block()
        for file in history.files.values():
            self._unpack(file)
        sizes = self._objects.values()
        return Checked(tally.counts(), history.log_start, log_end, self._last_ms, len(sizes), sum(sizes))

    def _log(self, tally: Tally) -> int:
        position = end = self._plan.history.log_start
        for needed in self._plan.needed(COMMIT_LOG):
            position = end = self._follow(needed.chunk, position)
            for rows in self._rows(needed):
                tally.add_log(rows)
                self._last_ms = max(self._last_ms, int(rows[-1, col.STORE_MS]))
            if needed.is_partial:
                end = self._end(needed)
        return end

    @staticmethod
    def _follow(chunk: Chunk, position: int) -> int:
        """Check that a chunk begins at `position`. Returns its end."""
        if chunk.start != position:
            raise TargetDamaged(f"{chunk.stream}: the bytes from {position} to {chunk.start} are missing")
        return chunk.end

    def _rows(self, needed: Needed) -> Iterator[Rows]:
        """Yield the rows of the records of a chunk that a restore contains."""
        chunk, at_ms = needed.chunk, self._plan.at_ms
        raw = self._unpack(chunk)
        for rows in rows_of(chunk_scan(chunk, raw), chunk.end, chunk.object):
            kept = rows if at_ms is None else rows[rows[:, col.STORE_MS] <= at_ms]
            if len(kept):
                yield kept

    def _end(self, needed: Needed) -> int:
        assert self._plan.at_ms is not None
        chunk = needed.chunk
        return end_by(chunk, self._unpack(chunk), self._plan.at_ms)

    def _unpack(self, stored: Stored) -> bytes:
        raw = unpack(self._object(stored.object), stored)
        self._verified.add((stored.object, stored.at))
        return raw

    def _object(self, name: str) -> bytes:
        if name != self._name:
            self._name, self._content = name, self._target.read(name)
            self._objects[name] = len(self._content)
        return self._content

    def _done(self) -> tuple[StreamBits, ...]:
        """Return the messages that Apache RocketMQ had delivered before WheelMQ adopted the store."""
        file = self._plan.history.files.get(_TIMER_DONE)
        found = None if file is None else decode_done(self._unpack(file))
        return () if found is None else found[1]
