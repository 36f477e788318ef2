"""A master and a replica of its blocks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.broker.block_pairs import Pair


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    for harness in (made.master, made.replica):
        if harness.is_running:
            harness.crash()
