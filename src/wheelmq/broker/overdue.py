"""Count the messages that are due and not released, in memory or in slots that no turn and no lane has read."""

from __future__ import annotations

from typing import Final, NamedTuple

from wheelmq.broker.metric_sources import MetricSources

LATE_MS: Final = 1000
"""Lateness from which overdue messages are a problem."""


class Overdue(NamedTuple):
    messages: int
    late_ms: int


def overdue(sources: MetricSources) -> Overdue:
    """Count overdue messages. Reads no record. A slot counts, less its cancels, once all of its due times passed."""
    timer, now_ms = sources.engine.timer, sources.clock.now_ms()
    fires_ms = [now_ms, timer.pending.armed.earliest_ms(), sources.releaser.earliest_in_hand_ms()]
    if timer.pending.notes.count:
        fires_ms.append(timer.pending.notes.next_fire_ms)
    count, precision_ms = sources.releaser.in_hand(), timer.settings.precision_ms
    covered_ms, through_ms = timer.scans.covered_through_ms, timer.wheel.floor_slot(now_ms) - precision_ms
    filled_ms = timer.wheel.first_filled(covered_ms, through_ms)
    if filled_ms is not None:
        counts = timer.wheel.messages_in(filled_ms, (through_ms - filled_ms) // precision_ms + 1)
        count += int(counts.clip(0).sum())
        fires_ms.append(filled_ms + precision_ms)
    skipped_ms = timer.scans.skipped.first_ms()
    if skipped_ms is not None and skipped_ms <= through_ms:
        count += timer.scans.skipped.messages_through(through_ms)
        fires_ms.append(skipped_ms + precision_ms)
    return Overdue(count, now_ms - min(fire_ms for fire_ms in fires_ms if fire_ms is not None))


def pipeline_problem(sources: MetricSources) -> str:
    """Return why the operator must look at the pipeline, or an empty text."""
    found = overdue(sources)
    problems = []
    if sources.pipeline.fallback.is_active:
        problems.append("the pipeline makes no turn: the broker arms and indexes messages itself")
    if skipped := sources.engine.timer.scans.skipped:
        slots = "1 slot" if len(skipped) == 1 else f"{len(skipped):,} slots"
        problems.append(f"{slots} cannot be read, and the broker tries again")
    if found.late_ms >= LATE_MS:
        are = "1 message is" if found.messages == 1 else f"{found.messages:,} messages are"
        problems.append(f"{are} overdue, the first for {found.late_ms / 1000:.1f} s")
    return "; ".join(problems)
