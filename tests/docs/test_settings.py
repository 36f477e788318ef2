"""The lists of settings agree with the code. `wheelmq config keys [--part nameserver] [--ours]` prints the tables."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.docs.settings import LISTS, PAGE, SCHEMAS, apaches_keys, our_names, with_lists
from wheelmq.broker.schema import BROKER
from wheelmq.config import table
from wheelmq.config.schema import Schema

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations"


def test_the_lists_are_the_code_s() -> None:
    page = PAGE.read_text()
    assert len(LISTS.findall(page)) == 4
    assert with_lists(page) == page, "run python -m tests.docs.settings"


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_every_row_is_on_the_page(schema: Schema[Any]) -> None:
    ours, keys = our_names(schema), apaches_keys(schema)
    assert all(f"- **`{key}`**" in ours for names in schema.groups.values() for key in names)
    assert all(re.search(rf"^\| {name} \||`{name}`", keys, re.MULTILINE) for name in schema.keys)


def test_differences_of_the_timer_are_told() -> None:
    """Each default that is not Apache's."""
    told = (OPERATIONS / "timer-settings.md").read_text()
    others = {
        key.name
        for key in BROKER.apaches().values()
        if (key.name.startswith("timer") or key.ours.startswith(("timer", "recall")))
        and table.default(BROKER, key.ours) != key.default
    }
    assert others == {"recallMessageEnable", "timerFlushIntervalMs"}
    assert all(re.search(rf"^- \*\*{name}\*\* is ", told, re.MULTILINE) for name in others)
