"""Decide which records and files a restore to a time contains.

A restore to time T has each record that was stored by T, and no later one. The state at T begins with the last point
that was made by T. The next complete point may contribute, with the incomplete ones before it. Their records are
stored in order, so the restore takes those that are stored by T.

Offsets and other files are those of the former point, because an offset must not be ahead of the log. The tables of
topics and groups are those of the latter one, because a record may need an entry of them.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from wheelmq.backup.history import History
from wheelmq.backup.index import COMMIT_LOG, Chunk, Point
from wheelmq.backup.source import TABLES


class NotRestorable(ValueError):
    """The target cannot bring back the wanted time. The text names the times that it can."""


class Needed(NamedTuple):
    """A chunk of a restore."""

    chunk: Chunk
    is_partial: bool
    """Whether some of its records are stored after the wanted time."""


class Plan(NamedTuple):
    """The content of a restore."""

    history: History
    at_ms: int | None
    """The wanted time; None for the last point."""

    def needed(self, stream: str) -> Iterator[Needed]:
        """Yield the chunks of a stream, in order. The last one may be partial."""
        for chunk in self.history.chunks(stream):
            if stream == COMMIT_LOG and chunk.start < self.history.log_start:
                continue
            if self.at_ms is None or not chunk.records or chunk.last_ms <= self.at_ms:
                yield Needed(chunk, False)
                continue
            if chunk.first_ms <= self.at_ms:
                yield Needed(chunk, True)
            return

    def blocks(self) -> list[str]:
        """Return the blocks with records."""
        return [name for name in self.history.blocks if any(one.chunk.records for one in self.needed(name))]


class Window(NamedTuple):
    """Times that can be restored."""

    first_ms: int
    last_ms: int


class _Part(NamedTuple):
    """Points that continue without a gap, with at least one complete point."""

    points: list[Point]
    window: Window
    has_gap: bool
    """Whether a gap follows."""


def windows(points: Sequence[Point]) -> list[Window]:
    """Return the times that can be restored: one window, or more if shipping was interrupted for too long.

    More records may have been stored in the last millisecond before a gap, so a window ends before it. A window of
    one millisecond stays: it has the records of its last point.
    """
    return [part.window for part in _parts(points)]


def make_plan(points: Sequence[Point], at_ms: int | None) -> Plan:
    """Return the content of a restore. Raises NotRestorable."""
    parts = _parts(points)
    if not parts:
        raise NotRestorable("the target has no complete point yet: let `wheelmq ship` run until it has caught up")
    if at_ms is None:
        return Plan(History.of(parts[-1].points), None)
    mine = _part_at(parts, at_ms).points
    count = max(i for i, point in enumerate(mine) if point.made_ms <= at_ms) + 1
    history = History.of(mine[:count])
    for group in _groups(mine[count:]):
        if not any(_contributes(point, history, at_ms) for point in group):
            break
        for point in group:
            _enter(history, point)
        if any(chunk.records and chunk.last_ms > at_ms for point in group for chunk in point.chunks):
            break
    return Plan(history, at_ms)


def _part_at(parts: Sequence[_Part], at_ms: int) -> _Part:
    """Return the part whose window has a time. Raises NotRestorable."""
    number = max((i for i, part in enumerate(parts) if part.window.first_ms <= at_ms), default=-1)
    if number < 0:
        raise NotRestorable(f"the target begins at {_text(parts[0].window.first_ms)}: give this time or a later one")
    part, why = parts[number], "because the broker deleted records before they were shipped"
    if not part.has_gap or at_ms <= part.window.last_ms:
        return part
    end = _text(part.window.last_ms)
    if number + 1 == len(parts):
        raise NotRestorable(
            f"the target has nothing complete after {end}, {why}: give this time, or let `wheelmq ship` catch up"
        )
    following = _text(parts[number + 1].window.first_ms)
    raise NotRestorable(f"the target has nothing between {end} and {following}, {why}: give one of these times")


def _groups(points: Iterable[Point]) -> Iterator[list[Point]]:
    """Yield consecutive points up to each complete one: together they have all records up to its time."""
    group: list[Point] = []
    for point in points:
        group.append(point)
        if point.is_complete:
            yield group
            group = []
    if group:
        yield group


def _parts(points: Sequence[Point]) -> list[_Part]:
    """Return the parts of the points that each continue without a gap.

    Before a gap, a part ends with its last complete point: the captures after it did not reach the end of the store.
    """
    runs: list[list[Point]] = []
    for point in points:
        if point.is_restart or not runs:
            runs.append([])
        runs[-1].append(point)
    parts = []
    for number, run in enumerate(runs, 1):
        complete = [i for i, point in enumerate(run) if point.is_complete]
        if complete:
            has_gap = number < len(runs)
            times_ms = [run[i].made_ms for i in complete]  # a clock that is set back changes their order
            first_ms, last_ms = min(times_ms), max(times_ms)
            window = Window(first_ms, max(first_ms, last_ms - 1) if has_gap else last_ms)
            parts.append(_Part(run[: complete[-1] + 1] if has_gap else run, window, has_gap))
    return parts


def _contributes(point: Point, history: History, at_ms: int) -> bool:
    """Return whether a point after the wanted time has records that were stored by then.

    After a cut, only records later than those that were lost count: the others were there before.
    """
    for chunk in point.chunks:
        after_ms = history.end(chunk.stream).last_ms if chunk.stream in point.cuts else -1
        if chunk.records and after_ms < chunk.first_ms <= at_ms:
            return True
    return False


def _enter(history: History, point: Point) -> None:
    """Add the chunks, the floor and the tables of a point."""
    for stream, position in point.cuts.items():
        history.cut(stream, position)
    history.add_blocks(point)
    for chunk in point.chunks:
        if chunk.start < history.end(chunk.stream).position:  # a block that was gone in between
            history.cut(chunk.stream, chunk.start)
        history.add(chunk)
    history.take_floor(point.floor)
    history.take_files(file for file in point.files if file.name in TABLES)


def _text(time_ms: int) -> str:
    moment = datetime.datetime.fromtimestamp(time_ms // 1000, datetime.UTC).replace(microsecond=time_ms % 1000 * 1000)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
