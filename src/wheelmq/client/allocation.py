"""Which queues of a topic are whose: each client of a group computes the same split (RocketMQ:
AllocateMessageQueueAveragely)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

Q = TypeVar("Q")


def allocate(client_id: str, queues: Sequence[Q], client_ids: Sequence[str]) -> list[Q]:
    """The queues of `client_id`: a run of the sorted `queues`, the first clients having one more than the last.

    Both sequences must be sorted. A client that is not in the list has none: the group does not know it yet.
    """
    if client_id not in client_ids:
        return []
    index = client_ids.index(client_id)
    share, more = divmod(len(queues), len(client_ids))
    start = index * share + min(index, more)
    return list(queues[start : start + share + (index < more)])
