"""A setting is declared once, and its names, bounds, default and text are derived from its field."""

from __future__ import annotations

from typing import Annotated

import msgspec
import pytest

from wheelmq.config.keys import Kind, honoured, no_effect
from wheelmq.config.schema import Given, Schema, by_name
from wheelmq.config.setting import Setting, SettingsTable, SettingsTables, declared
from wheelmq.config.sources import read_pairs

Small = Annotated[int, msgspec.Meta(ge=1, le=9)]


class Oven(SettingsTable, kw_only=True):
    heat: Annotated[Small, Setting("oven_heat", "ovenHeat", mutable=True)] = 3
    """How hot
    it is."""
    door: Annotated[str, Setting(narrower="open or shut")] = "shut"
    size: Annotated[Small, Setting("oven_size")]

    def check(self) -> None:
        if self.door not in ("open", "shut"):
            raise ValueError(f"door is {self.door!r}")


class Sink(SettingsTable, kw_only=True):
    taps: int = 2


class Kitchen(SettingsTables, kw_only=True):
    oven: Oven
    sink: Sink = msgspec.field(default_factory=Sink)


ROWS = by_name((honoured("ovenHeat", Kind.INT, "5"), no_effect("fan", Kind.BOOLEAN, "true", "there is none")))
KITCHEN = Schema(Kitchen, ROWS)


def test_names_and_facts_come_from_the_field() -> None:
    assert KITCHEN.groups == {
        "oven": {"heat": "oven_heat", "door": "door", "size": "oven_size"},
        "sink": {"taps": "taps"},
    }
    assert KITCHEN.mutable == {"oven_heat"}
    assert KITCHEN.descriptions == {"oven_heat": "How hot it is."}
    assert [KITCHEN.allowed(name) for name in ("oven_heat", "door")] == ["a whole number from 1 to 9", "open or shut"]
    assert {name: one.default for name, one in KITCHEN.fields.items() if one.default is not msgspec.NODEFAULT} == {
        "oven_heat": 3,
        "door": "shut",
        "taps": 2,
    }


@pytest.mark.parametrize("name", ["oven_heat", "oven.heat", "ovenHeat"])
def test_each_name_sets_the_field(name: str) -> None:
    given = {"oven_size": Given(1, "here")} | read_pairs({name: "7"}, KITCHEN).given
    assert KITCHEN.build(given).oven.heat == 7


def test_a_key_of_apache_s_knows_its_setting() -> None:
    assert {name: key.ours for name, key in KITCHEN.keys.items()} == {"ovenHeat": "oven_heat", "fan": ""}


def test_settings_are_made_from_names() -> None:
    made = Kitchen.of(oven_size=4, taps=1)
    assert made == Kitchen(oven=Oven(size=4), sink=Sink(taps=1))
    assert KITCHEN.value(made, "oven_size") == 4
    with pytest.raises(KeyError):
        Kitchen.of(oven_size=4, tap=1)


def test_a_change_of_a_copy_leaves_the_settings() -> None:
    made = Kitchen.of(oven_size=4)
    copy = KITCHEN.changed(made, {"oven_heat": 8})
    assert (copy.oven.heat, made.oven.heat) == (8, 3)
    KITCHEN.set_value(made, "oven_heat", 8)
    assert copy == made


def test_each_table_is_checked() -> None:
    with pytest.raises(ValueError, match=r"^here: door is 'ajar'"):
        KITCHEN.build({"oven_size": Given(1, "there"), "door": Given("ajar", "here")})


def test_a_name_is_declared_once() -> None:
    class Stove(SettingsTable, kw_only=True):
        plates: Annotated[int, Setting("taps")] = 4

    with pytest.raises(AssertionError, match="second setting"):
        declared({"sink": Sink, "stove": Stove})


def test_declarations_and_rows_name_the_same_keys_of_apache_s() -> None:
    with pytest.raises(AssertionError, match="ovenLight"):
        _ = Schema(Kitchen, ROWS | by_name((honoured("ovenLight", Kind.INT, "1"),))).keys
    with pytest.raises(AssertionError, match="ovenHeat"):
        _ = Schema(Kitchen, {}).keys
