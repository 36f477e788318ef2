"""Pending messages are found by done bits and blanks, in queues and in blocks."""

from __future__ import annotations

import numpy as np
import pytest

from wheelmq.delay.done import IndexBits
from wheelmq.delay.pending_scan import are_pending, pending_chunks
from wheelmq.formats.disk.block import BLOCK_UNIT
from wheelmq.formats.disk.queue_unit import BLANK_SIZE, QUEUE_UNIT


@pytest.fixture
def done() -> IndexBits:
    bits = IndexBits()
    bits.update(np.array([4, 6]))
    bits.raise_floor(2)
    return bits


@pytest.mark.parametrize(("dtype", "blank_size"), [(QUEUE_UNIT.dtype, BLANK_SIZE), (BLOCK_UNIT.dtype, 0)])
def test_settled_messages_and_blanks_are_not_pending(done: IndexBits, dtype: np.dtype, blank_size: int) -> None:
    units = np.zeros(7, dtype)
    units["size"] = 100
    units["size"][2] = blank_size
    assert are_pending(done, 1, units).tolist() == [False, True, False, False, True, False, True]


def test_chunks_give_indices_and_units_up_to_the_stop(done: IndexBits) -> None:
    units = np.zeros(9, QUEUE_UNIT.dtype)
    units["size"] = np.arange(101, 110)
    taken = iter((units[:3], units[3:7], units[7:]))
    found = list(pending_chunks(done, taken, 1, 8))
    assert [indices.tolist() for indices, _ in found] == [[2, 3], [5, 7]]
    assert [mine["size"].tolist() for _, mine in found] == [[102, 103], [105, 107]]
    assert len(next(taken)) == 2  # no chunk after the stop is read
    assert [len(indices) for indices, _ in pending_chunks(done, [units], 9, 5)] == [0]
