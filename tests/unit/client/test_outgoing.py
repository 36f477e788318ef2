"""From what the caller says to properties and batches."""

from __future__ import annotations

import pytest

from wheelmq.broker.handlers.send import split_batch
from wheelmq.client.outgoing import OutgoingMessage, add_delay, check_topic, encode_batch, properties_of


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


def test_a_delay_or_a_time() -> None:
    for delay_ms, deliver_at_ms, expected in ((5, None, {"TIMER_DELAY_MS": "5"}), (None, 7, {"TIMER_DELIVER_MS": "7"})):
        properties: dict[str, str] = {}
        add_delay(properties, delay_ms, deliver_at_ms)
        assert properties == expected
    at_once: dict[str, str] = {}
    add_delay(at_once, 0, None)
    assert at_once == {}
    with pytest.raises(ValueError, match="not both"):
        add_delay({}, 1, 1)
    with pytest.raises(ValueError, match="past"):
        add_delay({}, -1, None)


def test_a_delay_in_seconds() -> None:
    for seconds, expected in ((90, {"delayInSeconds": "90"}), (0, {}), (None, {})):
        properties: dict[str, str] = {}
        add_delay(properties, None, None, seconds)
        assert properties == expected
    for delay_ms, deliver_at_ms in ((1, None), (None, 1)):
        with pytest.raises(ValueError, match="not both"):
            add_delay({}, delay_ms, deliver_at_ms, 1)
    with pytest.raises(ValueError, match="past"):
        add_delay({}, None, None, -1)


def test_the_broker_reads_a_batch_back() -> None:
    messages = [(b"one", {"a": "1"}), (b"", {}), (b"three" * 100, {"KEYS": "k", "b": "ü"})]
    assert [(body, properties) for _, body, properties in split_batch(encode_batch(messages))] == messages


@pytest.mark.parametrize("topic", ["", "a/b", "t" * 128, "ü"])
def test_bad_topics_are_refused_before_they_are_sent(topic: str) -> None:
    with pytest.raises(ValueError, match="is no topic"):
        check_topic(topic)
