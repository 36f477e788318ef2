"""What a delay queue must do, as tests for anybody's: subclass DelaySuite, say how yours is opened, run pytest.

    class TestMyDelays(DelaySuite):
        def open(self, folder):
            return MyDelays(folder)

The oracle is a sorted list of due times and names.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import NamedTuple, Protocol


class Left(NamedTuple):
    """A message that came out, and when."""

    name: bytes
    left_ms: int


class DelaysUnderTest(Protocol):
    """A delay queue under a clock of its own, which stands still until it is moved."""

    @property
    def now_ms(self) -> int: ...

    def send(self, name: bytes, due_ms: int) -> None:
        """Take a message that is due at `due_ms`: it is stored, on disk, on return. Delays go up to 30 s."""
        ...

    def cancel(self, name: bytes) -> bool:
        """Cancel what was sent under that name; whether it was still there."""
        ...

    def advance(self, ms: int) -> None:
        """Time passes."""
        ...

    def left(self) -> list[Left]:
        """All that came out since the beginning, in order."""
        ...

    def restart(self, how: str) -> None:
        """Stop and start at once: `clean`, or `killed`, or `power cut`, which takes what was not synced."""
        ...


class DelaySuite:
    """The tests."""

    def open(self, folder: Path) -> DelaysUnderTest:
        """A delay queue in `folder`, which is empty."""
        raise NotImplementedError

    def test_each_leaves_at_its_millisecond_and_in_order(self, tmp_path: Path) -> None:
        randomness, delays = Random(1), self.open(tmp_path)
        due: list[tuple[int, int]] = []
        for i in range(60):
            delay_ms = randomness.choice((1, 20, 999, 1000, 1001, randomness.randint(1, 30_000)))
            due.append((delays.now_ms + delay_ms, i))
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
            delays.send(name, delays.now_ms + delay_ms)
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
                due[name] = delays.now_ms + randomness.choice((5, 300, 2500, 8000, 25_000))
                delays.send(name, due[name])
                delays.advance(randomness.choice((0, 100, 900)))
                if i % 8 == 7:
                    delays.restart(how)
            delays.advance(40_000)
            left = delays.left()
            assert sorted(one.name for one in left) == sorted(due), how
            assert all(one.left_ms >= due[one.name] for one in left), how
