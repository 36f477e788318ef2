"""What we write stays what it was, with kernels and without."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.ours import EXPECTED, live, text


@pytest.mark.usefixtures("kernels")
def test_the_bytes_of_a_fixed_life(tmp_path: Path) -> None:
    assert text(live(tmp_path / "store")) == EXPECTED.read_text()
