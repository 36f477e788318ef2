"""Details of timer log units: compiled and plain code agree, and no flipped bit passes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wheelmq.delay.refs import LONG_DELAY_MS
from wheelmq.delay.timer import details, rows
from wheelmq.formats.disk.origin import INDEX_MASK, timer_origin
from wheelmq.formats.disk.timer import MAGIC_DELETE, MAGIC_ROLL, TIMER_UNIT
from wheelmq.formats.disk.timer_detail import OFFSET_MASK, read_details
from wheelmq.formats.disk.turn_row import TURN_ROW
from wheelmq.formats.kernels import jit

WRITE_MS = 1_800_000_000_000
CHECKED = ("write_ms", "delay_ms", "record_position", "record_size", "topic_hash", "reserved")

turn_rows = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 60), st.integers(0, 1 << 20)),  # queue offset
        st.integers(-3, 400).map(lambda slot: WRITE_MS + 1000 * slot),
        st.integers(-2000, 3000),  # due time, relative to the slot
        st.sampled_from([1, 1 | MAGIC_ROLL, 1 | MAGIC_DELETE]),
        st.sampled_from([LONG_DELAY_MS, LONG_DELAY_MS + 1]),
        st.integers(0, 1 << 50),
        st.integers(-(1 << 31), (1 << 31) - 1),
    ),
    max_size=30,
    unique_by=lambda row: row[0],
)


def build_rows(cases: list[tuple[int, ...]]) -> npt.NDArray[Any]:
    made = np.zeros(len(cases), TURN_ROW)
    for row, (offset, slot_ms, after_ms, magic, delay_ms, position, topic_hash) in zip(made, cases, strict=True):
        row["origin"], row["slot_ms"], row["fire_ms"] = timer_origin(offset), slot_ms, slot_ms + after_ms
        row["magic"], row["delay_ms"], row["position"], row["size"] = magic, delay_ms, position, 100 + offset % 7
        row["topic_hash"] = topic_hash
    made["order"] = np.argsort(made["origin"])
    return made


@pytest.fixture(params=["compiled", "plain"])
def _either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "MODE", request.param)


@settings(max_examples=60, deadline=None)
@given(cases=turn_rows)
def test_units_have_the_details_of_their_rows(cases: list[tuple[int, ...]]) -> None:
    made = build_rows(cases)
    units, slots_ms = rows.units_of(made, WRITE_MS)
    made = made[made["order"]]
    found = read_details(units)
    assert found.is_known.all()
    assert found.queue_offsets.tolist() == (made["origin"] & INDEX_MASK).tolist()
    assert found.is_long.tolist() == (made["delay_ms"] > LONG_DELAY_MS).tolist()
    after_ms = made["fire_ms"] - slots_ms
    is_told = (after_ms >= 1) & (after_ms < 1024) & (made["magic"] & MAGIC_ROLL == 0)
    assert found.due_ms.tolist() == np.where(is_told, made["fire_ms"], 0).tolist()


@pytest.mark.parametrize("name", CHECKED)
def test_every_flipped_bit_of_a_detail_is_detected(name: str) -> None:
    units, _ = rows.units_of(build_rows([(77, WRITE_MS + 5000, 13, 1, 9000, 1 << 40, -5)]), WRITE_MS)
    assert read_details(units).is_known.all()
    size = TIMER_UNIT.dtype[name].itemsize
    flipped = np.repeat(units, 8 * size)
    raw = flipped.view(np.uint8).reshape(-1, TIMER_UNIT.size)
    for bit in range(8 * size):
        raw[bit, TIMER_UNIT.position_of(name) + bit // 8] ^= 1 << bit % 8
    assert not read_details(flipped).is_known.any()
    assert not read_details(np.zeros(1, TIMER_UNIT.dtype)).is_known.any()


def mixed(cases: list[tuple[int, ...]], stripped: set[int]) -> npt.NDArray[Any]:
    """Units of the rows. Some have no detail."""
    units, _ = rows.units_of(build_rows(cases), WRITE_MS)
    units["reserved"][[i for i in range(len(units)) if i in stripped]] = 0
    return units


@settings(max_examples=60, deadline=None)
@given(cases=turn_rows, stripped=st.sets(st.integers(0, 29)), first=st.integers(0, 40), count=st.integers(0, 40))
def test_kernel_and_plain_code_fill_due_times_alike(
    cases: list[tuple[int, ...]], stripped: set[int], first: int, count: int
) -> None:
    units = mixed(cases, stripped)
    expected = (np.zeros(count, np.int64), np.zeros(count, np.int64))
    found = read_details(units)
    for i, offset in enumerate(found.queue_offsets.tolist()):
        is_due = found.is_known[i] and found.due_ms[i] > 0 and not units["magic"][i] & MAGIC_DELETE
        if is_due and first <= offset < first + count:
            expected[0][offset - first] = found.due_ms[i]
            expected[1][offset - first] = units["topic_hash"][i]
    for mode in ("compiled", "plain"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(jit, "MODE", mode)
            columns = (np.zeros(count, np.int64), np.zeros(count, np.int64))
            details.fill_due_times(units, first, *columns)
            assert [column.tolist() for column in columns] == [column.tolist() for column in expected]


@settings(max_examples=60, deadline=None)
@given(cases=turn_rows, stripped=st.sets(st.integers(0, 29)), seed=st.integers(0, 1 << 30), again=st.booleans())
def test_kernel_and_plain_code_fill_slots_alike(
    cases: list[tuple[int, ...]], stripped: set[int], seed: int, again: bool
) -> None:
    """The request has some messages that units name, and some others. Units come in any order."""
    units = mixed(cases, stripped)
    random = np.random.default_rng(seed)
    units = random.permutation(np.tile(units, 2) if again else units).astype(TIMER_UNIT.dtype)
    named = units["reserved"].astype(np.int64) & OFFSET_MASK
    offsets = np.unique(np.concatenate((named[: len(named) // 2 + 1], random.integers(0, 80, 5))))
    by_offset = {case[0]: case for case in cases}
    columns = [by_offset.get(offset, (0,) * 7) for offset in offsets.tolist()]
    positions = np.array([case[5] for case in columns], np.int64)
    sizes = np.array([100 + case[0] % 7 + int(random.integers(0, 4) == 0) for case in columns], np.int64)
    expected = np.zeros(len(offsets), np.int64)
    known = read_details(units)
    for i in range(len(units)):
        k = int(np.searchsorted(offsets, known.queue_offsets[i]))
        is_asked = k < len(offsets) and offsets[k] == known.queue_offsets[i]
        if is_asked and known.is_known[i] and not units["magic"][i] & MAGIC_DELETE:
            is_same = units["record_position"][i] == positions[k] and units["record_size"][i] == sizes[k]
            expected[k] = units["write_ms"][i] + units["delay_ms"][i] if is_same else -1
    for mode in ("compiled", "plain"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(jit, "MODE", mode)
            slots_ms = np.zeros(len(offsets), np.int64)
            details.fill_slots(units, offsets, positions, sizes, slots_ms)
            assert slots_ms.tolist() == expected.tolist()
