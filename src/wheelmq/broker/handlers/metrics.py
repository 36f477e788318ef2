"""WMQ_METRICS: the metrics of the broker, its timer and the pipeline, for monitoring."""

from __future__ import annotations

from typing import Any

import msgspec

from wheelmq.broker.answers import Answer, reply
from wheelmq.broker.context import Context
from wheelmq.broker.dispatch import serves
from wheelmq.broker.overdue import overdue, pipeline_problem
from wheelmq.broker.overview import overview
from wheelmq.broker.request import Request
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.headers import MetricsHeader


@serves(RequestCode.WMQ_METRICS)
def get_metrics(request: Request, context: Context) -> Answer:
    """Return the figures as one JSON object, with `overview` on request."""
    topics = request.header(MetricsHeader).topics
    found = metrics(context)
    if topics > 0:
        found["overview"] = overview(context, topics)
    return reply(body=msgspec.json.encode(found))


def metrics(context: Context) -> dict[str, Any]:
    """Return the metrics since the start of this broker process. Times are milliseconds since 1970."""
    return {
        "broker": context.settings.broker.name,
        "boot_ms": context.boot_ms,
        "now_ms": context.clock.now_ms(),
        "takes_sends": context.admission.takes_sends,
        "refusal": context.admission.rejection(),
        "log": {"start": context.store.log.start, "end": context.store.log.end, "synced": context.store.log.synced},
        "requests": dict(context.request_counts),
        "pipeline": pipeline_metrics(context),
        "timers": timer_metrics(context),
        "ticks": tick_metrics(context),
        "shell": context.shell_figures(),
    }


def pipeline_metrics(context: Context) -> dict[str, Any]:
    """Return the holder of the lease, and whether it runs turns.

    `is_turning` is reported only while the lease is held and after a plan was requested under it, because a driver
    takes its lease before its query runs.
    """
    turns, timer = context.timer.turns, context.timer
    is_held = turns.is_held(context.clock.monotonic_ms())
    return {
        "holder": turns.holder,
        "epoch": turns.epoch,
        "turn": turns.turn,
        "is_held": is_held,
        "quiet_ms": context.pipeline.lease.quiet_ms(),
        "is_turning": context.pipeline.lease.is_turning(context.clock.monotonic_ms()),
        "indexed_to": timer.indexed_to,
        "unindexed": timer.queue.end - timer.indexed_to,
        "walked_through_ms": timer.scans.walked_through_ms,
        "covered_through_ms": timer.scans.covered_through_ms,
        "fallback": {"is_active": context.pipeline.fallback.is_active, "indexed": context.pipeline.fallback.indexed},
        "problem": pipeline_problem(context),
        "last_turn": context.pipeline.figures.last,
        "read_bytes": context.pipeline.reader.bytes_read,
    }


def timer_metrics(context: Context) -> dict[str, Any]:
    """Return the numbers of pending, overdue, armed and noted messages, and counts by way of arming and release."""
    timer, late = context.timer, overdue(context)
    return {
        "pending": int(timer.pending.counts.by_queue.sum()),
        "overdue": late.messages,
        "overdue_ms": late.late_ms,
        "armed": timer.pending.armed.count,
        "noted": timer.pending.notes.count,
        "armed_by": dict(timer.pending.armed_by),
        "released": dict(context.releaser.counts),
    }


def tick_metrics(context: Context) -> dict[str, Any]:
    """Return the length of ticks with work, in wall and processor milliseconds, and the number of idle ticks."""
    ticks = context.ticks
    lengths = {"wall_ms": ticks.wall.summary(), "processor_ms": ticks.processor.summary()}
    figures = {
        name: {key: value if key == "count" else value * 1000 for key, value in summary.items()}
        for name, summary in lengths.items()
    }
    return {**figures, "idle": ticks.idle}
