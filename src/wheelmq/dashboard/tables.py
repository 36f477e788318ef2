"""The tables of the page, from the figures of `DashboardFigures.get`. Page and JSON show the same rows. Pure."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from wheelmq.dashboard.charts import time_text

DAYS_MAX: Final = 62
"""Rows of the table by day. The last row has all later days."""


class Bar(msgspec.Struct, frozen=True):
    """A bar of a table: a count, and that of the longest bar."""

    count: float
    of: float

    @property
    def percent(self) -> float:
        """Return the length of the bar. A count above 0 is visible."""
        return round(max(1.0, 100 * self.count / self.of), 1) if self.count > 0 else 0.0


class Section(msgspec.Struct, frozen=True):
    """A table with its title, and a note above it."""

    title: str
    rows: list[list[str | Bar]]
    columns: list[str] = []
    note: str = ""


class PagePart(msgspec.Struct, frozen=True):
    """A part of the page, with its tables. `key` is the target of a link."""

    key: str
    title: str
    sections: list[Section]


def parts(figures: dict[str, Any]) -> list[PagePart]:
    """Return the parts of the page with tables; none while the broker does not answer."""
    if "problem" in figures:
        return []
    return [
        PagePart(
            "pending",
            "Pending messages",
            [_by_topic(figures), _minutes(figures), _hours(figures), _days(figures)],
        ),
        PagePart("groups", "Consumer groups", [_groups(figures), _dead_letters(figures)]),
        PagePart(
            "details",
            "Broker and pipeline",
            [
                _broker(figures),
                _waiting(figures),
                _pipeline(figures),
                _turns(figures),
                _lateness(figures),
                _topics(figures),
            ],
        ),
    ]


def sections(figures: dict[str, Any]) -> list[Section]:
    """Return the tables of all parts."""
    return [section for part in parts(figures) for section in part.sections]


def _broker(figures: dict[str, Any]) -> Section:
    log = figures["log"]
    sends = "accepted" if figures["takes_sends"] else f"rejected: {figures['refusal']}"
    rows: list[list[str | Bar]] = [
        ["sends", sends],
        ["since", time_text(figures["boot_ms"], "%Y-%m-%d %H:%M:%S")],
        ["log", f"{(log['end'] - log['start']) / (1 << 20):,.1f} MiB"],
        ["not on disk", f"{(log['end'] - log['synced']) / 1024:,.1f} KiB"],
    ]
    return Section(f"Broker {figures['broker']}", rows)


def _waiting(figures: dict[str, Any]) -> Section:
    waiting, settled = figures["overview"]["waiting"], figures["timers"]["released"]
    rows: list[list[str | Bar]] = [[f"in {place}s", f"{count:,}"] for place, count in waiting.items()]
    rows.append(["armed (included above)", f"{figures['timers']['armed']:,}"])
    rows.append(["due and not released", f"{figures['overview']['due_and_not_released']:,}"])
    rows.append(["lateness of the oldest one", f"{figures['overview']['overdue_ms'] / 1000:.1f} s"])
    rows += [[how.replace("_", " "), f"{count:,}"] for how, count in sorted(settled.items())]
    return Section("Delayed messages", rows, note="pending messages; below them the settled messages since the start")


def _pipeline(figures: dict[str, Any]) -> Section:
    found = figures["pipeline"]
    state = "makes turns" if found["is_turning"] else "has the lease, no turn yet"
    ahead_s, by_broker_s = (
        max(0, found[name] - figures["now_ms"]) / 1000 for name in ("walked_through_ms", "covered_through_ms")
    )
    rows: list[list[str | Bar]] = [
        ["state", state if found["is_held"] else "no pipeline has the lease"],
        ["holder", found["holder"] or "none"],
        ["lag, messages not indexed", f"{found['unindexed']:,}"],
        ["age of the oldest of them", f"{figures['overview']['oldest_waiting_age_ms'] / 1000:.1f} s"],
        ["armed ahead", f"{ahead_s:.0f} s"],
        ["work done by the broker", f"{by_broker_s:.0f} s ahead" if found["fallback"]["is_active"] else "none"],
    ]
    return Section("Pipeline", rows)


def _turns(figures: dict[str, Any]) -> Section:
    last, turns = figures["pipeline"]["last_turn"], figures["overview"]["turns"]
    rows: list[list[str | Bar]] = []
    if last is not None:
        rows.append(
            ["last", *(f"{last[name]:,}" for name in ("indexed", "walked", "armed")), f"{last['seconds']:.2f} s"]
        )
    in_all = turns["rows"]
    rows.append(["since the start", *(f"{in_all.get(name, 0):,}" for name in ("indexed", "walked", "armed")), ""])
    seconds = turns["seconds"]
    note = (
        f"{seconds['count']:,} since the start: p50 {seconds['p50']:.2f} s, p99 {seconds['p99']:.2f} s, at most "
        f"{seconds['max']:.2f} s; in the life of this store: {figures['pipeline']['turn']:,}"
    )
    return Section("Turns", rows, ["", "indexed", "walked", "armed", "took"], note)


def _lateness(figures: dict[str, Any]) -> Section:
    found = figures["overview"]["lateness_ms"]
    count, before = found["count"], 0
    rows: list[list[str | Bar]] = []
    for bound, up_to in [*found["up_to"], [None, count]]:
        if up_to > before:
            name = "more" if bound is None else f"up to {bound:,} ms"
            rows.append([name, f"{up_to - before:,}", Bar(up_to - before, count)])
        before = up_to
    note = f"{count:,} since the start: p50 {found['p50']:.0f}, p99 {found['p99']:.0f}, at most {found['max']:.0f} ms"
    return Section("Lateness of releases", rows, note=note)


def _topics(figures: dict[str, Any]) -> Section:
    topics, in_all = figures["overview"]["topics"], figures["overview"]["topics_in_all"]
    rows: list[list[str | Bar]] = [
        [one["topic"], f"{one['puts_per_s']:,.1f}", f"{one['gets_per_s']:,.1f}", f"{one['messages']:,}"]
        for one in topics
    ]
    more = f"; the busiest {len(topics)} of {in_all:,}" if in_all > len(topics) else ""
    note = f"the last minute, sampled every 10 s{more}"
    return Section("Topics", rows, ["topic", "in per second", "out per second", "messages in all"], note)


def _minutes(figures: dict[str, Any]) -> Section:
    rows = _bars([(time_text(minute_ms, "%H:%M"), count) for minute_ms, count in figures["by_minute"]])
    in_all = sum(max(0, count) for _, count in figures["by_minute"])
    note = f"{in_all:,} in the next hour; minutes without messages are left out"
    if figures["counted"] == "wheel":
        note += (
            ". There are too many pending messages to count all: the counts are those of the timer wheel, without "
            "levels and blocks"
        )
    return Section("Due in the next hour, by minute", rows, ["minute", "messages", ""], note)


def _hours(figures: dict[str, Any]) -> Section:
    rows = _bars([(time_text(start_ms, "%a %H:00"), count) for start_ms, count in figures["by_hour"]])
    return Section("Due in the next 24 hours, by hour", rows, ["hour", "messages", ""], _as_of(figures))


def _days(figures: dict[str, Any]) -> Section:
    days = [(time_text(start_ms, "%Y-%m-%d %a"), count) for start_ms, count in figures["by_day"]]
    if len(days) > DAYS_MAX:
        days[DAYS_MAX - 1 :] = [("later", sum(count for _, count in days[DAYS_MAX - 1 :]))]
    return Section("Due by day", _bars(days), ["day", "messages", ""], _as_of(figures))


def _as_of(figures: dict[str, Any]) -> str:
    if figures["counted_ms"] is None:
        return "the broker is still counting"
    return f"all pending messages, counted at {time_text(figures['counted_ms'], '%H:%M:%S')}"


def _bars(counts: list[tuple[str, int]]) -> list[list[str | Bar]]:
    """Return a row with a bar for each count above 0."""
    most = max((count for _, count in counts), default=0)
    return [[name, f"{count:,}", Bar(count, most)] for name, count in counts if count > 0]


def _by_topic(figures: dict[str, Any]) -> Section:
    topics, in_all = figures["overview"]["pending_by_topic"], figures["overview"]["pending_topics_in_all"]
    note = f"{figures['timers']['pending']:,} pending messages in {in_all:,} {'topic' if in_all == 1 else 'topics'}"
    if in_all > len(topics):
        note += f"; the {len(topics)} with the most"
    return Section("Pending by topic", _bars(topics), ["topic", "messages", ""], note)


def _groups(figures: dict[str, Any]) -> Section:
    overview = figures["overview"]
    groups, in_all = overview["groups"], overview["groups_in_all"]
    rows: list[list[str | Bar]] = [
        [one["group"], one["topic"], f"{one['messages']:,}", f"{one['members']:,}"] for one in groups
    ]
    note = "messages that a group has not consumed, as wheelmq lag counts them"
    if in_all > len(groups):
        note += f"; the largest {len(groups)} of {in_all:,}"
    if not overview["groups_complete"]:
        note += "; there are too many queues to count all groups"
    return Section("Groups with lag", rows, ["group", "topic", "lag", "members"], note)


def _dead_letters(figures: dict[str, Any]) -> Section:
    overview = figures["overview"]
    rows: list[list[str | Bar]] = [[one["group"], f"{one['messages']:,}"] for one in overview["dead_letters"]]
    if overview["timer_dead_letters"]:
        rows.append(["none: the timer could not deliver them", f"{overview['timer_dead_letters']:,}"])
    note = "stored messages, also those that were sent again; wheelmq dead-letters lists and resends them"
    return Section("Dead letters", rows, ["group", "messages"], note)
