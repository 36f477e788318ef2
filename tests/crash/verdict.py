"""What a run came to: every message that was asked for is looked for, every record is accounted for.

A count of anything that must not happen is a violation; so is a store that does not read from end to end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tests.crash.notes import TOPICS, Fate, Kind, Notes, Outcome
from tests.crash.records import TIMER_TOPIC, BadBytes, Column, Records, queues

DEAD_LETTER_TOPIC: Final = "rmq_sys_wheelmq_dead_letter"
INDEX_MASK: Final = (1 << 40) - 1
EXAMPLES: Final = 5

Mask = npt.NDArray[np.bool_]


@dataclass
class Verdict:
    """Counts, and what must not be."""

    counts: dict[str, int] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    delivered: npt.NDArray[Any] | None = None
    """One row for each delivered timer (number, due_ms, store_ms, parked_ms), by its queue's unit."""

    def expect_none(self, name: str, found: Column | list[int], records: Records | None = None) -> None:
        """Count `found` under `name`; any at all is a violation. They are message numbers where records are given."""
        self.counts[name] = len(found)
        if not len(found):
            return
        some = [int(one) for one in found[:EXAMPLES]]
        stories = [story(one, records) for one in some] if records is not None else [str(one) for one in some]
        self.violations.append(f"{name}: {len(found)}, such as {'; '.join(stories)}")


DELIVERED: Final = np.dtype([("number", "i8"), ("due_ms", "i8"), ("store_ms", "i8"), ("parked_ms", "i8")])


def judge(root: Path, notes: Notes) -> Verdict:
    """Read the store at `root`, which no broker has open, and hold it against what the sender was told."""
    verdict = Verdict()
    try:
        records = Records(root, notes.key_prefix)
        units = {(topic, queue_id): found for topic, queue_id, found in queues(root)}
    except BadBytes as problem:
        verdict.violations.append(f"the store does not read: {problem}")
        return verdict
    rows = notes.rows
    verdict.counts |= {
        "asked": len(rows),
        "acknowledged": int((rows["fate"] == Fate.STORED).sum()),
        "unanswered": int((rows["fate"] == Fate.ASKED).sum()),
        "refused": int((rows["fate"] == Fate.REFUSED).sum()),
        "records": len(records),
        "log_end": records.end,
    }
    _judge_log(verdict, records)
    _judge_queues(verdict, records, units)
    parked = _Parked(records)
    _judge_origins(verdict, records, parked)
    _judge_due(verdict, records, parked, rows)
    rows_out = _deliveries(records, units)
    _judge_deliveries(verdict, records, parked, rows, rows_out)
    _judge_cancels(verdict, records, parked, rows)
    return verdict


def story(number: int, records: Records) -> str:
    """What the log holds of a message."""
    found = np.flatnonzero((records.of("number") == number) | (records.of("cancels") == number))
    parts = []
    for i in found.tolist():
        origin = int(records.of("origin")[i])
        parts.append(
            f"{records.topics[int(records.of('topic')[i])]}/{records.of('queue_id')[i]}#{records.of('queue_offset')[i]}"
            f" at {records.of('position')[i]} stored {records.of('store_ms')[i]} due {records.of('due_ms')[i]}"
            + (f" settles {origin & INDEX_MASK}" if origin >= 0 else "")
            + (f" (message {records.of('number')[i]} cancels)" if records.of("cancels")[i] != -2 else "")
        )
    return f"message {number} [{', '.join(parts) or 'not in the log'}]"


# The store as such ----------------------------------------------------------------------------------------------------


def _judge_log(verdict: Verdict, records: Records) -> None:
    times = records.of("store_ms")
    verdict.expect_none("store times that decrease", records.of("position")[1:][np.diff(times) < 0])
    ours = records.of("number") >= 0
    verdict.expect_none("bodies changed", records.of("number")[ours & (records.of("body_is_ours") == 0)], records)
    verdict.expect_none("dead letters", records.of("number")[_topic(records, DEAD_LETTER_TOPIC)], records)


def _judge_queues(verdict: Verdict, records: Records, units: dict[tuple[str, int], Any]) -> None:
    """Each queue's units name its records: all of them, in order, and no others."""
    verdict.counts["queues"] = len(units)
    verdict.counts["queue units"] = sum(map(len, units.values()))
    topics, ids = records.of("topic"), records.of("queue_id")
    seen = 0
    for (topic, queue_id), found in units.items():
        mine = np.flatnonzero((topics == records.topic_row(topic)) & (ids == queue_id))
        seen += len(mine)
        offsets = records.of("queue_offset")[mine]
        if not np.array_equal(offsets, np.arange(len(mine))):
            verdict.violations.append(f"{topic}/{queue_id}: queue offsets in the log are not 0, 1, 2, ...")
        same = len(found) == len(mine) and np.array_equal(found["position"], records.of("position")[mine])
        if not same or not np.array_equal(found["size"], records.of("size")[mine]):
            verdict.violations.append(f"{topic}/{queue_id}: {len(found)} units do not name the {len(mine)} records")
    if seen != len(records):
        verdict.violations.append(f"{len(records) - seen} records are in no queue")


def _topic(records: Records, *names: str) -> Mask:
    found: Mask = np.isin(records.of("topic"), [records.topic_row(name) for name in names])
    return found


# Parked messages and what settles them --------------------------------------------------------------------------------


class _Parked:
    """Parked records in the order of their origins, and the log row that settles each (-1 for none)."""

    def __init__(self, records: Records) -> None:
        rows = np.flatnonzero(records.of("parks") >= 0)
        self.rows = rows[np.argsort(records.of("parks")[rows])]
        self.origins = records.of("parks")[self.rows]
        self.due_ms = records.of("due_ms")[self.rows]
        self.settled_by: Column = np.full(len(self.rows), -1, np.int64)
        self.settlers = np.flatnonzero(records.of("origin") >= 0)
        self.indices = self.find(records.of("origin")[self.settlers])
        """Where in `rows` what each settles stands, behind their end where that is nowhere."""
        known = self.indices < len(self.rows)
        self.settled_by[self.indices[known]] = self.settlers[known]
        self.is_cancel: Mask = records.of("cancels")[self.rows] != -2

    def find(self, origins: Column) -> Column:
        """Where in `rows` the messages of `origins` stand; behind their end what is not there."""
        at = np.searchsorted(self.origins, origins)
        there = at < len(self.rows)
        there[there] = self.origins[at[there]] == origins[there]
        return np.where(there, at, len(self.rows))


def _judge_origins(verdict: Verdict, records: Records, parked: _Parked) -> None:
    """Each parked message is settled exactly once, later, by a record of the same message or a cancel of it."""
    origins = records.of("origin")[parked.settlers]
    unique, times = np.unique(origins, return_counts=True)
    verdict.expect_none("origins settled twice", unique[times > 1])
    strange = parked.indices >= len(parked.rows)
    verdict.expect_none("origins that were never parked", origins[strange])
    settlers, indices = parked.settlers[~strange], parked.indices[~strange]
    origin_rows = parked.rows[indices]
    verdict.expect_none("origins settled before they were parked", indices[settlers <= origin_rows])
    cancels = records.of("cancels")[settlers]
    by = np.where(cancels != -2, cancels, records.of("number")[settlers])
    verdict.expect_none("origins settled by another message", indices[by != records.of("number")[origin_rows]])
    verdict.expect_none("cancels settled", indices[parked.is_cancel[indices]])
    waiting = (parked.settled_by < 0) & ~parked.is_cancel
    verdict.expect_none("parked and never settled", records.of("number")[parked.rows[waiting]], records)
    rolled = _topic(records, TIMER_TOPIC) & (records.of("origin") >= 0) & (records.of("cancels") == -2)
    verdict.counts["rolled"] = int(rolled.sum())


def _judge_due(verdict: Verdict, records: Records, parked: _Parked, rows: Any) -> None:
    """A parked message is due when its sender asked for, to the millisecond, and stays so when it is parked again."""
    first = parked.rows[~parked.is_cancel]
    numbers, at = np.unique(records.of("number")[first], return_index=True)
    known = (numbers >= 0) & (numbers < len(rows))
    numbers, first = numbers[known], first[at[known]]
    asked, due = rows[numbers], records.of("due_ms")[first]
    received = due - asked["delay_ms"]
    right = np.where(
        asked["kind"] == Kind.DELIVER_AT,
        due == asked["due_ms"],
        (asked["asked_ms"] <= received) & (received <= records.of("store_ms")[first]),
    )
    verdict.expect_none("due at another time than asked for", numbers[~right], records)
    due_of = np.zeros(len(rows), np.int64)
    due_of[numbers] = due
    later = np.flatnonzero((records.of("number") >= 0) & (records.of("due_ms") > 0) & (records.of("cancels") == -2))
    later = later[records.of("number")[later] < len(rows)]
    changed = due_of[records.of("number")[later]] != records.of("due_ms")[later]
    verdict.expect_none("due times that changed", records.of("number")[later][changed], records)


# What came out --------------------------------------------------------------------------------------------------------


def _deliveries(records: Records, units: dict[tuple[str, int], Any]) -> Column:
    """Log rows of what the target queues hold, found through their units."""
    positions = [found["position"].astype(np.int64) for (topic, _), found in units.items() if topic in TOPICS]
    wanted = np.concatenate([np.empty(0, np.int64), *positions])
    at = np.searchsorted(records.of("position"), wanted)
    at = np.minimum(at, max(len(records) - 1, 0))
    found: Column = at[records.of("position")[at] == wanted] if len(records) else at
    return found


def _judge_deliveries(verdict: Verdict, records: Records, parked: _Parked, rows: Any, out: Column) -> None:
    numbers = records.of("number")[out]
    strange = (numbers < 0) | (numbers >= len(rows))
    verdict.expect_none("invented", out[strange])
    out, numbers = out[~strange], numbers[~strange]
    asked = rows[numbers]
    verdict.expect_none("cancels delivered", numbers[asked["kind"] == Kind.CANCEL], records)
    verdict.expect_none("refused and delivered", numbers[asked["fate"] == Fate.REFUSED], records)
    times = np.bincount(numbers, minlength=len(rows))
    verdict.expect_none("twice", np.flatnonzero(times > 1), records)
    settled_by_cancel = parked.settlers[records.of("cancels")[parked.settlers] != -2]
    cancelled = np.zeros(len(rows), np.bool_)
    gone = records.of("cancels")[settled_by_cancel]
    cancelled[gone[(gone >= 0) & (gone < len(rows))]] = True
    promised = (rows["fate"] == Fate.STORED) & (rows["kind"] != Kind.CANCEL)
    verdict.expect_none("lost", np.flatnonzero(promised & (times == 0) & ~cancelled), records)
    verdict.expect_none("cancelled and delivered", np.flatnonzero(cancelled & (times > 0)), records)
    due, stored = _due_of(records, parked, out), records.of("store_ms")[out]
    wished = np.where(due > 0, due, asked["due_ms"])  # what reached the broker after its time goes past the timer
    verdict.expect_none("early", numbers[stored < wished], records)
    topics = np.array([records.topic_row(name) for name in TOPICS])
    elsewhere = (topics[asked["topic"]] != records.of("topic")[out]) | (asked["queue"] != records.of("queue_id")[out])
    verdict.expect_none("in another queue than asked for", numbers[elsewhere], records)
    timed = asked["kind"] != Kind.PLAIN
    has_origin = records.of("origin")[out] >= 0
    verdict.expect_none("delivered past the timer", numbers[timed & ~has_origin & (asked["delay_ms"] > 0)], records)
    verdict.expect_none("plain and through the timer", numbers[~timed & has_origin], records)
    unanswered = rows["fate"] == Fate.ASKED
    verdict.counts |= {
        "delivered": len(out),
        "timers delivered": int(timed.sum()),
        "cancelled": int(cancelled.sum()),
        "unanswered and delivered": int((unanswered & (times > 0)).sum()),
    }
    verdict.delivered = _delivered(records, parked, out[timed & has_origin])


def _delivered(records: Records, parked: _Parked, out: Column) -> npt.NDArray[Any]:
    made = np.zeros(len(out), DELIVERED)
    made["number"] = records.of("number")[out]
    made["due_ms"] = _due_of(records, parked, out)
    made["store_ms"] = records.of("store_ms")[out]
    indices = parked.find(records.of("origin")[out])
    good = indices < len(parked.rows)
    made["parked_ms"][good] = records.of("store_ms")[parked.rows[indices[good]]]
    return made


def _due_of(records: Records, parked: _Parked, out: Column) -> Column:
    """When what was delivered was due: as its parked record says, 0 for what never was."""
    return np.append(parked.due_ms, 0)[parked.find(records.of("origin")[out])]


def _judge_cancels(verdict: Verdict, records: Records, parked: _Parked, rows: Any) -> None:
    """What a cancel was answered is what it did."""
    settled_at: Column = np.full(len(rows), 1 << 62, np.int64)  # log row of what settled a message for good
    finals = np.flatnonzero((records.of("origin") >= 0) & (records.of("parks") < 0))
    plain = np.flatnonzero(_topic(records, *TOPICS) & (records.of("origin") < 0))
    by_cancel = np.flatnonzero((records.of("origin") >= 0) & (records.of("cancels") >= 0))
    for found, name in ((finals, "number"), (plain, "number"), (by_cancel, "cancels")):
        of = records.of(name)[found]
        known = (of >= 0) & (of < len(rows))
        np.minimum.at(settled_at, of[known], found[known])
    cancels = np.flatnonzero((rows["kind"] == Kind.CANCEL) & (rows["fate"] == Fate.STORED))
    record_of: Column = np.full(len(rows), -1, np.int64)
    with_origin = np.zeros(len(rows), np.bool_)
    for i in parked.rows[parked.is_cancel]:
        number = records.of("number")[i]
        if 0 <= number < len(rows):
            record_of[number] = i
            with_origin[number] |= records.of("origin")[i] >= 0
    verdict.expect_none("cancels acknowledged and not in the log", cancels[record_of[cancels] < 0], records)
    asked = rows[cancels]
    target = asked["target"]
    settled_before = (target >= 0) & (settled_at[np.maximum(target, 0)] < record_of[cancels])
    acted = with_origin[cancels]
    outcome = asked["outcome"]
    target_known = (target >= 0) & (rows["fate"][np.maximum(target, 0)] == Fate.STORED)
    lies = {
        "cancelled, says the answer, and is not": (outcome == Outcome.CANCELLED) & ~acted,
        "not cancelled, says the answer, and is": (outcome != Outcome.CANCELLED) & acted,
        "settled, says the answer, and was not": (outcome == Outcome.SETTLED) & ~settled_before,
        "not found, says the answer, and was pending": (outcome == Outcome.NOT_FOUND) & target_known & ~settled_before,
        "cancels without an outcome": outcome == Outcome.NONE,
    }
    for name, wrong in lies.items():
        verdict.expect_none(name, cancels[wrong], records)
    verdict.counts |= {f"cancels: {one.name.lower()}": int((outcome == one).sum()) for one in Outcome if one}
