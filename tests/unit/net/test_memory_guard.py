"""The memory guard over connections without sockets, and a loop whose timers the test runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from wheelmq.formats.disk.message import Host
from wheelmq.net.limits import RELIEF_LOOKS, RELIEF_S
from wheelmq.net.memory_guard import MemoryGuard

LIMIT = 1000


class Holder:
    """A connection that holds a number of bytes, some of them answers that its peer has not read."""

    def __init__(self, held: int, unread: int = 0) -> None:
        self.peer = Host(b"\x7f\0\0\1", 1)
        self.bytes_held = held
        self.bytes_unread = unread
        self.bytes_drained = 0
        self.is_open = True
        self.rests = False
        self.aborted: list[Holder] = []
        """The connections that the guard closed, in order. The connections of a guard share this list."""

    def read(self, count: int) -> None:
        """Let the peer read answers."""
        self.bytes_drained += count
        self.bytes_unread -= count
        self.bytes_held -= count

    def rest(self) -> None:
        self.rests = True

    def go_on(self) -> None:
        self.rests = False

    def abort(self) -> None:
        self.is_open = False
        self.aborted.append(self)


class ManualLoop:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.timers: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, callback: Callable[..., None], *arguments: Any) -> None:
        assert delay_s == RELIEF_S
        self.timers.append((callback, arguments))

    def look(self) -> None:
        """Let the pause between two checks pass."""
        ((callback, arguments),) = self.timers
        self.now_s += RELIEF_S
        self.timers.clear()
        callback(*arguments)


class Guarded:
    """A guard of some connections."""

    def __init__(self, *holders: Holder) -> None:
        self.holders = holders
        self.aborted: list[Holder] = []
        for one in holders:
            one.aborted = self.aborted
        self.loop = ManualLoop()
        self.writes = 0
        self.guard = MemoryGuard(cast(Any, self.loop), LIMIT, holders, self._write)

    def _write(self) -> None:
        self.writes += 1

    def exceed(self) -> None:
        self.guard.charge(LIMIT + 1)

    def closed(self) -> list[int]:
        """Return the numbers of the closed connections, in order."""
        return [self.holders.index(one) for one in self.aborted]


def test_a_count_within_the_limit_is_not_checked() -> None:
    guarded = Guarded(Holder(10 * LIMIT))
    guarded.guard.charge(LIMIT)
    assert not guarded.writes and not guarded.guard.is_on


def test_a_recount_after_the_writes_may_find_room() -> None:
    guarded = Guarded(Holder(LIMIT))
    guarded.exceed()
    assert guarded.writes == 1 and not guarded.guard.is_on and not guarded.loop.timers
    guarded.guard.charge(0)
    assert guarded.writes == 1  # the guard continues with the exact count


def test_peers_that_read_in_the_pause_are_not_closed() -> None:
    guarded = Guarded(Holder(LIMIT, unread=LIMIT), Holder(1))
    guarded.exceed()
    assert guarded.guard.is_on and all(one.rests for one in guarded.holders)
    for _ in range(RELIEF_LOOKS - 1):
        guarded.loop.look()
        assert guarded.guard.is_on
    guarded.holders[0].read(1)
    guarded.loop.look()
    assert not guarded.guard.is_on and not any(one.rests for one in guarded.holders)
    assert guarded.closed() == [] and guarded.guard.closed == 0


@pytest.mark.parametrize(
    ("holders", "frames", "closed"),
    [
        # (bytes held, unread) of each connection; connections with unfinished frames, the oldest first
        ([(350, 0), (300, 300), (500, 500)], [], [2]),
        ([(500, 0), (300, 300), (200, 200), (400, 0)], [], [1, 2, 0]),
        ([(600, 0), (300, 0), (400, 0)], [2, 1], [2, 1]),
        ([(600, 0), (300, 0), (400, 0)], [1, 2, 1], [2, 1]),
        ([(600, 0), (300, 0), (500, 0)], [], [0, 2]),
        ([(600, 0), (300, 300), (500, 0)], [2], [1, 2]),
    ],
)
def test_the_guard_closes_connections_in_order(
    holders: list[tuple[int, int]], frames: list[int], closed: list[int]
) -> None:
    """Peers that read nothing come first, then the oldest frames, then the most bytes, until a quarter is free."""
    guarded = Guarded(*(Holder(held, unread) for held, unread in holders))
    for number in frames:
        guarded.guard.begin_frame(guarded.holders[number])
    guarded.exceed()
    for _ in range(RELIEF_LOOKS):
        guarded.loop.look()
    assert guarded.closed() == closed and guarded.guard.closed == len(closed)
    assert not guarded.guard.is_on


def test_a_frame_that_ended_is_no_reason_to_close() -> None:
    guarded = Guarded(Holder(700), Holder(400))
    guarded.guard.begin_frame(guarded.holders[1])
    guarded.guard.end_frame(guarded.holders[1])
    guarded.exceed()
    for _ in range(RELIEF_LOOKS):
        guarded.loop.look()
    assert guarded.closed() == [0]
