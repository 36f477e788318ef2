"""The due times that commands print."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from tests.docs.command_line import LINES
from wheelmq.cli.consume import message_fields, message_text
from wheelmq.cli.due import Due, Levels, due_of_received
from wheelmq.cli.send import sent_text, when_text
from wheelmq.cli.times import clock_text, time_text
from wheelmq.client import QueueName, SendResult, SendStatus
from wheelmq.client.message import ReceivedMessage, received
from wheelmq.formats.disk import properties as props
from wheelmq.formats.units import Millis, QueueOffset
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.net.errors import CallError
from wheelmq.testing.harness import BrokerHarness

LATER_MS = 3
"""Time from the store time of a message to its receipt."""


class Broker:
    """Returns the settings of a broker, and counts the requests."""

    def __init__(self, harness: BrokerHarness) -> None:
        self.harness = harness
        self.asked = 0
        self.is_there = True

    async def config(self, broker_name: str) -> Mapping[str, str]:
        self.asked += 1
        if not self.is_there:
            raise CallError(f"{broker_name} does not answer")
        lines = bytes(self.harness.ask_code(RequestCode.GET_BROKER_CONFIG).body).decode().splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)


@pytest.fixture
def broker(harness: BrokerHarness) -> Broker:
    return Broker(harness)


def last_delivered(harness: BrokerHarness, topic: str = "T") -> ReceivedMessage:
    """Return the last message of a topic as a consumer gets it."""
    record = harness.read_queue(topic)[-1]
    return received(record, "broker-a", Millis(record.store_ms + LATER_MS))


def due_and_text(message: ReceivedMessage, broker: Broker) -> tuple[Due, str]:
    due = asyncio.run(due_of_received(message, Levels(broker.config)))
    return due, message_text(message, due)


def test_an_undelayed_message_has_no_due_time(harness: BrokerHarness, broker: Broker) -> None:
    harness.send("T")
    due, text = due_and_text(last_delivered(harness), broker)
    assert due == Due(None) and "  not delayed  " in text
    assert broker.asked == 0


def test_a_timer_message_has_an_exact_due_time(harness: BrokerHarness, broker: Broker) -> None:
    due_ms = harness.now_ms + 500
    harness.send("T", deliver_ms=due_ms)
    harness.advance(600)
    message = last_delivered(harness)
    due, text = due_and_text(message, broker)
    assert due == Due(due_ms, True)
    assert f"due {clock_text(due_ms)}  late {message.received_ms - due_ms:>4} ms" in text
    fields = message_fields(message, due)
    assert fields["due_is_exact"] is True and tuple(fields) == LINES["`consume`"]


def test_the_due_time_of_a_level_starts_at_the_birth_of_the_message(harness: BrokerHarness, broker: Broker) -> None:
    harness.send("T", properties={props.DELAY: "1"}, g=harness.now_ms - 1)
    harness.advance(1100)
    message = last_delivered(harness)
    due, text = due_and_text(message, broker)
    assert due == Due(message.born_ms + 1000, False, 1, 1000)
    fields = message_fields(message, due)
    assert (fields["level"], fields["due_is_exact"]) == (1, False)
    late_ms = fields["lateness_ms"]
    assert isinstance(late_ms, int) and 1 + LATER_MS <= late_ms < 200
    assert f"late about {late_ms:>4} ms" in text and "level=1" in text and "due about " in text


def test_the_table_of_levels_is_requested_once(harness: BrokerHarness, broker: Broker) -> None:
    harness.send("T", properties={props.DELAY: "1"})
    harness.advance(1100)
    message, levels = last_delivered(harness), Levels(broker.config)
    broker.is_there = False
    for _ in range(2):
        due = asyncio.run(due_of_received(message, levels))
        assert due == Due(None, False, 1) and "delayed by level 1" in message_text(message, due)
    assert broker.asked == 1
    broker.is_there = True
    levels = Levels(broker.config)
    assert [asyncio.run(levels.delay_ms("b", level)) for level in (4, 18, 19)] == [30_000, 7_200_000, 7_200_000]
    assert broker.asked == 2


def test_a_retry_has_no_due_time(harness: BrokerHarness, broker: Broker) -> None:
    harness.send("T", properties={props.DELAY: "1"}, j=2)  # j: the number of its deliveries
    harness.advance(1100)
    due, text = due_and_text(last_delivered(harness), broker)
    assert due == Due(None)
    assert "sent again after a failure" in text and "retry=2" in text


NOW = Millis(1_800_000_000_000)


@pytest.mark.parametrize(
    ("due", "asked_level", "text"),
    [
        (Due(None), None, "for delivery at once"),
        (Due(NOW + 9998, True), None, f"due {time_text(NOW + 9998)} (in 10s)"),
        (Due(NOW + 5000), None, f"due about {time_text(NOW + 5000)} (in 5s)"),
        (Due(NOW + 30_000, True, 4, 30_000), 4, f"due {time_text(NOW + 30_000)} (in 30s), by level 4 (30s)"),
        (Due(None, True, 18), 19, "for delivery after level 18, whose delay is unknown"),
        (Due(None), 19, "for delivery after level 19, whose delay is unknown"),
    ],
)
def test_send_prints_the_due_time(due: Due, asked_level: int | None, text: str) -> None:
    assert when_text(due, asked_level, NOW) == text


@pytest.mark.parametrize(("asked_level", "told"), [(18, False), (19, True), (100, True)])
def test_send_reports_a_level_above_the_highest(asked_level: int, told: bool) -> None:
    queue = QueueName(topic="T", broker_name="b", queue_id=1)
    result = SendResult(status=SendStatus.OK, message_id="M", unique_key="U", queue=queue, queue_offset=QueueOffset(0))
    text = sent_text("T", result, Due(NOW + 7_200_000, True, 18, 7_200_000), asked_level, NOW)
    assert "(in 2h), by level 18 (2h)." in text
    assert (f"18, the broker's highest: it has no level {asked_level}" in text) == told
