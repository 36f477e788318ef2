"""The choice of the queue of a message."""

from __future__ import annotations

import pytest

from wheelmq.client.outgoing import OutgoingMessage
from wheelmq.client.placing import AVOIDED_S, Placing, by_hash
from wheelmq.client.routes import NoBroker, NotWritable, TopicRoute
from wheelmq.formats.java import java_hash
from wheelmq.formats.wire.bodies import QueueName
from wheelmq.testing.clock import ManualClock

QUEUES = tuple(QueueName(topic="T", broker_name=name, queue_id=i) for name in "ab" for i in range(2))
ROUTE = TopicRoute("T", QUEUES, QUEUES, {"a": "h:1", "b": "h:2"})
PLAIN = OutgoingMessage(body=b"")


def picked_brokers(placing: Placing, *tried: str) -> set[str]:
    return {placing.pick(ROUTE, PLAIN, tried).broker_name for _ in range(8)}


def test_sends_use_the_queues_in_turn() -> None:
    placing = Placing(ManualClock())
    placing.begin_at(6)
    assert [placing.pick(ROUTE, PLAIN) for _ in range(4)] == [QUEUES[3], *QUEUES[:3]]


def test_a_failed_broker_is_avoided_for_a_while() -> None:
    clock = ManualClock()
    placing = Placing(clock)
    placing.failed("a")
    assert picked_brokers(placing) == {"b"}
    clock.advance(round(AVOIDED_S * 1000) + 1)
    assert picked_brokers(placing) == {"a", "b"}
    placing.failed("a")
    placing.worked("a")
    assert picked_brokers(placing) == {"a", "b"}


def test_a_broker_is_retried_when_no_other_remains() -> None:
    placing = Placing(ManualClock())
    assert picked_brokers(placing, "a") == {"b"}
    placing.failed("b")
    assert picked_brokers(placing, "a") == {"b"}
    assert picked_brokers(placing, "a", "b") == {"a", "b"}


def test_an_order_key_always_picks_the_same_queue() -> None:
    placing = Placing(ManualClock())
    placing.failed("a")
    keyed = OutgoingMessage(body=b"", order_key="order 42")
    assert len({placing.pick(ROUTE, keyed, ["b"]) for _ in range(5)}) == 1


def test_the_hash_equals_that_of_apaches_selector() -> None:
    """Java computes Math.abs(key.hashCode() % size). Its remainder has the sign of the hash."""
    assert java_hash("polygenelubricants") == -(1 << 31)
    assert by_hash("polygenelubricants", 3) == 2
    assert (by_hash("a", 4), by_hash("", 4)) == (97 % 4, 0)


def test_a_message_without_a_valid_queue_is_rejected() -> None:
    placing = Placing(ManualClock())
    with pytest.raises(ValueError, match="no queue 5: its queues are 0 to 1"):
        placing.pick(ROUTE, OutgoingMessage(body=b"", queue_id=5))
    other = QueueName(topic="U", broker_name="a", queue_id=0)
    with pytest.raises(ValueError, match="not a writable queue of T"):
        placing.pick(ROUTE, OutgoingMessage(body=b"", select=lambda queues: other))
    with pytest.raises(NotWritable, match="none of its queues is writable"):
        placing.pick(TopicRoute("T", (), QUEUES, {"a": "a:1"}), PLAIN)
    with pytest.raises(NoBroker, match="no master is registered that has topic T"):
        placing.pick(TopicRoute("T", (), (), {}), PLAIN)
