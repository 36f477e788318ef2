"""The figures of a burst, and of the bystanders that fell due during its release."""

from __future__ import annotations

import numpy as np

from bench.deliveries import Deliveries
from bench.instant import OTHER_TOPIC, TOPIC, Burst, _bystanders, _figures

DUE_MS = 1_000_000


def deliveries(*rows: tuple[int, int, int]) -> Deliveries:
    """Make deliveries of rows (number, deliver_ms, store_ms) whose times are relative to DUE_MS."""
    number, deliver_ms, store_ms = np.array(rows, np.int64).T
    nothing = np.full(len(rows), -1, np.int64)
    return Deliveries(store_ms + DUE_MS, number, deliver_ms + DUE_MS, nothing, nothing, np.zeros((0, 32), np.uint8))


BURST = Burst(DUE_MS, {"sent": 4, "good": 3, "seconds": 2.0}, np.array([1, 1, 1, 0], np.uint8), 5.0)
FOUND = deliveries((0, 0, 10), (-1, -500, -490), (1, 0, 30), (-1, 40, 240), (1, 0, 100))


def test_the_figures_of_a_burst() -> None:
    figures = _figures(BURST, FOUND)
    assert figures["first_ms"] == 10 and figures["last_ms"] == 100
    assert (figures["lost"], figures["twice"], figures["early"], figures["refused"]) == (1, 1, 0, 1)


def test_the_figures_of_messages_due_around_a_burst() -> None:
    other = deliveries((-1, -2500, -2400), (-1, -1000, -999), (-1, 0, 7), (-1, 100, 103), (-1, 101, 191))
    figures = _bystanders(BURST, FOUND, other, {OTHER_TOPIC: {"good": 6}, TOPIC: {"good": 2}})
    assert (figures["p50_other_ms"], figures["max_other_ms"]) == (5, 7)
    assert figures["max_other_around_ms"] == 90
    assert (figures["max_same_ms"], figures["p50_same_around_ms"]) == (200, 105)
    assert (figures["bystanders_lost"], figures["bystanders_early"]) == (1, 0)
