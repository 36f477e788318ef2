"""Armed references, compared with a sorted list."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from wheelmq.delay import refs as ref
from wheelmq.delay.armed import FEW, PART_COST, Armed, cost_of
from wheelmq.delay.done import DoneBits
from wheelmq.delay.refs import Refs
from wheelmq.formats.disk.origin import TIMER_STREAM, level_origin, origin_index, timer_origin
from wheelmq.formats.units import Millis

ONE = 1 + PART_COST
"""The cost of taking one reference alone."""


def refs(*pairs: tuple[int, int]) -> Refs:
    """Make references for pairs of fire time and index, sorted by fire time."""
    made = ref.make(len(pairs))
    made[:, ref.FIRE_MS] = [fire for fire, _ in pairs]
    made[:, ref.ORIGIN] = [timer_origin(index) for _, index in pairs]
    made[:, ref.SIZE] = [100 + index for _, index in pairs]
    return ref.by_fire_time(made)


def pairs(batches: list[Refs]) -> list[tuple[int, int]]:
    return [(int(one[ref.FIRE_MS]), origin_index(int(one[ref.ORIGIN]))) for batch in batches for one in batch]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("arm"), st.lists(st.tuples(st.integers(0, 60), st.integers(0, 80)), max_size=12)),
            st.tuples(st.just("take"), st.tuples(st.integers(0, 70), st.integers(1, 20))),
            st.tuples(st.just("give back"), st.just(None)),
        ),
        max_size=25,
    )
)
def test_armed_references_behave_like_a_sorted_list(steps: list[tuple[str, object]]) -> None:
    armed, waiting, seen = Armed(), list[tuple[int, int]](), set[int]()
    taken: list[Refs] = []
    for step, value in steps:
        match step, value:
            case "arm", list(offered):
                unique = {index: (fire, index) for fire, index in offered}
                fresh = [pair for pair in unique.values() if pair[1] not in seen]
                assert sorted(pairs([armed.arm(refs(*unique.values()))])) == sorted(fresh)
                waiting += fresh
                seen |= {index for _, index in fresh}
            case "take", (int(now_ms), int(count_max)):
                taken = armed.take_due(Millis(now_ms), count_max * ONE)
                got = pairs(taken)
                due = [pair for pair in waiting if pair[0] <= now_ms]
                assert set(got) <= set(due) and len(set(got)) == len(got)
                assert len(got) == min(count_max, len(due))
                waiting = [pair for pair in waiting if pair not in got]
            case "give back", _:
                for batch in taken:
                    armed.requeue(batch)
                waiting += pairs(taken)
                taken = []
        assert armed.count == len(waiting)
        assert armed.bytes == sum(100 + index for _, index in waiting)
        assert armed.next_fire_ms() == min((fire for fire, _ in waiting), default=None)
        asked = np.arange(90)
        assert armed.was_armed(asked + timer_origin(0)).tolist() == [index in seen for index in asked.tolist()]


def test_the_earliest_references_are_taken_first() -> None:
    armed = Armed()
    armed.arm(refs((30, 1), (40, 2)))
    armed.arm(refs((10, 3), (20, 4)))
    assert pairs(armed.take_due(Millis(100), 2 * ONE)) == [(10, 3), (20, 4)]
    assert pairs(armed.take_due(Millis(100), 9 * ONE)) == [(30, 1), (40, 2)]


def test_references_of_many_instants_cost_more() -> None:
    """References of one millisecond form one part. At the same cost, fewer with many fire times are taken."""
    count = 40 * FEW
    at_once, spread = Armed(), Armed()
    at_once.arm(refs(*((10, i) for i in range(count))))
    spread.arm(refs(*((i, i) for i in range(count))))
    cost = count + PART_COST
    assert len(pairs(at_once.take_due(Millis(count), cost))) == count
    taken = spread.take_due(Millis(count), cost)
    assert len(pairs(taken)) == cost // ONE and sum(map(cost_of, taken)) <= cost
    assert len(pairs(spread.take_due(Millis(count), 1))) == 1, "it always goes on"


def test_the_rest_of_a_batch_keeps_its_order_among_equals() -> None:
    armed = Armed()
    armed.arm(refs((10, 1), (10, 2), (10, 3)))
    armed.arm(refs((10, 4)))
    assert pairs(armed.take_due(Millis(10), 2 * ONE)) == [(10, 1), (10, 2)]
    assert pairs(armed.take_due(Millis(10), 9 * ONE)) == [(10, 3), (10, 4)]


def test_forgotten_references_count_as_armed() -> None:
    armed, done = Armed(), DoneBits()
    armed.arm(refs((1, 7)))
    done.of(TIMER_STREAM).raise_floor(1 << 16)
    armed.forget_settled(done)
    asked = [timer_origin(5), timer_origin(1 << 16), level_origin(1, 5)]
    assert armed.was_armed(np.array(asked)).tolist() == [True, False, False]
    assert len(armed.arm(refs((1, 5)))) == 0


def test_requeuing_no_reference_changes_nothing() -> None:
    armed = Armed()
    armed.requeue(ref.make(0))
    assert armed.next_fire_ms() is None


def test_held_references_wait_for_their_release() -> None:
    armed = Armed(held_from=timer_origin(0))
    of_level = refs((20, 1), (30, 2))
    of_level[:, ref.ORIGIN] = [level_origin(1, index) for index in (1, 2)]
    armed.arm(ref.by_fire_time(np.concatenate((refs((10, 1), (25, 2)), of_level))))
    armed.arm(refs((5, 3)))
    assert (armed.next_fire_ms(), armed.earliest_ms(), armed.count) == (20, 5, 5)
    assert pairs(armed.take_due(Millis(99), 10 * ONE)) == [(20, 1), (30, 2)]
    assert (armed.next_fire_ms(), armed.earliest_ms(), armed.count) == (None, 5, 3)
    assert len(armed.arm(refs((5, 3)))) == 0
    armed.release_held()
    armed.arm(refs((7, 4)))
    assert pairs(armed.take_due(Millis(99), 10 * ONE)) == [(5, 3), (7, 4), (10, 1), (25, 2)]
    assert (armed.earliest_ms(), armed.count) == (None, 0)
