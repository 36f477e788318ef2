"""The encoding of an outgoing message: its properties and batches."""

from __future__ import annotations

import datetime

import numpy as np
import pytest

from wheelmq.broker.handlers.send import split_batch
from wheelmq.client.delays import TooFarAhead, refused
from wheelmq.client.outgoing import (
    OutgoingMessage,
    batched_bytes,
    check_topic,
    encode_batch,
    encode_properties,
    is_delayed,
    properties_of,
)
from wheelmq.formats.wire.frame import Command
from wheelmq.net.errors import Refused

NOW = 1_800_000_000_000
"""2027-01-15T08:00:00Z."""


def test_keys_tags_and_own_properties_are_encoded() -> None:
    message = OutgoingMessage(body=b"", keys=["k1", "k2"], tags="t", properties={"a": "1"})
    assert properties_of(message, "U", NOW) == {"KEYS": "k1 k2", "TAGS": "t", "UNIQ_KEY": "U", "a": "1"}
    assert properties_of(OutgoingMessage(body=b"", keys="k"), "U", NOW) == {"KEYS": "k", "UNIQ_KEY": "U"}


def test_a_unique_key_of_the_caller_is_kept() -> None:
    message = OutgoingMessage(body=b"", properties={"UNIQ_KEY": "order-42"})
    assert properties_of(message, "U", NOW)["UNIQ_KEY"] == "order-42"


@pytest.mark.parametrize("properties", [{"a": ""}, {"": "a"}, {"a": "x\x01y"}, {"a": "x\x02"}, {"a\x02": "x"}])
def test_properties_that_cannot_be_encoded_are_rejected(properties: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="property"):
        properties_of(OutgoingMessage(body=b"", properties=properties), "U", NOW)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (OutgoingMessage(body=b"", delay_level=3), {"DELAY": "3"}),
        (OutgoingMessage(body=b"", delay_ms=5), {"TIMER_DELAY_MS": "5"}),
        (OutgoingMessage(body=b"", deliver_at_ms=NOW + 7), {"TIMER_DELIVER_MS": str(NOW + 7)}),
        (OutgoingMessage(body=b"", deliver_at_ms=NOW - 10_000), {"TIMER_DELIVER_MS": str(NOW - 10_000)}),
        (OutgoingMessage(body=b"", delay_in_seconds=90), {"delayInSeconds": "90"}),
        (OutgoingMessage(body=b"", delay_level=0), {}),
        (OutgoingMessage(body=b"", delay_ms=0), {}),
        (OutgoingMessage(body=b"", delay_in_seconds=0), {}),
    ],
)
def test_each_delay_option_sets_its_property(message: OutgoingMessage, expected: dict[str, str]) -> None:
    found = properties_of(message, "U", NOW)
    assert found == {"UNIQ_KEY": "U", **expected}
    assert is_delayed(found) == bool(expected)


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (OutgoingMessage(body=b"", delay_ms=1, deliver_at_ms=1), "either a delay or a time"),
        (OutgoingMessage(body=b"", delay_level=1, delay_in_seconds=1), "either a delay or a time"),
        (OutgoingMessage(body=b"", delay_ms=-1), "-1 ms is in the past"),
        (OutgoingMessage(body=b"", delay_in_seconds=-1), "-1 s is in the past"),
        (OutgoingMessage(body=b"", delay_level=19), "no delay level 19: 1 to 18"),
        (OutgoingMessage(body=b"", delay_level=-1), "no delay level -1"),
        (
            OutgoingMessage(body=b"", deliver_at_ms=NOW - 10_001),
            "is 1799999989999, which is 2027-01-15T07:59:49.999Z, 10.001 s in the past: write a future time",
        ),
        (
            OutgoingMessage(body=b"", deliver_at_ms=NOW // 1000 + 60),
            r"1970-01-21T20:00:00.060Z, .* days\) in the past: it looks like seconds; write 1800000060000, in",
        ),
        (OutgoingMessage(body=b"", deliver_at_ms=0), "is 0, which is 1970-01-01T00:00:00.000Z"),
        (OutgoingMessage(body=b"", deliver_at_ms=-(1 << 63)), "which is before the year 1"),
        (OutgoingMessage(body=b"", deliver_at_ms=NOW * 1000), f"9999: it looks like microseconds; write {NOW}, in"),
        (OutgoingMessage(body=b"", deliver_at_ms=NOW * 1_000_000), f"it looks like nanoseconds; write {NOW}, in"),
        (OutgoingMessage(body=b"", deliver_at_ms=1 << 62), "is after the year 9999: write a future time"),
    ],
)
def test_invalid_delays_are_rejected(message: OutgoingMessage, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        properties_of(message, "U", NOW)


MOMENT = datetime.datetime(2027, 1, 15, tzinfo=datetime.UTC)


@pytest.mark.parametrize("option", ["delay_level", "delay_ms", "deliver_at_ms", "delay_in_seconds"])
@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (True, "is True, a bool: write a whole number"),
        (1.5, "is 1.5, a float: write a whole number"),
        ("5", "is '5', a str: write a whole number"),
    ],
)
def test_a_delay_of_a_wrong_type_is_rejected(option: str, value: object, problem: str) -> None:
    message = OutgoingMessage(body=b"", **{option: value})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=f"{option} is .*{problem.removeprefix('is ')}"):
        properties_of(message, "U", NOW)


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("delay_ms", datetime.timedelta(seconds=5), {"TIMER_DELAY_MS": "5000"}),
        ("delay_ms", datetime.timedelta(microseconds=1), {"TIMER_DELAY_MS": "1"}),
        ("delay_in_seconds", datetime.timedelta(minutes=1, milliseconds=1), {"delayInSeconds": "61"}),
        ("deliver_at_ms", MOMENT, {"TIMER_DELIVER_MS": "1799971200000"}),
        ("deliver_at_ms", MOMENT + datetime.timedelta(microseconds=1), {"TIMER_DELIVER_MS": "1799971200001"}),
        (
            "deliver_at_ms",
            MOMENT.astimezone(datetime.timezone(datetime.timedelta(hours=2))),
            {"TIMER_DELIVER_MS": "1799971200000"},
        ),
    ],
)
def test_a_delay_may_be_a_duration_or_a_moment(option: str, value: object, expected: dict[str, str]) -> None:
    """A fraction is rounded up: no message may be early."""
    message = OutgoingMessage(body=b"", **{option: value})  # type: ignore[arg-type]
    assert properties_of(message, "U", NOW - 86_400_000) == {"UNIQ_KEY": "U", **expected}


@pytest.mark.parametrize(
    ("option", "value", "error", "problem"),
    [
        ("delay_ms", MOMENT, TypeError, "it is a duration: write a timedelta, or deliver_at_ms=moment"),
        ("delay_in_seconds", MOMENT, TypeError, "it is a duration"),
        ("delay_level", MOMENT, TypeError, "it is a duration"),
        ("deliver_at_ms", datetime.timedelta(1), TypeError, "it is a moment: write a datetime, or delay_ms=duration"),
        ("delay_level", datetime.timedelta(1), TypeError, "write a whole number"),
        ("deliver_at_ms", MOMENT.replace(tzinfo=None), ValueError, r"write moment.astimezone\(\) for local time"),
        ("delay_ms", datetime.timedelta(-1), ValueError, "is in the past"),
        ("deliver_at_ms", datetime.date(2027, 1, 16), TypeError, "write a whole number"),
    ],
)
def test_a_moment_is_no_duration(option: str, value: object, error: type[Exception], problem: str) -> None:
    message = OutgoingMessage(body=b"", **{option: value})  # type: ignore[arg-type]
    with pytest.raises(error, match=problem):
        properties_of(message, "U", NOW)


def test_a_body_may_be_a_text() -> None:
    assert OutgoingMessage(body="zahlen \u20ac").content == "zahlen \u20ac".encode()
    assert OutgoingMessage(body=bytearray(b"x")).content == b"x"


def test_a_delay_may_be_a_numpy_integer() -> None:
    message = OutgoingMessage(body=b"", delay_ms=np.int64(5))  # type: ignore[arg-type]
    assert properties_of(message, "U", NOW)["TIMER_DELAY_MS"] == "5"


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (OutgoingMessage(body=7), "the body is 7, a int"),  # type: ignore[arg-type]
        (OutgoingMessage(body=b"", properties={"price": 7}), "'price' is 7: a int"),  # type: ignore[dict-item]
        (OutgoingMessage(body=b"", properties={7: "price"}), "7 is 'price': a int"),  # type: ignore[dict-item]
    ],
)
def test_fields_of_a_wrong_type_are_rejected(message: OutgoingMessage, problem: str) -> None:
    with pytest.raises(TypeError, match=problem):
        properties_of(message, "U", NOW)


@pytest.mark.parametrize(
    ("remark", "is_in_block", "expected"),
    [
        (
            "the delay time should not be bigger than the max delay 259200000ms; or",
            False,
            "the delay is 864000 s (10.0 days), and this broker accepts at most 259200 s (3.0 days): send it with "
            "delay_in_seconds=864000, which reaches a year on WheelMQ's brokers, or start the broker with "
            "`wheelmq up --set timer_max_delay_seconds=864000` or more",
        ),
        (
            "the delay must not exceed 3600s",
            True,
            "the delay is 864000 s (10.0 days), and this broker accepts at most 3600 s: start the broker with "
            "`wheelmq up --set block_max_delay_seconds=864000` or more",
        ),
    ],
)
def test_the_error_of_a_delay_beyond_the_limit_names_a_remedy(remark: str, is_in_block: bool, expected: str) -> None:
    answer = Command(code=13, remark=remark)
    error = refused(answer, 864_000_000, is_in_block=is_in_block)
    assert isinstance(error, TooFarAhead) and error.answer is answer
    assert str(error).endswith(expected)


def test_the_remedy_for_more_than_a_year_is_a_longer_timer() -> None:
    remark = "the delay time should not be bigger than the max delay 259200000ms; or"
    assert str(refused(Command(code=13, remark=remark), 400 * 86_400_000, is_in_block=False)) == (
        "the delay is 34560000 s (400.0 days), and this broker accepts at most 259200 s (3.0 days): start the broker "
        "with `wheelmq up --set timer_max_delay_seconds=34560000` or more"
    )


@pytest.mark.parametrize(("asked_ms", "remark"), [(None, "max delay 5ms"), (5, "max delay 5ms"), (9, "system busy")])
def test_other_rejections_do_not_raise_too_far_ahead(asked_ms: int | None, remark: str) -> None:
    assert type(refused(Command(code=13, remark=remark), asked_ms, is_in_block=False)) is Refused


def test_properties_are_limited_to_32767_bytes() -> None:
    with pytest.raises(ValueError, match="the limit is 32767"):
        encode_properties({"a": "x" * 32_765})
    assert len(encode_properties({"a": "x" * 32_764})) == 32_767


def test_the_broker_decodes_an_encoded_batch() -> None:
    messages = [(b"one", {"a": "1"}), (b"", {}), (b"three" * 100, {"KEYS": "k", "b": "ü"})]
    assert [(body, properties) for _, body, properties in split_batch(encode_batch(messages))] == messages


@pytest.mark.parametrize(
    "message",
    [
        OutgoingMessage(body=b""),
        OutgoingMessage(body=b"one", tags="tü", keys=["k1", "k2"]),
        OutgoingMessage(body=b"three" * 100, keys="k", properties={"b": "ü" * 9, "KEYS": "own"}),
    ],
)
def test_the_size_of_a_message_in_a_batch(message: OutgoingMessage) -> None:
    message.properties = {**(message.properties or {}), "UNIQ_KEY": "U"}
    assert batched_bytes(message) == len(encode_batch([(message.body, properties_of(message, "other", NOW))]))


@pytest.mark.parametrize("topic", ["", "a/b", "t" * 128, "ü"])
def test_a_client_rejects_an_invalid_topic(topic: str) -> None:
    with pytest.raises(ValueError, match="is not a valid topic"):
        check_topic(topic)
