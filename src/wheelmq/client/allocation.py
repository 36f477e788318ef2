"""Assigns the queues of a topic to the clients of a group. Each client computes the same result (RocketMQ:
AllocateMessageQueueStrategy)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from wheelmq.formats.wire.bodies import QueueName

Q = TypeVar("Q")

Allocation = Callable[[str, Sequence[QueueName], Sequence[str]], list[QueueName]]


def allocate(client_id: str, queues: Sequence[Q], client_ids: Sequence[str]) -> list[Q]:
    """Return the queues of `client_id`: a contiguous part of `queues`. If they do not divide evenly, the first
    clients get one more queue (RocketMQ: AllocateMessageQueueAveragely, the default of every client).

    Both sequences must be sorted. Returns an empty list for a client that is not in `client_ids`: the group does not
    know it yet.
    """
    if client_id not in client_ids:
        return []
    index = client_ids.index(client_id)
    share, more = divmod(len(queues), len(client_ids))
    start = index * share + min(index, more)
    return list(queues[start : start + share + (index < more)])


def allocate_in_turn(client_id: str, queues: Sequence[Q], client_ids: Sequence[str]) -> list[Q]:
    """Return the queues of `client_id`, dealt one by one to the clients in turn, so that each gets queues of every
    broker (RocketMQ: AllocateMessageQueueAveragelyByCircle).

    The arguments and the empty result are as for `allocate`.
    """
    if client_id not in client_ids:
        return []
    return list(queues[client_ids.index(client_id) :: len(client_ids)])
