"""The planted bugs still apply, and the simulation finds those that show soon. `make sim` plants them all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.planted.planting import SRC, names, plant, seeds_to_catch

SHOW_SOON = ("ack-before-write", "unit-dropped-on-roll")


@pytest.mark.parametrize("name", names())
def test_it_applies(name: str, tmp_path: Path) -> None:
    copy = plant(name, tmp_path)
    sources = [path.relative_to(SRC) for path in (SRC / "wheelmq").rglob("*.py")]
    assert [path for path in sources if (copy / path).read_bytes() != (SRC / path).read_bytes()]


@pytest.mark.parametrize("name", SHOW_SOON)
def test_it_is_found(name: str) -> None:
    assert seeds_to_catch(name, seeds_max=5) is not None
