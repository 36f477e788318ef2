"""`--set` with each kind of name of a setting."""

from __future__ import annotations

import pytest

from wheelmq.broker.schema import BROKER
from wheelmq.config import sources
from wheelmq.config.errors import ConfigError


def test_a_setting_is_set_by_any_of_its_names() -> None:
    pairs = {"timer_lead_ms": "1", "timer.slots": "2", "timerMaxDelaySec": "3"}
    found = sources.read_pairs(pairs, BROKER).given
    assert {field: given.value for field, given in found.items()} == {
        "timer_lead_ms": "1",
        "timer_slots": "2",
        "timer_max_delay_seconds": "3",
    }


def test_a_setting_given_by_two_names_is_rejected() -> None:
    with pytest.raises(ConfigError, match="timer_precision_ms is given twice, once by Apache's name"):
        sources.read_pairs({"timer_precision_ms": "100", "timerPrecisionMs": "100"}, BROKER)


@pytest.mark.parametrize(
    ("name", "hint"),
    [("timer_leadms", "timer_lead_ms"), ("timerPrecisionMS", "timerPrecisionMs"), ("timer.nothing", "")],
)
def test_the_error_suggests_a_name_for_an_unknown_setting(name: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=f"there is no setting '{name}'.*{hint}"):
        sources.read_pairs({name: "1"}, BROKER)
