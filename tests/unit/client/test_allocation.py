"""The split of queues among the members of a group. The expected values are those of the Java client 5.3.3."""

from __future__ import annotations

import pytest

from wheelmq.client.allocation import allocate, allocate_in_turn
from wheelmq.client.routes import order
from wheelmq.formats.wire.bodies import QueueName

JAVA = """
1 1: 0+1
1 2: 0+1 -
1 3: 0+1 - -
1 5: 0+1 - - - -
1 7: 0+1 - - - - - -
2 1: 0+2
2 2: 0+1 1+1
2 3: 0+1 1+1 -
2 5: 0+1 1+1 - - -
2 7: 0+1 1+1 - - - - -
3 1: 0+3
3 2: 0+2 2+1
3 3: 0+1 1+1 2+1
3 5: 0+1 1+1 2+1 - -
3 7: 0+1 1+1 2+1 - - - -
4 1: 0+4
4 2: 0+2 2+2
4 3: 0+2 2+1 3+1
4 5: 0+1 1+1 2+1 3+1 -
4 7: 0+1 1+1 2+1 3+1 - - -
5 1: 0+5
5 2: 0+3 3+2
5 3: 0+2 2+2 4+1
5 5: 0+1 1+1 2+1 3+1 4+1
5 7: 0+1 1+1 2+1 3+1 4+1 - -
8 1: 0+8
8 2: 0+4 4+4
8 3: 0+3 3+3 6+2
8 5: 0+2 2+2 4+2 6+1 7+1
8 7: 0+2 2+1 3+1 4+1 5+1 6+1 7+1
12 1: 0+12
12 2: 0+6 6+6
12 3: 0+4 4+4 8+4
12 5: 0+3 3+3 6+2 8+2 10+2
12 7: 0+2 2+2 4+2 6+2 8+2 10+1 11+1
17 1: 0+17
17 2: 0+9 9+8
17 3: 0+6 6+6 12+5
17 5: 0+4 4+4 8+3 11+3 14+3
17 7: 0+3 3+3 6+3 9+2 11+2 13+2 15+2
"""
"""Number of queues, number of members, then per member its first queue and its number of queues.

AllocateMessageQueueAveragely printed these lines.
"""

JAVA_ORDER = [("%R", "b", 0), ("S", "z", 0), ("T", "B", 1), ("T", "a", 3), ("T", "b", 9), ("T", "b", 10)]
JAVA_ORDER += [("T", "b-1", 0), ("T", "b_1", 0)]
"""The order of MessageQueue.compareTo."""


@pytest.mark.parametrize("row", JAVA.strip().splitlines())
def test_the_split_equals_that_of_the_java_client(row: str) -> None:
    head, _, shares = row.partition(":")
    queues, members = map(int, head.split())
    ids = [f"c{i}" for i in range(members)]
    for client_id, share in zip(ids, shares.split(), strict=True):
        found = allocate(client_id, range(queues), ids)
        start, _, count = share.partition("+")
        assert found == ([] if share == "-" else list(range(int(start), int(start) + int(count))))


def test_a_client_that_is_not_a_member_gets_no_queues() -> None:
    assert allocate("x", [1, 2, 3], ["c0"]) == []
    assert allocate("x", [1, 2, 3], []) == []


def test_queues_sort_as_in_the_java_client() -> None:
    queues = [QueueName(topic=topic, broker_name=broker, queue_id=i) for topic, broker, i in reversed(JAVA_ORDER)]
    assert [(q.topic, q.broker_name, q.queue_id) for q in sorted(queues, key=order)] == JAVA_ORDER


def test_allocation_in_turn_deals_queues_out_one_by_one() -> None:
    """AllocateMessageQueueAveragelyByCircle splits queues in the same way."""
    queues = list(range(7))
    assert [allocate_in_turn(name, queues, "abc") for name in "abc"] == [[0, 3, 6], [1, 4], [2, 5]]
    assert allocate_in_turn("x", queues, "abc") == []
