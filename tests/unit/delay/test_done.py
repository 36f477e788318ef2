"""Bits by index, compared with a set."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from wheelmq.delay.done import SEGMENT_BITS, DoneBits, IndexBits
from wheelmq.formats.disk.origin import Origin, block_stream, origin_of, timer_origin

near_borders = st.sampled_from([0, SEGMENT_BITS, 2 * SEGMENT_BITS, 5 * SEGMENT_BITS]).flatmap(
    lambda border: st.integers(max(0, border - 20), border + 20)
)
indices = st.one_of(st.integers(0, 50), near_borders, st.integers(0, 4 * SEGMENT_BITS))
steps = st.one_of(
    st.tuples(st.just("add"), indices),
    st.tuples(st.just("update"), st.lists(indices, max_size=30)),
    st.tuples(st.just("range"), st.tuples(indices, st.integers(0, 300))),
    st.tuples(st.just("floor"), indices),
)


def array(values: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, np.int64)


@settings(max_examples=150, deadline=None)
@given(st.lists(steps, max_size=15), st.lists(indices, min_size=1, max_size=50))
def test_index_bits_behave_like_a_set(taken: list[tuple[str, object]], asked: list[int]) -> None:
    bits, model, floor = IndexBits(), set[int](), 0
    for step, value in taken:
        match step, value:
            case "add", int(index):
                assert bits.add(index) == (index not in model and index >= floor)
                model.add(index)
            case "update", list(several):
                bits.update(array(several))
                model.update(several)
            case "range", (int(first), int(count)):
                bits.update(np.arange(first, first + count))
                model.update(range(first, first + count))
            case "floor", int(index):
                bits.raise_floor(index)
                floor = max(floor, index)
        assert bits.floor >= floor
        expected = [index in model or index < floor for index in asked]
        assert bits.get(array(asked)).tolist() == expected
        assert [index in bits for index in asked] == expected
        first, stop = sorted((asked[0], asked[-1]))
        expected = [index in model or index < floor for index in range(first, min(stop, first + 300))]
        assert bits.between(first, min(stop, first + 300)).tolist() == expected
        end = max(model, default=0) + 100
        assert bits.count_unset(end) == max(0, end - floor - sum(index >= floor for index in model))


@settings(max_examples=100, deadline=None)
@given(st.lists(indices, max_size=30), indices, st.integers(0, 3 * SEGMENT_BITS), st.lists(indices, max_size=10))
def test_packed_bits_are_restored(first: list[int], floor: int, more: int, later: list[int]) -> None:
    bits = IndexBits()
    bits.update(array(first))
    bits.update(np.arange(SEGMENT_BITS - 10, SEGMENT_BITS + more))
    bits.raise_floor(floor)
    end = max(floor, *first, SEGMENT_BITS + more, 0) + 1
    copy = bits.copy()
    bits.update(array([end + 1, *later]))
    again = IndexBits()
    again.update(array(later))
    again.add_packed(*copy.packed(end))
    copy.update(array(later))
    asked = np.arange(6 * SEGMENT_BITS + 100)
    assert np.array_equal(again.get(asked), copy.get(asked))
    assert again.first_unset(1 << 40) == copy.first_unset(1 << 40)


def test_an_empty_update_sets_no_bit() -> None:
    bits = IndexBits()
    bits.update(array([]))
    assert bits.get(array([])).tolist() == []
    assert 0 not in bits


def test_full_segments_are_freed() -> None:
    bits = IndexBits()
    bits.update(np.arange(1, 3 * SEGMENT_BITS))
    assert bits.floor == 0  # 0 is not done yet
    assert bits.add(0)
    assert bits.floor == 3 * SEGMENT_BITS
    assert not bits._segments
    assert 3 * SEGMENT_BITS - 1 in bits and 3 * SEGMENT_BITS not in bits


def test_segments_after_one_with_a_hole_stay() -> None:
    bits = IndexBits()
    bits.update(np.arange(SEGMENT_BITS, 2 * SEGMENT_BITS))
    bits.update(np.arange(5, SEGMENT_BITS))
    assert bits.floor == 0
    bits.update(array([4, 3, 2, 1, 0, 0]))
    assert bits.floor == 2 * SEGMENT_BITS


def test_a_floor_inside_a_segment_moves_once_the_rest_is_set() -> None:
    bits = IndexBits()
    bits.raise_floor(100)
    bits.update(np.arange(100, SEGMENT_BITS))
    assert bits.floor == SEGMENT_BITS


def test_a_floor_raised_in_an_existing_segment_moves_once_the_rest_is_set() -> None:
    bits = IndexBits()
    bits.add(200)
    bits.raise_floor(100)
    bits.update(np.arange(100, SEGMENT_BITS))
    assert bits.floor == SEGMENT_BITS


def test_a_floor_raised_past_the_last_hole_frees_the_segments() -> None:
    bits = IndexBits()
    bits.update(np.arange(100, 2 * SEGMENT_BITS))
    bits.raise_floor(99)
    assert bits.floor == 99 and 99 not in bits
    bits.raise_floor(100)
    assert bits.floor == 2 * SEGMENT_BITS and not bits._segments


def test_raising_the_floor_frees_segments() -> None:
    bits = IndexBits()
    bits.update(array([5, SEGMENT_BITS + 5, 2 * SEGMENT_BITS + 5]))
    bits.raise_floor(2 * SEGMENT_BITS)
    assert list(bits._segments) == [2]
    bits.raise_floor(SEGMENT_BITS)  # the floor never falls
    assert bits.floor == 2 * SEGMENT_BITS


def test_an_ended_stream_has_every_bit_and_uses_no_memory() -> None:
    done = DoneBits()
    stream, origins = block_stream(7), origin_of(block_stream(7), 0) + np.array([0, 5, 1 << 30])
    done.update(origins[:1])
    done.end_stream(stream)
    assert done.get(origins).all() and origins[1] in done and not done.add(Origin(int(origins[2])))
    done.update(origins)
    done.update(np.repeat(origins, 10))
    made = done.copy()
    assert made.of(stream) is done.of(stream) and made.of(stream).copy()._segments == {}
    again = DoneBits()
    again.add_packed(done.packed({stream: 0}))
    assert again.streams() == [stream] and not again.get(origins).any()
    done.forget(stream)
    assert not done.get(origins).any() and made.get(origins).all()


def test_a_saved_copy_restores_the_bits() -> None:
    done, before, after = DoneBits(), timer_origin(1), timer_origin(2)
    done.add(before)
    saved = done.copy()
    done.add(after)
    done.restore(saved)
    assert before in done and after not in done
