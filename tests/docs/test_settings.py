"""The tables of settings say what the code does. `wheelmq config keys [--part nameserver] [--ours]` prints each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from wheelmq.broker.schema import BROKER
from wheelmq.config import table
from wheelmq.config.schema import Schema
from wheelmq.nameserver.settings import NAME_SERVER

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations"
TEXT = (OPERATIONS / "settings.md").read_text()
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL))


def rows(section: str) -> str:
    return "".join(f"{line}\n" for line in SECTIONS[section].splitlines() if line.startswith("|"))


@pytest.mark.parametrize(("part", "schema"), [("broker", BROKER), ("name server", NAME_SERVER)])
def test_the_tables_are_the_code_s(part: str, schema: Schema) -> None:  # type: ignore[type-arg]
    assert rows(f"The {part}, by our names") == table.our_names(schema)
    assert rows(f"Apache's keys of the {part}") == table.apaches_keys(schema.keys.values(), schema)


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
