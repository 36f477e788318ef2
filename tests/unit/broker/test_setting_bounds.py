"""Every numeric setting: a value is rejected with a reason, or a broker with this value delivers messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from wheelmq.broker.schema import BROKER
from wheelmq.config.errors import ConfigError
from wheelmq.config.schema import Given
from wheelmq.formats.disk import properties as props
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.testing.harness import SMALL, BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel

INT_MAX: Final = (1 << 31) - 1
VALUES: Final = (-(1 << 63), -1, 0, 1, 10, 17, 1001, INT_MAX, (1 << 63) - 1)
"""The limits of Java's integers, and numbers that are no multiple of any size in files."""
DEFAULTS: Final = {name: one.default for name, one in BROKER.fields.items()}
NUMBERS: Final = sorted(
    name for name, value in DEFAULTS.items() if isinstance(value, int | float) and not isinstance(value, bool)
)
TOO_LARGE: Final = {
    "block_log_file_bytes": "a file has its room on disk when it is made",
    "log_file_bytes": "a file has its room on disk when it is made",
    "timer_log_file_bytes": "a file has its room on disk when it is made",
}
"""Settings whose greatest value is valid, but needs more disk space than a test should use."""
SENDS: Final[dict[bytes, dict[str, str]]] = {
    b"plain": {},
    b"timer": {props.TIMER_DELAY_MS: "900"},
    b"level": {props.DELAY: "1"},
    b"block": {props.DELAY_IN_SECONDS: "1"},
}
REFUSES_BY_DESIGN: Final[dict[tuple[str, int], set[bytes]]] = {
    ("block_max_delay_seconds", 0): {b"block"},
    ("body_bytes_max", 1): set(SENDS),
    ("timer_max_delay_seconds", 0): {b"timer"},
}
"""Values that are limits of messages, with the sends that they reject."""
REJECTS_SENDS: Final = ("broker_permission", "broker_id")
"""Settings by which a broker rejects all sends: without the permission, or as a slave (test_slave.py)."""
HOLDS_BACK: Final = {"disappear_time_after_start": {b"timer"}}
"""Settings that delay messages by their value."""


def settings(**chosen: Any) -> dict[str, Any]:
    return {**SMALL, "block_length_seconds": 60, **chosen}


def problem(name: str, value: float) -> str | None:
    """Return the reason why a start rejects a value, or None if it accepts the value."""
    given = {key: Given(one, "here") for key, one in settings(store_path="/nowhere", **{name: value}).items()}
    try:
        BROKER.build(given)
    except ConfigError as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", NUMBERS)
def test_each_value_is_rejected_or_works(tmp_path: Path, name: str) -> None:
    refused = 0
    for i, value in enumerate(VALUES):
        why = problem(name, value)
        if why is not None:
            assert str(value) in why and ("allowed: " in why or name in why), why
            refused += 1
        elif not (value == INT_MAX and name in TOO_LARGE) and name not in REJECTS_SENDS:
            _delivers(tmp_path / str(i), name, value)
    assert refused >= 2


def _delivers(folder: Path, name: str, value: int) -> None:
    refused = REFUSES_BY_DESIGN.get((name, value), set())
    with BrokerHarness(folder, **settings(**{name: value})) as harness:
        for body, asked in SENDS.items():
            answer = harness.send("T", body, properties=asked)
            assert answer.code == (ResponseCode.MESSAGE_ILLEGAL if body in refused else 0), (name, value, answer.remark)
        model = PipelineModel(harness)
        harness.advance(1100, model.work, 500)
        held = HOLDS_BACK.get(name, set()) if value > 1100 else set()
        assert set(harness.bodies("T")) == set(SENDS) - refused - held, (name, value)
        harness.stop()


@pytest.mark.parametrize("value", ["nan", "inf", "-0.5", "1e308"])
def test_an_invalid_release_slice_is_rejected(value: str) -> None:
    why = problem("release_slice_ms", float(value))
    assert why is not None and "allowed: a number from 0 to 1000" in why


@pytest.mark.parametrize(
    ("chosen", "named"),
    [
        ({"queue_file_bytes": 30}, "allowed: a whole number from 20 to 2147483647, a multiple of 20"),
        ({"block_queue_file_bytes": 100}, "allowed: a whole number from 24 to 2147483647, a multiple of 24"),
        ({"log_file_bytes": 100}, "allowed: a whole number from 4096 to 2147483647"),
        ({"timer_log_file_bytes": 52}, "allowed: a whole number from 68 to 2147483647"),
        ({"max_index_num": 1}, "allowed: a whole number from 2 to 2147483647"),
        ({"max_index_num": 120_000_000}, "an index file would have 2400000440 bytes"),
        ({"block_length_seconds": 59}, "block_length_seconds is 59"),
        ({"block_length_seconds": 367 * 86_400}, "block_length_seconds is 31708800"),
        ({"timer_precision_ms": 300}, "timer_precision_ms is 300"),
        ({"timer_roll_window_slots": 61}, "timer_roll_window_slots is 61"),
        ({"wait_time_mills_in_admin_broker_queue": 0}, "allowed: a whole number from 10 to 2147483647"),
    ],
)
def test_the_reason_names_the_allowed_values(chosen: dict[str, int], named: str) -> None:
    ((name, value),) = chosen.items()
    why = problem(name, value)
    assert why is not None and named in why and str(value) in why


@pytest.mark.parametrize(
    "key",
    [key for key in BROKER.apaches().values() if key.ours in BROKER.mutable and key.ours in NUMBERS],
    ids=lambda key: key.name,
)
def test_each_value_at_run_time_is_rejected_or_can_be_undone(tmp_path: Path, key: Any) -> None:
    """A change rejects the values that a start rejects, and names them. An accepted value can be undone."""
    with BrokerHarness(tmp_path, **settings()) as harness:
        before = BROKER.value(harness.broker.parts.settings, key.ours)
        for value in VALUES:
            answer = harness.ask_code(RequestCode.UPDATE_BROKER_CONFIG, f"{key.name}={value}\n".encode())
            if answer.code:
                assert answer.code == ResponseCode.INVALID_PARAMETER and str(value) in (answer.remark or "")
                assert BROKER.value(harness.broker.parts.settings, key.ours) == before
                continue
            assert problem(key.ours, BROKER.value(harness.broker.parts.settings, key.ours)) is None
            undone = harness.ask_code(RequestCode.UPDATE_BROKER_CONFIG, f"{key.name}={before}\n".encode())
            assert (undone.code, BROKER.value(harness.broker.parts.settings, key.ours)) == (0, before)
        for body, asked in SENDS.items():
            assert harness.send("T", body, properties=asked).code == 0
        harness.advance(1100)
        assert set(harness.bodies("T")) == set(SENDS)
