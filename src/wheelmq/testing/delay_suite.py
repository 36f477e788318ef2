"""The contract of a delay queue as tests. To test your delay queue, subclass DelaySuite and define `open`.

    class TestMyDelays(DelaySuite):
        def open(self, folder):
            return MyDelays(folder)

The oracle is a sorted list of due times and names.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import NamedTuple, Protocol


class Left(NamedTuple):
    """A released message, and the time of its release."""

    name: bytes
    left_ms: int


class DelaysUnderTest(Protocol):
    """A delay queue with a clock of its own, which only the test moves."""

    @property
    def now_ms(self) -> int: ...

    def send(self, name: bytes, due_ms: int) -> None:
        """Accept a message that is due at `due_ms`. It is on disk on return. Delays are at most 30 s."""
        ...

    def cancel(self, name: bytes) -> bool:
        """Cancel the message with that name. Returns whether it was pending."""
        ...

    def advance(self, ms: int) -> None: ...

    def left(self) -> list[Left]:
        """Return all messages released since the beginning, in order."""
        ...

    def set_clock(self, ms: int) -> None:
        """Set the wall clock forward or back, without any time passing."""
        ...

    def restart(self, how: str, away_ms: int = 0) -> None:
        """Stop `clean`, `killed` or by a `power cut`, which loses data that was not synced. Start after `away_ms`."""
        ...


class DelaySuite:
    """The tests. Every delay is a multiple of `grain_ms`."""

    grain_ms = 1

    def _grained(self, delay_ms: int) -> int:
        return -(-delay_ms // self.grain_ms) * self.grain_ms

    def open(self, folder: Path) -> DelaysUnderTest:
        """Return a delay queue in the empty `folder`."""
        raise NotImplementedError

    def test_each_leaves_at_its_millisecond_and_in_order(self, tmp_path: Path) -> None:
        randomness, delays = Random(1), self.open(tmp_path)
        due: list[tuple[int, int]] = []
        for i in range(60):
            delay_ms = randomness.choice((1, 20, 999, 1000, 1001, randomness.randint(1, 30_000)))
            due.append((delays.now_ms + self._grained(delay_ms), i))
            delays.send(b"%d" % i, due[-1][0])
            delays.advance(randomness.choice((0, 0, 1, 700)))
        delays.advance(31_000)
        assert delays.left() == [Left(b"%d" % i, due_ms) for due_ms, i in sorted(due)]

    def test_nothing_leaves_early(self, tmp_path: Path) -> None:
        delays = self.open(tmp_path)
        due_ms = delays.now_ms + 5000
        delays.send(b"a", due_ms)
        delays.advance(4999)
        assert delays.left() == []
        delays.advance(1)
        assert delays.left() == [Left(b"a", due_ms)]

    def test_a_burst_at_one_instant(self, tmp_path: Path) -> None:
        delays = self.open(tmp_path)
        due_ms = delays.now_ms + 3000
        for i in range(1500):
            delays.send(b"%d" % i, due_ms)
        delays.advance(3000)
        assert [left.name for left in delays.left()] == [b"%d" % i for i in range(1500)]

    def test_what_is_cancelled_stays_in(self, tmp_path: Path) -> None:
        delays = self.open(tmp_path)
        for name, delay_ms in ((b"near", 40), (b"far", 9000), (b"kept", 9000)):
            delays.send(name, delays.now_ms + self._grained(delay_ms))
        delays.advance(2000)
        assert [delays.cancel(name) for name in (b"near", b"far", b"far", b"none")] == [False, True, False, False]
        delays.restart("power cut")
        delays.advance(10_000)
        assert [left.name for left in delays.left()] == [b"near", b"kept"]

    def test_once_each_whatever_stops_it(self, tmp_path: Path) -> None:
        for how in ("clean", "killed", "power cut"):
            randomness, delays = Random(2), self.open(tmp_path / how)
            due: dict[bytes, int] = {}
            for i in range(40):
                name = b"%d" % i
                due[name] = delays.now_ms + self._grained(randomness.choice((5, 300, 2500, 8000, 25_000)))
                delays.send(name, due[name])
                delays.advance(randomness.choice((0, 100, 900)))
                if i % 8 == 7:
                    delays.restart(how)
            delays.advance(40_000)
            left = delays.left()
            assert sorted(one.name for one in left) == sorted(due), how
            assert all(one.left_ms >= due[one.name] for one in left), how

    def test_a_stop_of_eight_days(self, tmp_path: Path) -> None:
        for how in ("clean", "killed", "power cut"):
            delays = self.open(tmp_path / how)
            due = _send_some(delays, "old", self.grain_ms)
            delays.advance(1000)
            delays.restart(how, 8 * 24 * HOUR_MS)
            back_ms = delays.now_ms
            fresh = _send_some(delays, "new", self.grain_ms)
            delays.advance(31_000)
            left = delays.left()
            assert [one.name for one in left] == sorted(due, key=_by(due)) + sorted(fresh, key=_by(fresh)), how
            assert all(one.left_ms == fresh.get(one.name, one.left_ms) for one in left), how
            assert max(one.left_ms for one in left if one.name in due) == back_ms, how

    def test_the_clock_goes_an_hour_forward_and_right_again(self, tmp_path: Path) -> None:
        for how in ("", "clean", "killed"):
            delays = self.open(tmp_path / f"clock {how}")
            due = _send_some(delays, "old", self.grain_ms)
            delays.advance(1000)
            delays.set_clock(HOUR_MS)
            due |= _send_some(delays, "ahead", self.grain_ms)
            if how:
                delays.restart(how)
            delays.advance(500)
            _check_once_and_not_early(delays, due)
            assert {one.name for one in delays.left()} >= {name for name in due if name.startswith(b"old")}, how
            delays.set_clock(-HOUR_MS)
            fresh = _send_some(delays, "right", self.grain_ms)
            delays.advance(31_000)
            _check_once_and_not_early(delays, due | fresh)
            assert {(one.name, one.left_ms) for one in delays.left()} >= set(fresh.items()), how
            delays.set_clock(HOUR_MS)
            delays.advance(31_000)
            assert {one.name for one in delays.left()} == (due | fresh).keys(), how

    def test_the_clock_goes_an_hour_back_and_right_again(self, tmp_path: Path) -> None:
        for how in ("", "clean", "killed"):
            delays = self.open(tmp_path / f"clock {how}")
            due = _send_some(delays, "old", self.grain_ms)
            delays.advance(1000)
            before = {one.name for one in delays.left()}
            delays.set_clock(-HOUR_MS)
            fresh = _send_some(delays, "behind", self.grain_ms)
            if how:
                delays.restart(how)
            delays.advance(31_000)
            left = delays.left()
            assert {one.name for one in left} == before | fresh.keys(), how
            assert {(one.name, one.left_ms) for one in left} >= set(fresh.items()), how
            delays.set_clock(HOUR_MS)
            delays.advance(31_000)
            _check_once_and_not_early(delays, due | fresh)
            assert {one.name for one in delays.left()} == (due | fresh).keys(), how


HOUR_MS = 3_600_000


def _send_some(delays: DelaysUnderTest, name: str, grain_ms: int) -> dict[bytes, int]:
    """Send messages due within 30 s, each at another multiple of the grain. Returns due times by name."""
    grains = [-(-(37 + 1033 * i) // grain_ms) * grain_ms for i in range(29)]
    due = {f"{name}{i}".encode(): delays.now_ms + delay_ms for i, delay_ms in enumerate(grains)}
    for one, due_ms in due.items():
        delays.send(one, due_ms)
    return due


def _by(due: dict[bytes, int]) -> Callable[[bytes], int]:
    return lambda name: due[name]


def _check_once_and_not_early(delays: DelaysUnderTest, due: dict[bytes, int]) -> None:
    left = delays.left()
    assert len(left) == len({one.name for one in left})
    assert all(one.left_ms >= due[one.name] for one in left)
