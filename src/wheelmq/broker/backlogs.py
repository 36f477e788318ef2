"""Count the backlog for the overview of the dashboard: the lag of groups, and dead letters."""

from __future__ import annotations

import heapq
from typing import Any, NamedTuple

from wheelmq.broker.group_progress import GroupTopics, queue_progress
from wheelmq.broker.metric_sources import MetricSources
from wheelmq.formats.names import DEAD_LETTER_PREFIX, DEAD_LETTER_TOPIC


class Backlog(NamedTuple):
    """The lag of one group in one topic."""

    group: str
    topic: str
    messages: int


def group_lags(sources: MetricSources, rows_max: int) -> dict[str, Any]:
    """Return the groups with a lag, the greatest first, and whether all queues were counted.

    A lag counts as in `wheelmq lag`: for each queue that consumers may read, from the committed offset to the end.
    """
    found: list[Backlog] = []
    walk = GroupTopics(sources)
    for group, topic in walk:
        lag = sum(one.lag for one in queue_progress(sources, group, topic))
        if lag:
            found.append(Backlog(group, topic.topic_name, lag))
    largest = heapq.nsmallest(rows_max, found, key=lambda one: (-one.messages, one.group, one.topic))
    rows = [{**one._asdict(), "members": _members(sources, one.group)} for one in largest]
    return {
        "groups": rows,
        "groups_in_all": len(found),
        "groups_complete": walk.is_complete,
        "lag_in_all": sum(one.messages for one in found),
    }


def _members(sources: MetricSources, group: str) -> int:
    found = sources.clients.consumers.get(group)
    return 0 if found is None else len(found.client_ids())


def dead_letters(sources: MetricSources, rows_max: int) -> dict[str, Any]:
    """Return the stored dead letters of groups, the most first, and the number of those of the timer."""
    counts: dict[str, int] = {}
    timer = 0
    for (topic, _), queue in sources.engine.store.queues.items():
        if topic.startswith(DEAD_LETTER_PREFIX):
            group = topic.removeprefix(DEAD_LETTER_PREFIX)
            counts[group] = counts.get(group, 0) + queue.end - queue.start
        elif topic == DEAD_LETTER_TOPIC:
            timer += queue.end - queue.start
    stored = [(group, count) for group, count in counts.items() if count]
    largest = heapq.nsmallest(rows_max, stored, key=lambda one: (-one[1], one[0]))
    rows = [{"group": group, "messages": count} for group, count in largest]
    return {"dead_letters": rows, "dead_letters_in_all": sum(counts.values()), "timer_dead_letters": timer}
