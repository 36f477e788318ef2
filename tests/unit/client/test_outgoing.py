"""From what the caller says to properties and batches."""

from __future__ import annotations

import pytest

from wheelmq.broker.handlers.send import split_batch
from wheelmq.client.outgoing import (
    OutgoingMessage,
    check_topic,
    encode_batch,
    encode_properties,
    is_delayed,
    properties_of,
)


def test_keys_tags_and_own_properties() -> None:
    message = OutgoingMessage(body=b"", keys=["k1", "k2"], tags="t", properties={"a": "1"})
    assert properties_of(message, "U") == {"KEYS": "k1 k2", "TAGS": "t", "UNIQ_KEY": "U", "a": "1"}
    assert properties_of(OutgoingMessage(body=b"", keys="k"), "U") == {"KEYS": "k", "UNIQ_KEY": "U"}


def test_a_unique_key_of_the_caller_s_own_stays() -> None:
    message = OutgoingMessage(body=b"", properties={"UNIQ_KEY": "order-42"})
    assert properties_of(message, "U")["UNIQ_KEY"] == "order-42"


@pytest.mark.parametrize("properties", [{"a": ""}, {"": "a"}, {"a": "x\x01y"}, {"a": "x\x02"}, {"a\x02": "x"}])
def test_properties_that_would_not_arrive_are_refused(properties: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="property"):
        properties_of(OutgoingMessage(body=b"", properties=properties), "U")


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (OutgoingMessage(body=b"", delay_level=3), {"DELAY": "3"}),
        (OutgoingMessage(body=b"", delay_ms=5), {"TIMER_DELAY_MS": "5"}),
        (OutgoingMessage(body=b"", deliver_at_ms=7), {"TIMER_DELIVER_MS": "7"}),
        (OutgoingMessage(body=b"", delay_in_seconds=90), {"delayInSeconds": "90"}),
        (OutgoingMessage(body=b"", delay_level=0), {}),
        (OutgoingMessage(body=b"", delay_ms=0), {}),
        (OutgoingMessage(body=b"", delay_in_seconds=0), {}),
    ],
)
def test_a_delay_or_a_time(message: OutgoingMessage, expected: dict[str, str]) -> None:
    found = properties_of(message, "U")
    assert found == {"UNIQ_KEY": "U", **expected}
    assert is_delayed(found) == bool(expected)


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (OutgoingMessage(body=b"", delay_ms=1, deliver_at_ms=1), "not both"),
        (OutgoingMessage(body=b"", delay_level=1, delay_in_seconds=1), "not both"),
        (OutgoingMessage(body=b"", delay_ms=-1), "-1 ms lies in the past"),
        (OutgoingMessage(body=b"", delay_in_seconds=-1), "-1 s lies in the past"),
        (OutgoingMessage(body=b"", delay_level=19), "no delay level 19: 1 to 18"),
        (OutgoingMessage(body=b"", delay_level=-1), "no delay level -1"),
    ],
)
def test_delays_that_cannot_be(message: OutgoingMessage, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        properties_of(message, "U")


def test_properties_have_room_for_so_much() -> None:
    with pytest.raises(ValueError, match="32767 fit"):
        encode_properties({"a": "x" * 32_765})
    assert len(encode_properties({"a": "x" * 32_764})) == 32_767


def test_the_broker_reads_a_batch_back() -> None:
    messages = [(b"one", {"a": "1"}), (b"", {}), (b"three" * 100, {"KEYS": "k", "b": "ü"})]
    assert [(body, properties) for _, body, properties in split_batch(encode_batch(messages))] == messages


@pytest.mark.parametrize("topic", ["", "a/b", "t" * 128, "ü"])
def test_bad_topics_are_refused_before_they_are_sent(topic: str) -> None:
    with pytest.raises(ValueError, match="is no topic"):
        check_topic(topic)
