"""Judge the result of a run: search every requested message, and account for every record.

Any forbidden event is a violation, and so is a store that cannot be read to its end. For a deleted block, the records
that settled its messages are the evidence, and the answers to the sender.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tests.crash.notes import QUEUES, TOPICS, Fate, Kind, Notes, Outcome
from tests.crash.records import KIND_BLOCK, TIMER_TOPIC, BadBytes, Block, Column, Records, blocks, queues

DEAD_LETTER_TOPIC: Final = "rmq_sys_wheelmq_dead_letter"
INDEX_BITS: Final = 40
INDEX_MASK: Final = (1 << INDEX_BITS) - 1
DONE, BLANK = 1, 2
"""Flags of a unit in a block's queue."""
EXAMPLES: Final = 5

Mask = npt.NDArray[np.bool_]


@dataclass
class Verdict:
    counts: dict[str, int] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    """The blocks that exist."""
    lost: Column = field(default_factory=lambda: np.empty(0, np.int64))
    """Numbers of the lost messages."""
    delivered: npt.NDArray[Any] | None = None
    """One row per delivered timer (number, due_ms, store_ms, parked_ms), found by its queue's unit."""

    def expect_none(self, name: str, found: Column | list[int], records: Records | None = None) -> None:
        """Count `found` under `name`; any item is a violation. With `records`, the items are message numbers."""
        self.counts[name] = len(found)
        if not len(found):
            return
        some = [int(one) for one in found[:EXAMPLES]]
        stories = (
            [story(one, records, self.blocks) for one in some] if records is not None else [str(one) for one in some]
        )
        self.violations.append(f"{name}: {len(found)}, such as {'; '.join(stories)}")


DELIVERED: Final = np.dtype([("number", "i8"), ("due_ms", "i8"), ("store_ms", "i8"), ("parked_ms", "i8")])


def judge(root: Path, notes: Notes) -> Verdict:
    """Read the closed store at `root`, and compare it with the answers to the sender."""
    verdict = Verdict()
    try:
        records = Records(root / "commitlog", notes.key_prefix)
        units = {(topic, queue_id): found for topic, queue_id, found in queues(root)}
        there = verdict.blocks = blocks(root, notes.key_prefix)
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
    for block in there:
        _judge_block(verdict, block, records)
    parked = _Parked(records, there, rows)
    _judge_origins(verdict, records, parked)
    _judge_places(verdict, records, parked, rows)
    _judge_due(verdict, records, parked, rows)
    rows_out = _deliveries(records, units)
    _judge_deliveries(verdict, records, parked, rows, rows_out)
    _judge_cancels(verdict, records, parked, rows)
    verdict.counts |= {"blocks": len(there), "blocks gone": parked.gone_blocks}
    return verdict


def story(number: int, records: Records, there: Sequence[Block] = ()) -> str:
    """Return the records of a message in the log and in existing blocks."""
    parts = [
        f"block {block.name}#{block.records.of('queue_offset')[i]} due {block.records.of('due_ms')[i]}"
        for block in there
        for i in np.flatnonzero(block.records.of("number") == number).tolist()
    ]
    found = np.flatnonzero((records.of("number") == number) | (records.of("cancels") == number))
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
    """Check that each queue's units name all its records, in order, and no others."""
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


def _judge_block(verdict: Verdict, block: Block, records: Records) -> None:
    """Check that a block's units name all its records in order, and that its flags agree with the commit log."""
    found, units = block.records, block.units
    number = int(found.of("queue_id")[0])
    indices = found.of("queue_offset")
    if (np.diff(indices) <= 0).any() or (found.of("queue_id") != number).any():
        verdict.violations.append(f"block {block.name}: its log is not that of one block, in the order of indices")
    if (np.diff(found.of("store_ms")) < 0).any():
        verdict.violations.append(f"block {block.name}: store times decrease")
    verdict.expect_none(f"bodies changed in block {block.name}", found.of("number")[found.of("body_is_ours") == 0])
    named = np.flatnonzero(units["size"])
    same = np.array_equal(named, indices) and np.array_equal(units["position"][named], found.of("position"))
    if not same or not np.array_equal(units["due_ms"][named], found.of("due_ms")):
        verdict.violations.append(f"block {block.name}: {len(named)} units do not name its {len(indices)} records")
    if ((units["size"] == 0) & (units["flags"] != BLANK)).any():
        verdict.violations.append(f"block {block.name}: a unit without a message is no blank")
    out = np.flatnonzero(units["flags"] & DONE) | KIND_BLOCK << 60 | number << INDEX_BITS
    verdict.expect_none(f"flagged in block {block.name} and not out", out[~np.isin(out, records.of("origin"))])


def _topic(records: Records, *names: str) -> Mask:
    found: Mask = np.isin(records.of("topic"), [records.topic_row(name) for name in names])
    return found


# Parked messages and what settles them --------------------------------------------------------------------------------


class _Parked:
    """Parked messages by origin, and the row in the commit log that settles each (-1 for none).

    A deleted block has only its settled messages, as far as the settling record identifies them. Each has the number
    of the message whose answer had its origin, if there was one.
    """

    def __init__(self, records: Records, there: list[Block], notes: Any) -> None:
        found = _parked_in(records, np.flatnonzero(records.of("parks") >= 0))
        stand = np.array([int(block.records.of("queue_id")[0]) for block in there], np.int64)
        in_blocks = []
        for block in there:
            in_blocks.append(_parked_in(block.records, np.arange(len(block.records))))
            in_blocks[-1]["row"] = NOT_IN_LOG
        gone = _gone(records, stand, notes)
        self.gone_blocks = len(np.unique(gone["origin"] >> INDEX_BITS))
        found = np.concatenate([found, *in_blocks, gone])
        self.all = found[np.argsort(found["origin"], kind="stable")]
        self.settled_by: Column = np.full(len(self.all), -1, np.int64)
        self.settlers = np.flatnonzero(records.of("origin") >= 0)
        self.indices = self.find(records.of("origin")[self.settlers])
        """Index in `all` of the message that each settles; the length of `all` if there is none."""
        known = self.indices < len(self.all)
        self.settled_by[self.indices[known]] = self.settlers[known]

    def find(self, origins: Column) -> Column:
        """Return the index in `all` of each of `origins`; the length of `all` for a missing one."""
        return _places(self.all["origin"], origins)


def _places(among: Column, wanted: Column) -> Column:
    """Return the index of each of `wanted` in the sorted `among`; the length of `among` for a missing one."""
    at = np.searchsorted(among, wanted)
    there = at < len(among)
    there[there] = among[at[there]] == wanted[there]
    return np.where(there, at, len(among))


PARKED: Final = np.dtype(
    [
        ("origin", "i8"),
        ("row", "i8"),  # in the commit log; NOT_IN_LOG for a message of a block
        ("number", "i8"),
        ("due_ms", "i8"),  # 0 if it is no longer known
        ("store_ms", "i8"),  # the latest possible store time
        ("is_cancel", "?"),
    ]
)
NOT_IN_LOG: Final = -1


def _parked_in(records: Records, rows: Column) -> npt.NDArray[Any]:
    made = np.zeros(len(rows), PARKED)
    for name, column in (("origin", "parks"), ("number", "number"), ("due_ms", "due_ms"), ("store_ms", "store_ms")):
        made[name] = records.of(column)[rows]
    made["row"], made["is_cancel"] = rows, records.of("cancels")[rows] != -2
    return made


def _gone(records: Records, stand: Column, notes: Any) -> npt.NDArray[Any]:
    """Return the settled messages of blocks whose numbers are not in `stand`."""
    origins = records.of("origin")
    numbers = origins >> INDEX_BITS & 0xFFFFF
    rows = np.flatnonzero((origins >> 60 == KIND_BLOCK) & (origins >= 0) & ~np.isin(numbers, stand))
    rows = rows[np.unique(origins[rows], return_index=True)[1]]
    made = np.zeros(len(rows), PARKED)
    made["origin"], made["row"] = origins[rows], NOT_IN_LOG
    by_cancel = records.of("cancels")[rows] != -2
    made["due_ms"] = np.where(by_cancel, 0, records.of("due_ms")[rows])
    made["number"] = np.where(by_cancel, records.of("cancels")[rows], records.of("number")[rows])
    made["store_ms"] = records.of("store_ms")[rows]
    with_origin = np.flatnonzero(notes["origin"] >= 0)[::-1]
    known, last = np.unique(notes["origin"][with_origin], return_index=True)  # a failover may give a place again
    at = _places(known, made["origin"])
    is_answered = at < len(known)
    answered, numbers = made[is_answered], with_origin[last[at[is_answered]]]
    own = np.clip(answered["number"], 0, len(notes) - 1)
    # Two masters at once give one place twice. The other message at that place is lost, and may have a larger number.
    numbers = np.where((own == answered["number"]) & (notes["origin"][own] == answered["origin"]), own, numbers)
    made["number"][is_answered], made["store_ms"][is_answered] = numbers, notes["answered_ms"][numbers]
    return made


def _judge_origins(verdict: Verdict, records: Records, parked: _Parked) -> None:
    """Check that each parked message is settled exactly once, later, by its own record or by a cancel of it."""
    origins = records.of("origin")[parked.settlers]
    unique, times = np.unique(origins, return_counts=True)
    verdict.expect_none("origins settled twice", unique[times > 1])
    verdict.expect_none("origins parked twice", parked.all["origin"][1:][np.diff(parked.all["origin"]) == 0])
    strange = parked.indices >= len(parked.all)
    verdict.expect_none("origins that were never parked", origins[strange])
    settlers, indices = parked.settlers[~strange], parked.indices[~strange]
    settled = parked.all[indices]
    verdict.expect_none("origins settled before they were parked", indices[settlers <= settled["row"]])
    cancels = records.of("cancels")[settlers]
    by = np.where(cancels != -2, cancels, records.of("number")[settlers])
    verdict.expect_none("origins settled by another message", indices[by != settled["number"]])
    verdict.expect_none("cancels settled", indices[settled["is_cancel"]])
    waiting = (parked.settled_by < 0) & ~parked.all["is_cancel"]
    verdict.expect_none("parked and never settled", parked.all["number"][waiting], records)
    rolled = _topic(records, TIMER_TOPIC) & (records.of("origin") >= 0) & (records.of("cancels") == -2)
    verdict.counts["rolled"] = int(rolled.sum())


def _judge_places(verdict: Verdict, records: Records, parked: _Parked, rows: Any) -> None:
    """Check that each message of a block has the origin of the answer to its sender."""
    mine = parked.all[parked.all["origin"] >> 60 == KIND_BLOCK]
    verdict.counts["in blocks"] = len(mine)
    mine = mine[(mine["number"] >= 0) & (mine["number"] < len(rows))]
    asked = rows[mine["number"]]
    moved = (asked["fate"] == Fate.STORED) & (asked["origin"] != mine["origin"])
    verdict.expect_none("in a block elsewhere than the answer said", mine["number"][moved], records)


def _judge_due(verdict: Verdict, records: Records, parked: _Parked, rows: Any) -> None:
    """Check that each parked message has the requested due time, to the millisecond, also after it is parked again."""
    first = parked.all[~parked.all["is_cancel"] & (parked.all["due_ms"] > 0)]
    numbers, at = np.unique(first["number"], return_index=True)
    known = (numbers >= 0) & (numbers < len(rows))
    numbers, first = numbers[known], first[at[known]]
    asked, due = rows[numbers], first["due_ms"]
    received = due - asked["delay_ms"]
    right = np.where(
        asked["kind"] == Kind.DELIVER_AT,
        due == asked["due_ms"],
        (asked["asked_ms"] <= received) & (received <= first["store_ms"]),
    )
    verdict.expect_none("due at another time than asked for", numbers[~right], records)
    due_of = np.zeros(len(rows), np.int64)
    due_of[numbers] = due
    later = np.flatnonzero((records.of("number") >= 0) & (records.of("due_ms") > 0) & (records.of("cancels") == -2))
    later = later[records.of("number")[later] < len(rows)]
    changed = due_of[records.of("number")[later]] != records.of("due_ms")[later]
    verdict.expect_none("due times that changed", records.of("number")[later][changed], records)


# Deliveries
# -----------------------------------------------------------------------------------------------------------


def _deliveries(records: Records, units: dict[tuple[str, int], Any]) -> Column:
    """Return the log rows of the messages in the target queues, found by their units."""
    positions = [found["position"].astype(np.int64) for (topic, _), found in units.items() if topic in TOPICS]
    wanted = np.concatenate([np.empty(0, np.int64), *positions])
    at = np.searchsorted(records.of("position"), wanted)
    at = np.minimum(at, max(len(records) - 1, 0))
    found: Column = at[records.of("position")[at] == wanted] if len(records) else at
    return found


def _waited_too_long(records: Records, out: Column, asked: Any) -> Mask:
    """Return which deliveries may be of sends whose delay passed while they waited for their new topic or queue.

    The broker delivers such a message at once (ADR 5). It was sent before the first message of its queue was stored.
    """
    stored = records.of("store_ms")[out]
    queues = records.of("topic")[out] * QUEUES + records.of("queue_id")[out]
    _, which = np.unique(queues, return_inverse=True)
    first = np.full(int(which.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, which, stored)
    waited: Mask = (asked["asked_ms"] <= first[which]) & (stored >= asked["asked_ms"] + asked["delay_ms"])
    return waited


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
    verdict.lost = np.flatnonzero(promised & (times == 0) & ~cancelled)
    verdict.expect_none("lost", verdict.lost, records)
    verdict.expect_none("cancelled and delivered", np.flatnonzero(cancelled & (times > 0)), records)
    due, stored = _due_of(records, parked, out), records.of("store_ms")[out]
    wished = np.where(due > 0, due, asked["due_ms"])  # a message that arrived after its due time bypasses the timer
    verdict.expect_none("early", numbers[stored < wished], records)
    topics = np.array([records.topic_row(name) for name in TOPICS])
    elsewhere = (topics[asked["topic"]] != records.of("topic")[out]) | (asked["queue"] != records.of("queue_id")[out])
    verdict.expect_none("in another queue than asked for", numbers[elsewhere], records)
    timed = asked["kind"] != Kind.PLAIN
    has_origin = records.of("origin")[out] >= 0
    bypassed = timed & ~has_origin & (asked["delay_ms"] > 0) & ~_waited_too_long(records, out, asked)
    verdict.expect_none("delivered past the timer", numbers[bypassed], records)
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
    good = indices < len(parked.all)
    made["parked_ms"][good] = parked.all["store_ms"][indices[good]]
    return made


def _due_of(records: Records, parked: _Parked, out: Column) -> Column:
    """Return the due time of each delivered message from its parked record; 0 if it was never parked."""
    return np.append(parked.all["due_ms"], 0)[parked.find(records.of("origin")[out])]


def _judge_cancels(verdict: Verdict, records: Records, parked: _Parked, rows: Any) -> None:
    """Check that the answer to each cancel is its effect."""
    settled_at: Column = np.full(len(rows), 1 << 62, np.int64)  # log row of the record that finally settled a message
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
    for i in parked.all["row"][parked.all["is_cancel"]]:
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
