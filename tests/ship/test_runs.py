"""Random runs of broker and shipper with kills, power cuts and failing targets. `make ship` runs many more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ship.world import World


@pytest.mark.parametrize("seed", range(12))
def test_a_restore_to_any_time_equals_the_truth(seed: int, tmp_path: Path) -> None:
    world = World(tmp_path, seed)
    try:
        world.run(60)
    finally:
        world.close()
    assert world.counts["restored"]
