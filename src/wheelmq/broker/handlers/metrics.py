"""WMQ_METRICS: the metrics of the broker, its timer and the pipeline, for monitoring."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from wheelmq.broker.answers import Answer, reply
from wheelmq.broker.handler_table import HandlerTable
from wheelmq.broker.metric_sources import MetricSources
from wheelmq.broker.overdue import overdue, pipeline_problem
from wheelmq.broker.overview import lateness_counts, overview
from wheelmq.broker.request import Request
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.headers import MetricsHeader

HANDLERS: Final[HandlerTable[[MetricSources]]] = HandlerTable()


@HANDLERS.serves(RequestCode.WMQ_METRICS)
def get_metrics(request: Request, sources: MetricSources) -> Answer:
    """Return the figures as one JSON object, with `overview` on request."""
    topics = request.header(MetricsHeader).topics
    found = metrics(sources)
    if topics > 0:
        found["overview"] = overview(sources, topics)
    return reply(body=msgspec.json.encode(found))


def metrics(sources: MetricSources) -> dict[str, Any]:
    """Return the metrics since the start of this broker process. Times are milliseconds since 1970."""
    log = sources.engine.store.log
    return {
        "broker": sources.settings.broker.name,
        "boot_ms": sources.boot_ms,
        "now_ms": sources.clock.now_ms(),
        "is_master": sources.role.is_master,
        "takes_sends": sources.admission.takes_sends,
        "refusal": sources.admission.rejection(),
        "log": {
            "start": log.start,
            "end": log.end,
            "synced": log.synced,
        },
        "requests": dict(sources.request_counts),
        "throughput": {"puts": sources.stats.put_total(), "gets": sources.stats.get_total()},
        "pipeline": pipeline_metrics(sources),
        "timers": timer_metrics(sources),
        "ticks": tick_metrics(sources),
        "kernels": {"state": sources.kernel_use.state, "problem": sources.kernel_use.problem},
        "shell": sources.shell_figures(),
    }


def pipeline_metrics(sources: MetricSources) -> dict[str, Any]:
    """Return the holder of the lease, and whether it runs turns.

    `is_turning` is reported only while the lease is held and after a plan was requested under it, because a driver
    takes its lease before its query runs.
    """
    turns, timer = sources.engine.timer.turns, sources.engine.timer
    is_held = turns.is_held(sources.clock.monotonic_ms())
    return {
        "holder": turns.holder,
        "epoch": turns.epoch,
        "turn": turns.turn,
        "is_held": is_held,
        "quiet_ms": sources.pipeline.lease.quiet_ms(),
        "is_turning": sources.pipeline.lease.is_turning(sources.clock.monotonic_ms()),
        "indexed_to": timer.indexed_to,
        "unindexed": timer.queue.end - timer.indexed_to,
        "walked_through_ms": timer.scans.walked_through_ms,
        "covered_through_ms": timer.scans.covered_through_ms,
        "fallback": {"is_active": sources.pipeline.fallback.is_active, "indexed": sources.pipeline.fallback.indexed},
        "skipped_slots": len(timer.scans.skipped),
        "problem": pipeline_problem(sources),
        "last_turn": sources.pipeline.figures.last,
        "read_bytes": sources.pipeline.reader.bytes_read,
    }


def timer_metrics(sources: MetricSources) -> dict[str, Any]:
    """Return the numbers of pending, overdue, armed and noted messages, and counts by way of arming and release."""
    timer, late = sources.engine.timer, overdue(sources)
    return {
        "pending": int(timer.pending.counts.by_queue.sum()),
        "overdue": late.messages,
        "overdue_ms": late.late_ms,
        "is_stopped": sources.settings.timer.stop_dequeue,
        "armed": timer.pending.armed.count,
        "noted": timer.pending.notes.count,
        "armed_by": dict(timer.pending.armed_by),
        "released": dict(sources.releaser.counts),
        "lateness_ms": lateness_counts(sources.releaser.lateness_ms),
    }


def tick_metrics(sources: MetricSources) -> dict[str, Any]:
    """Return the length of ticks with work, in wall and processor milliseconds, and the number of idle ticks."""
    ticks = sources.ticks
    lengths = {"wall_ms": ticks.wall.summary(), "processor_ms": ticks.processor.summary()}
    figures = {
        name: {key: value if key == "count" else value * 1000 for key, value in summary.items()}
        for name, summary in lengths.items()
    }
    return {**figures, "idle": ticks.idle}
