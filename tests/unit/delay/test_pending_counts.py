"""Counts of delayed messages by the row of their real queue."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from wheelmq.delay import intake
from wheelmq.delay.pending_counts import PendingCounts
from wheelmq.formats.disk.paths import StorePaths
from wheelmq.store.queues import QueueTable
from wheelmq.testing.disk import SimulatedDisk

QUEUES = 200


@pytest.fixture
def queues(disk: SimulatedDisk, tmp_path: Path) -> QueueTable:
    return QueueTable(disk, StorePaths(tmp_path), 20_000)


@pytest.fixture
def counts(queues: QueueTable) -> PendingCounts:
    """Counts that were created before the queues."""
    made = PendingCounts(queues)
    for queue_id in range(QUEUES):
        queues.row("T", queue_id)
    return made


def test_new_queues_get_rows_and_keep_the_counts(queues: QueueTable) -> None:
    counts = PendingCounts(queues)
    queues.row("T", 0)
    counts.park(0)
    for queue_id in range(QUEUES):
        queues.row("T", queue_id)
    counts.park(QUEUES - 1)
    assert np.flatnonzero(counts.by_queue).tolist() == [0, QUEUES - 1]
    assert counts.table[:, intake.PARKED].sum() == 2 and not counts.table[:, intake.SETTLED].any()


def test_messages_without_a_real_queue_do_not_count(counts: PendingCounts) -> None:
    counts.park(-1)
    counts.add(np.array([-1, 3, 3, 150]))
    assert counts.by_queue.sum() == 3 and counts.by_queue[[3, 150]].tolist() == [2, 1]


def test_recovery_adds_numbers_to_counts(counts: PendingCounts) -> None:
    counts.add(np.array([1]))
    counts.add_numbers(np.arange(QUEUES))
    assert counts.by_queue[:QUEUES].tolist() == [0, 2, *range(2, QUEUES)]
    assert not counts.table[:, intake.PARKED].any()


def test_a_corrected_number_is_not_negative(counts: PendingCounts) -> None:
    counts.add_numbers(np.array([5, 5, 5]))
    counts.correct(np.array([-7, -2, 3]))
    assert counts.by_queue[:3].tolist() == [0, 3, 8]
