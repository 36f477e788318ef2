"""The table of the timer's settings says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from wheelmq.broker.settings import BrokerSettings
from wheelmq.broker.timer_settings import TIMER_SETTINGS, Treatment

PAGE = Path(__file__).parents[2] / "docs" / "operations" / "timer-settings.md"
TEXT = PAGE.read_text()


def test_the_table_is_the_code_s() -> None:
    rows = re.findall(r"^\| (\w+) \| (\S+) \| (honoured|no effect|refused) \| (.+) \|$", TEXT, re.MULTILINE)
    assert rows == [
        (one.name, one.default, one.treatment, f"`{one.ours}`" if one.ours else one.why) for one in TIMER_SETTINGS
    ]


def test_every_setting_of_the_timer_stands_here() -> None:
    ours = {name for name in BrokerSettings.__struct_fields__ if name.startswith("timer_")}
    named = {one.ours for one in TIMER_SETTINGS} | set(re.findall(r"^\| `(\w+)` \| \d+ \|", TEXT, re.MULTILINE))
    assert ours <= named
    assert {one.ours for one in TIMER_SETTINGS if one.treatment is Treatment.HONOURED} <= set(
        BrokerSettings.__struct_fields__
    )


def test_defaults_are_apaches_but_for_two() -> None:
    settings = BrokerSettings(store_path=Path())
    others = {
        one.name
        for one in TIMER_SETTINGS
        if one.treatment is Treatment.HONOURED and str(getattr(settings, one.ours)).lower() != one.default
    }
    assert others == {"recallMessageEnable", "timerFlushIntervalMs"}
    assert all(re.search(rf"^- \*\*{name}\*\* is ", TEXT, re.MULTILINE) for name in others)
