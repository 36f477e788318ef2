"""Each row of the page on bad input names tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = re.findall(
    r"^\| .+ \| .+ \| (.+) \|$", (ROOT / "docs" / "operations" / "bad-input.md").read_text(), re.MULTILINE
)[1:]


def test_there_are_rows() -> None:
    assert len(ROWS) > 20


@pytest.mark.parametrize("row", ROWS)
def test_what_a_row_names_is_there(row: str) -> None:
    named = re.findall(r"`(tests/[a-z_/]+\.py)` `(\w+)`", row)
    assert named
    for path, name in named:
        assert re.search(rf"^ *(async )?def {name}\(", (ROOT / path).read_text(), re.MULTILINE), (path, name)
