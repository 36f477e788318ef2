"""A send to one topic can cancel a delayed message of another one, so it needs the right to send there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.broker.sample_requests import ROOT, TOPIC
from tests.unit.broker.test_access import BOB, add, ask, grant, stored
from tests.unit.broker.test_send import spelled_out
from wheelmq.auth.needs import Right
from wheelmq.auth.policies import Action, Resource
from wheelmq.auth.users import UserKind
from wheelmq.formats.disk import properties as props
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.testing.harness import BrokerHarness


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[BrokerHarness]:
    """A broker where bob may send to T. Topic Secret has a delayed message with the key K."""
    with BrokerHarness(tmp_path / "store", authentication_enabled=True, authorization_enabled=True) as harness:
        add(harness, ROOT, UserKind.SUPER)
        add(harness, BOB)
        grant(harness, BOB, Right(Resource.parse(f"Topic:{TOPIC}"), frozenset({Action.PUB})))
        for topic in (TOPIC, "Secret"):
            assert ask(harness, harness.send_command(topic, b"at once"), ROOT).code == 0
        pending = harness.send_command("Secret", b"pending", delay_ms=5000, properties={props.UNIQ_KEY: "K"})
        assert ask(harness, pending, ROOT).code == 0
        yield harness


def bodies(harness: BrokerHarness, topic: str) -> list[bytes]:
    return [record.message.body for record in stored(harness, topic)]


def cancel(harness: BrokerHarness, code: RequestCode, value: str) -> Command:
    """Return a send to T with the property of a cancel."""
    command = harness.send_command(TOPIC, delay_ms=5000, properties={props.TIMER_DEL_UNIQKEY: value})
    return spelled_out(command) if code == RequestCode.SEND_MESSAGE else command


@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2])
@pytest.mark.parametrize("value", ["Secret+K", "+K"])
def test_a_cancel_of_another_topic_needs_the_right_to_send_there(
    harness: BrokerHarness, code: RequestCode, value: str
) -> None:
    answer = ask(harness, cancel(harness, code, value), BOB)
    assert answer.code == ResponseCode.NO_PERMISSION, answer
    assert f"permission to access Topic:{value.partition('+')[0]} " in (answer.remark or "")
    harness.advance(6000)
    assert bodies(harness, "Secret") == [b"at once", b"pending"]


def test_the_last_of_two_properties_counts(harness: BrokerHarness) -> None:
    command = cancel(harness, RequestCode.SEND_MESSAGE_V2, "T+K")
    command.ext["i"] += f"{props.TIMER_DEL_UNIQKEY}\x01Secret+K\x02"
    assert ask(harness, command, BOB).code == ResponseCode.NO_PERMISSION
    harness.advance(6000)
    assert bodies(harness, "Secret") == [b"at once", b"pending"]


@pytest.mark.parametrize("value", ["T+K", "K"])
def test_a_cancel_of_the_own_topic_needs_no_more(harness: BrokerHarness, value: str) -> None:
    pending = harness.send_command(TOPIC, b"own", delay_ms=5000, properties={props.UNIQ_KEY: "K"})
    assert ask(harness, pending, BOB).code == 0
    assert ask(harness, cancel(harness, RequestCode.SEND_MESSAGE_V2, value), BOB).code == 0
    harness.advance(6000)
    assert bodies(harness, TOPIC) == [b"at once"]
    assert bodies(harness, "Secret") == [b"at once", b"pending"], (
        "the message with the same key in another topic is delivered"
    )


def test_who_may_send_to_both_topics_may_cancel(harness: BrokerHarness) -> None:
    topics = (Resource.parse(f"Topic:{name}") for name in (TOPIC, "Secret"))
    grant(harness, BOB, *(Right(one, frozenset({Action.PUB})) for one in topics))
    assert ask(harness, cancel(harness, RequestCode.SEND_MESSAGE_V2, "Secret+K"), BOB).code == 0
    harness.advance(6000)
    assert bodies(harness, "Secret") == [b"at once"]
