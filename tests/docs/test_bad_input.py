"""Each item of the page on bad input names tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operations" / "bad-input.md").read_text()
ITEMS = re.findall(r"^- (\*\*.+?)(?=^- |^$)", PAGE, re.MULTILINE | re.DOTALL)


def test_there_are_items() -> None:
    assert len(ITEMS) > 30


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item[:40])
def test_what_an_item_names_is_there(item: str) -> None:
    named = re.findall(r"`(tests/[a-z_/]+\.py)` `(\w+)`", item)
    assert named
    for path, name in named:
        assert re.search(rf"^ *(async )?def {name}\(", (ROOT / path).read_text(), re.MULTILINE), (path, name)
