"""Which queues of a topic are whose: each client of a group computes the same split (RocketMQ:
AllocateMessageQueueStrategy)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from wheelmq.formats.wire.bodies import QueueName

Q = TypeVar("Q")

Allocation = Callable[[str, Sequence[QueueName], Sequence[str]], list[QueueName]]


def allocate(client_id: str, queues: Sequence[Q], client_ids: Sequence[str]) -> list[Q]:
    """The queues of `client_id`: a run of the sorted `queues`, the first clients having one more than the last
    (RocketMQ: AllocateMessageQueueAveragely, the default of every client).

    Both sequences must be sorted. A client that is not in the list has none: the group does not know it yet.
    """
    if client_id not in client_ids:
        return []
    index = client_ids.index(client_id)
    share, more = divmod(len(queues), len(client_ids))
    start = index * share + min(index, more)
    return list(queues[start : start + share + (index < more)])


def allocate_in_turn(client_id: str, queues: Sequence[Q], client_ids: Sequence[str]) -> list[Q]:
    """As `allocate`, one queue to each client in turn, so that each has queues of every broker (RocketMQ:
    AllocateMessageQueueAveragelyByCircle)."""
    if client_id not in client_ids:
        return []
    return list(queues[client_ids.index(client_id) :: len(client_ids)])
