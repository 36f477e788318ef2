"""The key index, compared with a dictionary."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wheelmq.delay.done import DoneBits
from wheelmq.delay.keys import KeyIndex, ShardedKeys
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
def test_the_key_index_behaves_like_a_dict_of_pending_messages(
    steps: list[tuple[list[int], set[int]]], capacity: int
) -> None:
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
def test_all_messages_of_one_hash_are_found(key_hash: int) -> None:
    keys = KeyIndex(4)
    add(keys, [(key_hash, i) for i in (5, 3, 9)], DoneBits())
    assert keys.find(key_hash) == [3, 5, 9]


def test_a_message_without_a_key_is_not_kept() -> None:
    keys = KeyIndex(4)
    add(keys, [(0, 1), (0, 2)], DoneBits())
    assert keys.count == 0 and keys.find(0) == []


def test_the_key_index_stays_small_as_messages_settle() -> None:
    """Many messages pass through the index, 100 at a time. They must not make it large."""
    keys, done = KeyIndex(1 << 8), DoneBits()
    for first in range(0, 20_000, 100):
        add(keys, [(i + 1, timer_origin(i)) for i in range(first, first + 100)], done)
        done.update(timer_origin(first) + np.arange(100))
    assert len(keys._hashes) <= 1 << 10
    assert keys.find(20_000) == [timer_origin(19_999)]


def test_the_rows_of_settled_messages_are_dropped() -> None:
    """One in ten of 100,000 messages still waits. The others must leave few rows and little memory."""
    keys, done, indices = ShardedKeys(), DoneBits(), np.arange(100_000)
    keys.add(indices * 7 + 1, timer_origin(0) + indices, done)
    assert keys.count == 100_000
    largest = sum(len(shard._hashes) for shard in keys._shards)
    for first in range(0, 90_000, 500):
        done.update(timer_origin(first) + np.arange(500))
        keys.sweep(500, done)
    assert 10_000 <= keys.count <= 18_000
    assert sum(len(shard._hashes) for shard in keys._shards) < largest // 3
    assert [keys.find(i * 7 + 1) for i in range(99_900, 100_000)] == [[timer_origin(i)] for i in range(99_900, 100_000)]
    keys.clear()
    assert keys.count == 0 and keys.find(99_999 * 7 + 1) == []


def test_an_empty_table_can_be_swept() -> None:
    keys = ShardedKeys()
    keys.sweep(10, DoneBits())
    assert keys.count == 0


@given(st.lists(st.tuples(hashes, st.booleans()), max_size=40))
@settings(max_examples=50, deadline=None)
def test_sharded_keys_behave_like_a_dict(pairs: list[tuple[int, bool]]) -> None:
    keys, done = ShardedKeys(), DoneBits()
    origins = np.arange(len(pairs)) + timer_origin(0)
    keys.add(np.array([key_hash for key_hash, _ in pairs], np.int64), origins, done)
    done.update(origins[[is_done for _, is_done in pairs]] if pairs else origins)
    keys.sweep(1000 * len(pairs), done)
    for key_hash, _ in pairs:
        waiting = [
            i
            for i, (other, is_done) in zip(origins.tolist(), pairs, strict=True)
            if other == key_hash != 0 and not is_done
        ]
        assert [i for i in keys.find(key_hash) if i not in done] == waiting


def test_a_capacity_must_be_a_power_of_two() -> None:
    with pytest.raises(AssertionError):
        KeyIndex(1000)
