"""The problems that the dashboard shows in red, each with its reason and the remedy. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from wheelmq.dashboard.history import ChartPoint

LATE_MS: Final = 1000
"""The bound of lateness: an overdue message, or the 99th percentile of the last minute. The broker's is the same."""
RECENT_MS: Final = 60_000
"""The time over which the lateness of releases counts."""
QUIET_MS: Final = 60_000
"""A pipeline that has not worked for this time makes no turn. A start of Spark takes less."""

LOGS: Final = "in the folder logs of the home of wheelmq up"


class Alarm(NamedTuple):
    """A problem that needs the operator."""

    title: str
    """The kind of the problem. It has no figures, so a screen reader announces it once."""
    reason: str
    """One or more sentences without the last period."""
    remedy: str
    """Sentences."""


def alarms(figures: dict[str, Any], recent: ChartPoint | None) -> list[Alarm]:
    """Return the problems, the most severe first. `recent` has the lateness of the last minute."""
    if "problem" in figures:
        return [
            Alarm(
                "The broker does not answer",
                _sentence(figures["problem"]),
                f"Read the end of broker.log {LOGS}. wheelmq up starts the broker again if it dies. If it dies again, "
                "run wheelmq doctor.",
            )
        ]
    found = [*_sends(figures), *_lateness(figures, recent), *_pipeline(figures), *_slots(figures), *_kernels(figures)]
    return found + [alarm for alarm in _disk(figures) if not any("disk" in one.reason for one in found)]


def _sends(figures: dict[str, Any]) -> Iterator[Alarm]:
    if figures["takes_sends"] or not figures["is_master"]:
        return  # a slave accepts no sends, and that is no problem
    reason = figures["refusal"] or "the broker does not accept sends before the time in its settings"
    yield Alarm(
        "Sends are rejected", f"Sends are rejected: {reason}", _remedy_for_sends(reason, figures["overview"]["disk"])
    )


def _remedy_for_sends(reason: str, disk: dict[str, float]) -> str:
    if "disk is" in reason and "full" in reason:
        return (
            "Free space on the disk of the store, or move the store to a larger disk. The broker accepts sends again "
            f"below {disk['reject_percent']:.0f} %. A shorter file_reserved_time keeps fewer log files."
        )
    if "in-sync" in reason or "replicas" in reason:
        return "Start the slaves again, and read their logs. See docs/operations/replication.md."
    if "stopping" in reason:
        return "Wait for the broker's next start."
    if "time in its settings" in reason:
        return "Wait, or change start_accept_send_request_time_stamp in the settings of the broker."
    return f"Read the end of broker.log {LOGS}. Check the disk of the store, then run wheelmq doctor."


def _lateness(figures: dict[str, Any], recent: ChartPoint | None) -> Iterator[Alarm]:
    overdue_ms, overdue = figures["overview"]["overdue_ms"], figures["overview"]["due_and_not_released"]
    text = f"{_messages(overdue)} overdue, the first for {duration_text(overdue_ms)}"
    if figures["timers"]["is_stopped"]:
        yield Alarm(
            "The release of timers is stopped",
            "The release of timers is stopped" + (f": {text}" if overdue_ms >= LATE_MS else ""),
            "Set timerStopDequeue to false: wheelmq admin updateBrokerConfig, or the button on this page for users "
            "who may operate the broker.",
        )
    elif overdue_ms >= LATE_MS:
        yield Alarm(
            "Messages are overdue",
            _sentence(text),
            f"Run wheelmq doctor, and look for a slow disk or busy processors. Read the end of broker.log {LOGS}.",
        )
    elif recent is not None and (recent.lateness_p99_ms or 0) > LATE_MS:
        late = duration_text(recent.lateness_p99_ms or 0)
        yield Alarm(
            "Messages are late",
            f"Messages are late: in the last minute, 99 % were released within {late}, and the bound is "
            f"{duration_text(LATE_MS)}",
            "Wait a minute after a start of the broker: messages that were due meanwhile are late once. Otherwise look "
            "for a slow disk or busy processors on this machine, with wheelmq doctor.",
        )


def _pipeline(figures: dict[str, Any]) -> Iterator[Alarm]:
    found = figures["pipeline"]
    if not figures["expects_pipeline"]:
        return
    # Before its first turn, the broker counts the quiet time from a moment before its start.
    quiet_ms = min(found["quiet_ms"], figures["now_ms"] - figures["boot_ms"])
    if found["fallback"]["is_active"]:
        reason = "The pipeline makes no turn: the broker arms and indexes messages itself"
    elif not found["is_turning"] and quiet_ms >= QUIET_MS:
        reason = f"The pipeline has made no turn for {duration_text(quiet_ms)}"
    else:
        return
    yield Alarm(
        "The pipeline makes no turn",
        reason,
        f"Read the end of pipeline.log {LOGS}, and run wheelmq doctor: it checks Java and Spark. No message is late "
        "meanwhile. If you do not want a pipeline, start with --no-pipeline.",
    )


def _slots(figures: dict[str, Any]) -> Iterator[Alarm]:
    count = figures["pipeline"]["skipped_slots"]
    if count:
        yield Alarm(
            "Slots of the timer wheel cannot be read",
            f"{count:,} {'slot' if count == 1 else 'slots'} of the timer wheel cannot be read",
            f"Read the lines with CRITICAL in broker.log {LOGS}: they name each slot and the error. The broker tries "
            "again every 10 s. Restart it if the error stays, then see docs/operations/damage.md.",
        )


def _kernels(figures: dict[str, Any]) -> Iterator[Alarm]:
    if figures["kernels"]["state"] == "failed":
        yield Alarm(
            "The kernels are not compiled",
            f"The kernels are not compiled: {figures['kernels']['problem']}. The broker runs plain Python code, which "
            "takes many times as long for each message",
            f"Read the line with WARNING in broker.log {LOGS}. Restart the broker when the reason is gone: it compiles "
            "again.",
        )


def _disk(figures: dict[str, Any]) -> Iterator[Alarm]:
    disk = figures["overview"]["disk"]
    if disk["used_percent"] >= disk["delete_percent"]:
        yield Alarm(
            "The disk fills",
            f"The disk of the store is {disk['used_percent']:.0f} % full. From {disk['delete_percent']:.0f} % on, the "
            f"broker deletes log files of any age. Above {disk['reject_percent']:.0f} % it rejects sends",
            "Free space, or move the store to a larger disk. A shorter file_reserved_time keeps fewer log files.",
        )


def _messages(count: int) -> str:
    return "1 message is" if count == 1 else f"{count:,} messages are"


def duration_text(time_ms: float) -> str:
    """Return a duration for people: 7 ms, 1.5 s, 12 min, 5 h."""
    if time_ms < 1000:
        return f"{time_ms:.0f} ms"
    for unit, unit_ms, limit_ms in (("s", 1000, 120_000), ("min", 60_000, 7_200_000)):
        if time_ms < limit_ms:
            return f"{time_ms / unit_ms:.3g} {unit}"
    return f"{time_ms / 3_600_000:,.0f} h"


def _sentence(text: object) -> str:
    found = str(text)
    return found[:1].upper() + found[1:]
