"""Assigns a topic's queues to the clients of a group; all compute the same (RocketMQ: AllocateMessageQueueStrategy)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from wheelmq.formats.wire.bodies import QueueName

Q = TypeVar("Q")

Allocation = Callable[[str, Sequence[QueueName], Sequence[str]], list[QueueName]]


def allocate(client_id: str, queues: Sequence[Q], client_ids: Sequence[str]) -> list[Q]:
    """Return a contiguous part of `queues` for `client_id`. The first clients may get one more.

    Both sequences must be sorted. Returns an empty list for a client that the group does not know yet (RocketMQ:
    AllocateMessageQueueAveragely, the default of every client).
    """
    if client_id not in client_ids:
        return []
    index = client_ids.index(client_id)
    share, more = divmod(len(queues), len(client_ids))
    start = index * share + min(index, more)
    return list(queues[start : start + share + (index < more)])


def allocate_in_turn(client_id: str, queues: Sequence[Q], client_ids: Sequence[str]) -> list[Q]:
    """Return the queues of `client_id`, dealt one by one in turn, so that each client gets queues of every broker.

    The arguments and the empty result are as for `allocate` (RocketMQ: AllocateMessageQueueAveragelyByCircle).
    """
    if client_id not in client_ids:
        return []
    return list(queues[client_ids.index(client_id) :: len(client_ids)])
