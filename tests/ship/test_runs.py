"""Random runs of broker and shipper with kills, power cuts and failing targets. `make ship` runs many more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ship.world import World

SINGLE_POINT_BEFORE_A_GAP = 37


@pytest.mark.parametrize(("seed", "steps"), [*((seed, 60) for seed in range(8)), (SINGLE_POINT_BEFORE_A_GAP, 120)])
def test_a_restore_to_any_time_equals_the_truth(seed: int, steps: int, tmp_path: Path) -> None:
    world = World(tmp_path, seed)
    try:
        world.run(steps)
    finally:
        world.close()
    assert world.counts["restored"]
