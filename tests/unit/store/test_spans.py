"""Near records of one file are one span."""

from __future__ import annotations

import numpy as np

from wheelmq.store.spans import joined


def test_records_with_a_small_gap_in_one_file_are_joined() -> None:
    starts, stops = np.array([0, 110, 211, 990, 1000, 1005]), np.array([100, 201, 300, 1000, 1004, 1010])
    assert list(joined(starts, stops, 1000, 10)) == [(0, 201 + 99), (990, 1000), (1000, 1010)]
    assert list(joined(starts, stops, 1000, 9)) == [(0, 100), (110, 201), (211, 300), (990, 1000), (1000, 1010)]


def test_no_records_have_no_spans() -> None:
    none = np.empty(0, np.int64)
    assert list(joined(none, none, 1000)) == []
