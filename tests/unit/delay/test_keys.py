"""The key index, against a dict."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wheelmq.delay.done import DoneBits
from wheelmq.delay.keys import KeyIndex
from wheelmq.formats.disk.origin import timer_origin

hashes = st.one_of(
    st.integers(-5, 5),
    st.sampled_from([-(1 << 63), (1 << 63) - 1, -1, 1 << 12, -(1 << 12), 1 << 62]),
    st.integers(-(1 << 63), (1 << 63) - 1),
)


def add(index: KeyIndex, pairs: list[tuple[int, int]], done: DoneBits) -> None:
    index.add(np.array([h for h, _ in pairs], np.int64), np.array([i for _, i in pairs], np.int64), done)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.lists(hashes, max_size=8), st.sets(st.integers(0, 60), max_size=10)), max_size=12),
    st.sampled_from([2, 4, 16]),
)
def test_it_is_a_dict_of_what_is_pending(steps: list[tuple[list[int], set[int]]], capacity: int) -> None:
    keys, done, model, added = KeyIndex(capacity), DoneBits(), dict[int, set[int]](), 0
    for several, settled in steps:
        pairs = [(key_hash, timer_origin(added + i)) for i, key_hash in enumerate(several)]
        add(keys, pairs, done)
        added += len(several)
        for key_hash, index in pairs:
            if key_hash:
                model.setdefault(key_hash, set()).add(index)
        for index in settled:
            if index < added:
                done.add(timer_origin(index))
        for key_hash, known in model.items():
            found = keys.find(key_hash)
            assert found == sorted(set(found))
            assert {i for i in known if i not in done} <= set(found) <= known
        assert keys.find(0x7777777) == []


@pytest.mark.parametrize("key_hash", [1, -1, -(1 << 63), (1 << 63) - 1])
def test_several_of_one_hash(key_hash: int) -> None:
    keys = KeyIndex(4)
    add(keys, [(key_hash, i) for i in (5, 3, 9)], DoneBits())
    assert keys.find(key_hash) == [3, 5, 9]


def test_no_key_is_not_kept() -> None:
    keys = KeyIndex(4)
    add(keys, [(0, 1), (0, 2)], DoneBits())
    assert keys.count == 0 and keys.find(0) == []


def test_it_follows_what_is_pending() -> None:
    """A million messages through it, a hundred at a time, must not make it large."""
    keys, done = KeyIndex(1 << 8), DoneBits()
    for first in range(0, 20_000, 100):
        add(keys, [(i + 1, timer_origin(i)) for i in range(first, first + 100)], done)
        done.update(timer_origin(first) + np.arange(100))
    assert len(keys._hashes) <= 1 << 10
    assert keys.find(20_000) == [timer_origin(19_999)]


def test_a_capacity_that_is_no_power_of_two() -> None:
    with pytest.raises(AssertionError):
        KeyIndex(1000)
