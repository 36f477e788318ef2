"""Figures of a dashboard in addition to WMQ_METRICS. Only tables in memory are summed: the cost is bounded."""

from __future__ import annotations

import heapq
from typing import Any, Final

import numpy as np

from wheelmq.broker.backlogs import dead_letters, group_lags
from wheelmq.broker.metric_sources import MetricSources
from wheelmq.broker.overdue import overdue
from wheelmq.broker.statistics import GROUP_GET_NUMS, TOPIC_PUT_NUMS
from wheelmq.delay import intake
from wheelmq.observe.histogram import Histogram

LATENESS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 60_000)
MINUTE_MS: Final = 60_000
MINUTES: Final = 60
TOPICS_MAX: Final = 200


def overview(sources: MetricSources, topics_max: int) -> dict[str, Any]:
    """Return figures since the broker's start, with the busiest `topics_max` topics. Times are epoch milliseconds."""
    releaser, turns, late = sources.releaser, sources.pipeline.figures, overdue(sources)
    lateness = releaser.lateness_ms
    rows_max = min(topics_max, TOPICS_MAX)
    return {
        "disk": disk_use(sources),
        "waiting": waiting_by_place(sources),
        "wheel_by_minute": wheel_by_minute(sources),
        "due_and_not_released": late.messages,
        "overdue_ms": late.late_ms,
        "lateness_ms": {**lateness.summary(), **lateness_counts(lateness)},
        "turns": {"rows": dict(turns.rows), "seconds": turns.seconds.summary()},
        "oldest_waiting_age_ms": sources.pipeline.pace.oldest_waiting_age_ms(sources.clock.monotonic_ms()),
        **topic_figures(sources, rows_max),
        **pending_by_topic(sources, rows_max),
        **group_lags(sources, rows_max),
        **dead_letters(sources, rows_max),
    }


def lateness_counts(lateness: Histogram) -> dict[str, Any]:
    """Return the number of releases, and bounds in milliseconds, each with the number of those at most so late."""
    return {"count": lateness.count, "up_to": [[bound, lateness.count_to(bound)] for bound in LATENESS_MS]}


def disk_use(sources: MetricSources) -> dict[str, float]:
    """Return the used percent of the store's disk, and the limits from which log files and sends are affected."""
    store, expiry = sources.engine.store, sources.settings.expiry
    return {
        "used_percent": 100 * store.disk.used_share(store.paths.root),
        "delete_percent": expiry.forcibly_percent,
        "reject_percent": expiry.refuse_percent,
    }


def waiting_by_place(sources: MetricSources) -> dict[str, int]:
    timer = sources.engine.timer
    in_all, in_blocks = int(timer.pending.counts.by_queue.sum()), sources.engine.block_parts.in_blocks.total
    in_levels = timer.pending.levels.count_pending()
    return {"timer": max(0, in_all - in_blocks - in_levels), "level": in_levels, "block": in_blocks}


def pending_by_topic(sources: MetricSources, rows_max: int) -> dict[str, Any]:
    """Return the topics with the most pending messages (in the metrics: `rocketmq_timing_messages`)."""
    counts = sources.engine.timer.pending.counts.table[:, intake.PENDING]
    found = sources.engine.store.queues.by_topic(counts)
    largest = heapq.nsmallest(rows_max, found.items(), key=lambda one: (-one[1], one[0]))
    return {"pending_by_topic": [list(one) for one in largest], "pending_topics_in_all": len(found)}


def wheel_by_minute(sources: MetricSources) -> list[list[int]]:
    """Return the start of each minute and the number of messages in its slots, from the present minute on."""
    wheel = sources.engine.timer.wheel
    now_ms = sources.clock.now_ms()
    first_ms = now_ms // MINUTE_MS * MINUTE_MS
    slots = (first_ms + MINUTES * MINUTE_MS - now_ms) // wheel.precision_ms
    times_ms = (now_ms // wheel.precision_ms + np.arange(slots)) * wheel.precision_ms
    places = np.maximum(0, times_ms - first_ms) // MINUTE_MS
    counts = np.bincount(places, wheel.messages_in(now_ms, slots), MINUTES)
    return [[first_ms + i * MINUTE_MS, int(count)] for i, count in enumerate(counts[:MINUTES])]


def topic_figures(sources: MetricSources, topics_max: int) -> dict[str, Any]:
    """Return the busiest topics of users: their numbers of messages, and the rates of the last minute."""
    puts = sources.stats.rates(TOPIC_PUT_NUMS)
    gets: dict[str, float] = {}
    for key, per_second in sources.stats.rates(GROUP_GET_NUMS).items():
        topic = key.partition("@")[0]
        gets[topic] = gets.get(topic, 0.0) + per_second
    stored = sources.engine.store.queues.by_topic(sources.engine.store.queues.next_offset)
    names = [name for name in sources.topics.all() if not sources.topics.is_system(name)]
    chosen = heapq.nsmallest(topics_max, names, key=lambda name: (-puts.get(name, 0.0) - gets.get(name, 0.0), name))
    rows = [
        {
            "topic": name,
            "puts_per_s": puts.get(name, 0.0),
            "gets_per_s": gets.get(name, 0.0),
            "messages": stored.get(name, 0),
        }
        for name in chosen
    ]
    return {"topics": rows, "topics_in_all": len(names)}
