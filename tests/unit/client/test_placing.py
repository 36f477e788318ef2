"""Which queue a message goes to."""

from __future__ import annotations

import pytest

from wheelmq.client.outgoing import OutgoingMessage
from wheelmq.client.placing import AVOIDED_S, Placing, by_hash
from wheelmq.client.routes import NoBroker, TopicRoute
from wheelmq.formats.java import java_hash
from wheelmq.formats.wire.bodies import QueueName
from wheelmq.testing.clock import ManualClock

QUEUES = tuple(QueueName(topic="T", broker_name=name, queue_id=i) for name in "ab" for i in range(2))
ROUTE = TopicRoute("T", QUEUES, QUEUES, {"a": "h:1", "b": "h:2"})
PLAIN = OutgoingMessage(body=b"")


def brokers(placing: Placing, *tried: str) -> set[str]:
    return {placing.pick(ROUTE, PLAIN, tried).broker_name for _ in range(8)}


def test_queues_come_in_turn() -> None:
    placing = Placing(ManualClock())
    placing.begin_at(6)
    assert [placing.pick(ROUTE, PLAIN) for _ in range(4)] == [QUEUES[3], *QUEUES[:3]]


def test_a_broker_that_failed_is_passed_over_for_a_while() -> None:
    clock = ManualClock()
    placing = Placing(clock)
    placing.failed("a")
    assert brokers(placing) == {"b"}
    clock.advance(round(AVOIDED_S * 1000) + 1)
    assert brokers(placing) == {"a", "b"}
    placing.failed("a")
    placing.worked("a")
    assert brokers(placing) == {"a", "b"}


def test_a_broker_is_tried_again_when_there_is_no_other() -> None:
    placing = Placing(ManualClock())
    assert brokers(placing, "a") == {"b"}
    placing.failed("b")
    assert brokers(placing, "a") == {"b"}
    assert brokers(placing, "a", "b") == {"a", "b"}


def test_a_key_has_one_queue_wherever_the_turn_is() -> None:
    placing = Placing(ManualClock())
    placing.failed("a")
    keyed = OutgoingMessage(body=b"", order_key="order 42")
    assert len({placing.pick(ROUTE, keyed, ["b"]) for _ in range(5)}) == 1


def test_the_hash_is_that_of_apaches_selector() -> None:
    """In Java: Math.abs(key.hashCode() % size), whose remainder has the sign of the hash."""
    assert java_hash("polygenelubricants") == -(1 << 31)
    assert by_hash("polygenelubricants", 3) == 2
    assert (by_hash("a", 4), by_hash("", 4)) == (97 % 4, 0)


def test_what_cannot_be_placed() -> None:
    placing = Placing(ManualClock())
    with pytest.raises(ValueError, match="no queue 5: its queues are 0 to 1"):
        placing.pick(ROUTE, OutgoingMessage(body=b"", queue_id=5))
    other = QueueName(topic="U", broker_name="a", queue_id=0)
    with pytest.raises(ValueError, match="no queue of T"):
        placing.pick(ROUTE, OutgoingMessage(body=b"", select=lambda queues: other))
    with pytest.raises(NoBroker):
        placing.pick(TopicRoute("T", (), QUEUES, {}), PLAIN)
