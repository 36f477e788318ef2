"""The planted bugs still apply, and the simulation soon finds three of them. `make sim` plants them all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.planted.planting import SRC, names, plant, seeds_to_catch

SHOW_SOON = ("ack-before-write", "unit-dropped-on-roll", "cluster/slave-releases")


@pytest.mark.parametrize("name", names())
def test_each_patch_applies_and_changes_a_source_file(name: str, tmp_path: Path) -> None:
    copy = plant(name, tmp_path)
    sources = [path.relative_to(SRC) for path in (SRC / "wheelmq").rglob("*.py")]
    assert [path for path in sources if (copy / path).read_bytes() != (SRC / path).read_bytes()]


@pytest.mark.parametrize("name", SHOW_SOON)
def test_the_simulation_finds_a_planted_bug(name: str) -> None:
    assert seeds_to_catch(name, seeds_max=5) is not None
