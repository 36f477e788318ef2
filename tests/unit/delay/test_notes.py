"""Notes of messages that are not indexed yet, compared with a list."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wheelmq.delay import notes as notes_module
from wheelmq.delay import refs as ref
from wheelmq.delay.notes import NEAR_MS, Notes
from wheelmq.delay.refs import Refs
from wheelmq.formats.units import Millis

LEAD_MS = 5000


def refs(first: int, fires: list[int]) -> Refs:
    """Make references with queue offsets from `first` on."""
    made = ref.make(len(fires))
    made[:, ref.FIRE_MS] = fires
    made[:, ref.ORIGIN] = np.arange(first, first + len(fires))
    return made


def pairs(taken: Refs | None) -> list[tuple[int, int]]:
    return [] if taken is None else [(int(one[ref.FIRE_MS]), int(one[ref.ORIGIN])) for one in taken]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.lists(st.integers(0, 9000), max_size=10)),
            st.tuples(st.just("near"), st.integers(0, 9000)),
            st.tuples(st.just("drop"), st.integers(0, 60)),
        ),
        max_size=20,
    ),
    st.integers(1, 5),
)
def test_notes_behave_like_a_list(steps: list[tuple[str, object]], chunk_rows: int) -> None:
    kept = notes_module._CHUNK_ROWS
    notes_module._CHUNK_ROWS = chunk_rows  # type: ignore[misc]
    try:
        _compare(steps)
    finally:
        notes_module._CHUNK_ROWS = kept  # type: ignore[misc]


def _compare(steps: list[tuple[str, object]]) -> None:
    notes, model, added = Notes(LEAD_MS), list[tuple[int, int]](), 0
    for step, value in steps:
        match step, value:
            case "add", list(fires):
                notes.add(refs(added, fires), Millis(0))
                model += [(fire, added + i) for i, fire in enumerate(fires)]
                added += len(fires)
            case "near", int(now_ms):
                near = sorted(pair for pair in model if pair[0] <= now_ms + NEAR_MS)
                assert pairs(notes.take_near(Millis(now_ms))) == near
                model = [pair for pair in model if pair not in near]
            case "drop", int(index):
                notes.drop_below(index)
                model = [pair for pair in model if pair[1] >= index]
        assert notes.count == len(model)
        least = min((fire for fire, _ in model), default=None)
        assert least is None or notes.next_fire_ms == least
        if least is None:
            assert notes.take_near(Millis(1 << 40)) is None


def test_full_notes_take_only_messages_due_within_the_lead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes_module, "NOTES_MAX", 10)
    notes = Notes(LEAD_MS)
    notes.add(refs(0, [50_000] * 10), Millis(0))
    notes.add(refs(10, [60_000, LEAD_MS, LEAD_MS + 1, 70_000]), Millis(0))
    assert notes.count == 11  # above the limit, only messages due within the lead are noted
    assert notes.passed_over == 3
    assert pairs(notes.take_near(Millis(LEAD_MS - NEAR_MS))) == [(LEAD_MS, 11)]


def test_notes_take_the_soonest_of_too_many_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes_module, "NOTES_MAX", 3)
    notes = Notes(LEAD_MS)
    notes.add(refs(0, [90_000, 70_000, LEAD_MS, 60_000, 80_000]), Millis(0))
    assert (notes.count, notes.passed_over) == (3, 2)
    assert pairs(notes.take_near(Millis(100_000))) == [(LEAD_MS, 2), (60_000, 3), (70_000, 1)]


def test_notes_copy_the_references() -> None:
    notes, given_ = Notes(LEAD_MS), refs(0, [100])
    notes.add(given_, Millis(0))
    given_[:] = 0
    assert pairs(notes.take_near(Millis(0))) == [(100, 0)]
