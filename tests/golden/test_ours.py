"""The files of our broker keep their bytes, with kernels and without."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.ours import EXPECTED, live, text


@pytest.mark.usefixtures("kernels")
def test_a_fixed_scenario_writes_the_expected_bytes(tmp_path: Path) -> None:
    assert text(live(tmp_path / "store")) == EXPECTED.read_text()
