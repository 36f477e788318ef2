"""The ring of due references: buckets of one millisecond, and their fair shares of each append."""

from __future__ import annotations

import numpy as np
import pytest

from wheelmq.delay import refs as ref
from wheelmq.delay import ring
from wheelmq.delay.refs import Refs
from wheelmq.delay.ring import Ring


def due_at(*times_ms: int, first: int = 0) -> Refs:
    """Return references that fire at these times, with ascending origins."""
    made = ref.make(len(times_ms))
    made[:, ref.FIRE_MS] = times_ms
    made[:, ref.ORIGIN] = first + np.arange(len(times_ms))
    return made


def shares(parts: list[Refs]) -> list[tuple[int, int]]:
    """Return fire time and length of each part."""
    return [(int(part[0, ref.FIRE_MS]), len(part)) for part in parts]


@pytest.fixture(autouse=True)
def quantum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an append have 16 references, and a bucket at least 4 of them."""
    monkeypatch.setattr(ring, "QUANTUM", 16)
    monkeypatch.setattr(ring, "SHARES_MAX", 4)
    monkeypatch.setattr(ring, "BURST", 100)


def test_an_empty_ring_has_nothing() -> None:
    empty = Ring()
    assert (len(empty), empty.count, empty.earliest_ms(), empty.late_ms(99)) == (0, 0, None, 0)
    assert empty.take() == [] and not empty.has_burst and empty.room == ring.RING_MAX


def test_references_of_one_millisecond_share_a_bucket() -> None:
    one = Ring()
    one.put(due_at(5, 5, 6))
    one.put(due_at(5, first=3))
    assert (len(one), one.count, one.earliest_ms()) == (2, 4, 5)
    assert one.room == ring.RING_MAX - 2
    parts = one.take()
    assert shares(parts) == [(5, 2), (5, 1), (6, 1)]
    assert np.concatenate(parts)[:, ref.ORIGIN].tolist() == [0, 1, 3, 2], "in the order in which they were put"
    assert (len(one), one.count, one.earliest_ms()) == (0, 0, None)


def test_a_large_bucket_leaves_room_for_the_others() -> None:
    one = Ring()
    one.put(due_at(*[1] * 50, 2, 3))
    assert shares(one.take()) == [(1, 5), (2, 1), (3, 1), (1, 9)], "the first bucket also uses the remaining room"
    assert one.count == 36


def test_buckets_take_turns() -> None:
    one = Ring()
    one.put(due_at(*(time_ms for time_ms in range(6) for _ in range(8))))
    assert [shares(one.take()) for _ in range(3)] == [
        [(0, 4), (1, 4), (2, 4), (3, 4)],
        [(4, 4), (5, 4), (0, 4), (1, 4)],
        [(2, 4), (3, 4), (4, 4), (5, 4)],
    ]
    assert one.count == 0 and len(one) == 0


def test_a_failed_append_is_taken_again_in_the_same_order() -> None:
    one = Ring()
    one.put(due_at(*[1] * 20, *[2] * 20))
    parts = one.take()
    one.put_back(parts)
    assert one.count == 40
    origins = np.concatenate([part for _ in range(3) for part in one.take()])
    assert one.count == 0
    for time_ms, first in ((1, 0), (2, 20)):
        mine = origins[origins[:, ref.FIRE_MS] == time_ms]
        assert mine[:, ref.ORIGIN].tolist() == list(range(first, first + 20))


def test_a_part_returns_to_a_ring_that_has_no_bucket_for_it() -> None:
    one = Ring()
    one.put(due_at(7))
    parts = one.take()
    assert len(one) == 0
    one.put_back(parts)
    assert (len(one), one.count, one.earliest_ms()) == (1, 1, 7)


def test_an_append_is_larger_in_a_burst_and_smaller_by_halvings() -> None:
    one = Ring()
    one.put(due_at(*[1] * 100))
    assert one.has_burst
    assert shares(one.take()) == [(1, 16 * ring.BURST_QUANTA)]
    assert not one.has_burst
    assert [shares(one.take(halvings)) for halvings in (0, 1, 4, 9)] == [[(1, 16)], [(1, 8)], [(1, 1)], [(1, 1)]]


def test_only_a_long_ring_is_late() -> None:
    one = Ring()
    one.put(due_at(10, 11, 12, 13))
    assert one.late_ms(50) == 0
    one.put(due_at(14))
    assert one.late_ms(50) == 40
