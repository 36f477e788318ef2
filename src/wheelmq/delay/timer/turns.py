"""The broker's side of the turn protocol: lease, plan, upload, commit (docs/formats/turns.md).

A turn has no effect until the broker has checked all of it. The state is only in memory, except the mark. So a pipeline
that dies leaves nothing to clean up, and a restarted broker answers STALE.
"""

from __future__ import annotations

import zlib
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from wheelmq.delay.timer.rows import TurnRows, are_in_order, are_the_origins
from wheelmq.formats.disk.origin import Stream, origin_of, timer_origin
from wheelmq.formats.disk.turn_row import KIND_BLOCKS, KIND_INDEX, KIND_QUEUE, KIND_WALK, KINDS, TURN_ROW
from wheelmq.system.failpoint import reach

LEASE_MS: Final = 5000
UPLOAD_BYTES_MAX: Final = 512 << 20


class Holder(NamedTuple):
    """A pipeline that asks for the lease."""

    name: str
    """Its name in logs and metrics. Several pipelines may have the same one."""
    id: str
    """The random id of its process, or of the supervisor that restarts that process. It appears in no answer."""
    address: str = "an unknown address"


class LeaseHeld(Exception):
    """Another pipeline holds the lease and renews it. The text names it."""


class Stale(Exception):
    """The request belongs to a lease or a turn that is over: open a new lease."""


class TurnRejected(Exception):
    """The proposal does not agree with its plan. Nothing was changed."""


class BlockWindow(msgspec.Struct, frozen=True):
    after_ms: int
    """Start of the scanned due times, exclusive."""
    through_ms: int
    """End of the scanned due times, inclusive."""
    rows: int
    """Number of these messages."""
    blocks: list[tuple[int, str, int]]
    """Number, folder, and number of units to scan. The records of these units are on disk."""


class TurnPlan(msgspec.Struct, frozen=True):
    """The work of one turn. It has only integers and strings, because it is also the end offset of a micro-batch."""

    broker: str
    epoch: int
    turn: int
    write_ms: int
    """Write time of the units: the time of the plan, floored to the precision."""
    index_from: int
    """E: the first queue offset to index."""
    index_to: int
    walk_after_ms: int
    """S: the last slot that was scanned."""
    walk_through_ms: int
    walk_rows: int
    """Number of units in the slots to scan."""
    timer_log_end: int
    """T: all units below it are complete and on disk."""
    now_ms: int = 0
    """Time of the plan by the broker's clock."""
    queues: list[tuple[int, int, int]] = []
    """Ranges to stage from queues that are in order of due times: stream, first queue offset, end."""
    blocks: BlockWindow | None = None


class Part(msgspec.Struct, frozen=True):
    """An upload that the driver names as the winner among the attempts of a task."""

    kind: str
    part: int
    attempt: int
    chunks: int
    rows: int
    crc: int


class Proposal(msgspec.Struct):
    """The rows of one turn by kind: units in queue order, and rows to arm."""

    plan: TurnPlan
    index_parts: list[TurnRows]
    walk_parts: list[TurnRows]
    block_parts: list[TurnRows] = []
    queue_parts: list[TurnRows] = []


class _Upload:
    def __init__(self) -> None:
        self.chunks: dict[int, bytes] = {}

    def whole(self, part: Part) -> TurnRows:
        missing = next((i for i in range(part.chunks) if i not in self.chunks), None)
        if missing is not None:
            raise TurnRejected(f"{part.kind} {part.part}: chunk {missing} of {part.chunks} is missing")
        raw = b"".join(self.chunks[i] for i in range(part.chunks))
        if zlib.crc32(raw) != part.crc or len(raw) != part.rows * TURN_ROW.itemsize:
            raise TurnRejected(f"{part.kind} {part.part}: {len(raw)} bytes are not the {part.rows} rows of the winner")
        return np.frombuffer(raw, TURN_ROW)


class Turns:
    """The lease, the plan under way and its uploads. Times are monotonic milliseconds unless named otherwise."""

    def __init__(self, epoch: int, turn: int) -> None:
        self.epoch = epoch
        self.turn = turn
        self._holder: Holder | None = None
        self._renewed_ms = 0
        self.plan: TurnPlan | None = None
        self._uploads: dict[tuple[str, int, int], _Upload] = {}
        self._upload_bytes = 0

    def resume(self, epoch: int, turn: int) -> None:
        self.epoch, self.turn = epoch, turn

    @property
    def holder(self) -> str | None:
        """Name of the pipeline that holds the lease, or held the last one."""
        return None if self._holder is None else self._holder.name

    def count_from(self, epoch: int) -> None:
        self.epoch = epoch

    def open(self, holder: Holder, now_ms: int) -> int:
        """Give the lease to `holder`, and return the epoch. Raises LeaseHeld while another holder renews.

        A holder's id, not its name, opens its own lease again at once. Without an id it waits until the lease lapses.
        """
        known = self._holder
        if known is not None and self.is_held(now_ms) and (not holder.id or known.id != holder.id):
            raise LeaseHeld(
                f"pipeline {known.name!r} at {known.address} holds the lease and renewed it "
                f"{self.silent_ms(now_ms)} ms ago"
            )
        self._holder = holder
        self.epoch += 1
        self._renewed_ms = now_ms
        self._drop()
        return self.epoch

    def take_back(self) -> None:
        """End the lease, because the broker itself does the rest of the work."""
        self._holder = None
        self.epoch += 1
        self._drop()

    def renew(self, epoch: int, now_ms: int) -> None:
        """Renew the lease. Raises Stale."""
        if epoch != self.epoch or self._holder is None:
            raise Stale(f"epoch {epoch} is over, the last epoch is {self.epoch}")
        self._renewed_ms = now_ms

    def is_held(self, now_ms: int) -> bool:
        return self._holder is not None and self.silent_ms(now_ms) < LEASE_MS

    def silent_ms(self, now_ms: int) -> int:
        return now_ms - self._renewed_ms

    def begin(self, plan: TurnPlan) -> None:
        """Set `plan` as the plan under way. It is returned unchanged until it is committed."""
        assert plan.epoch == self.epoch and plan.turn == self.turn + 1
        self._drop()
        self.plan = plan

    def under_way(self, epoch: int, turn: int) -> TurnPlan:
        """Return the plan of this turn. Raises Stale when it is not the one under way."""
        if self.plan is None or (epoch, turn) != (self.plan.epoch, self.plan.turn):
            raise Stale(f"turn {turn} of epoch {epoch} is not the running turn")
        return self.plan

    def upload(self, epoch: int, turn: int, key: tuple[str, int, int], chunk: int, rows: bytes) -> None:
        """Store one chunk of the attempt `key` (kind, part, attempt). Raises Stale, TurnRejected."""
        self.under_way(epoch, turn)
        if len(rows) % TURN_ROW.itemsize:
            raise TurnRejected(f"{len(rows)} bytes are not whole rows of {TURN_ROW.itemsize} bytes")
        upload = self._uploads.setdefault(key, _Upload())
        upload_bytes = self._upload_bytes + len(rows) - len(upload.chunks.get(chunk, b""))
        if upload_bytes > UPLOAD_BYTES_MAX:
            raise TurnRejected(f"uploads of one turn exceed {UPLOAD_BYTES_MAX} bytes")
        self._upload_bytes = upload_bytes
        upload.chunks[chunk] = rows
        reach("upload.taken")

    def check(
        self, epoch: int, turn: int, winners: list[Part], walk_units: npt.NDArray[np.int32], precision_ms: int
    ) -> Proposal:
        """Return the proposal of the winners, checked against the plan. Changes nothing. Raises Stale, TurnRejected.

        - Each queue offset of the plan is there exactly once, in order.
        - Each slot of the plan has as many rows as its chain has units.
        - Each row is in the slot range that it claims.
        - Each message of the plan's queues is there exactly once, in order.
        """
        plan = self.under_way(epoch, turn)
        parts: dict[str, list[TurnRows]] = {kind: [] for kind in KINDS}
        for winner in sorted(winners, key=lambda part: (part.kind, part.part)):
            upload = self._uploads.get((winner.kind, winner.part, winner.attempt))
            if upload is None and winner.rows:
                raise TurnRejected(f"{winner.kind} {winner.part}: attempt {winner.attempt} uploaded nothing")
            rows = upload.whole(winner) if upload else np.empty(0, TURN_ROW)
            if winner.kind not in parts:
                raise TurnRejected(f"{winner.kind!r} is not a kind of rows")
            parts[winner.kind].append(rows)
        _check_index(plan, parts[KIND_INDEX])
        _check_walk(plan, parts[KIND_WALK], walk_units, precision_ms)
        _check_queues(plan, parts[KIND_QUEUE])
        return Proposal(plan, parts[KIND_INDEX], parts[KIND_WALK], parts[KIND_BLOCKS], parts[KIND_QUEUE])

    def finish(self) -> None:
        assert self.plan is not None
        self.turn = self.plan.turn
        self._drop()

    def _drop(self) -> None:
        self.plan = None
        self._uploads.clear()
        self._upload_bytes = 0


def _check_index(plan: TurnPlan, parts: list[TurnRows]) -> None:
    expected = plan.index_from
    for rows in parts:
        if not are_in_order(rows, timer_origin(expected)):
            raise TurnRejected(
                f"{KIND_INDEX}: the rows from queue offset {expected} on are incomplete, repeated or out of order"
            )
        expected += len(rows)
    if expected != plan.index_to:
        raise TurnRejected(f"{KIND_INDEX}: the rows end at queue offset {expected}, the plan at {plan.index_to}")


def _check_walk(plan: TurnPlan, parts: list[TurnRows], units: npt.NDArray[np.int32], precision_ms: int) -> None:
    counted = np.zeros(len(units), np.int64)
    for rows in parts:
        places = (rows["slot_ms"] - plan.walk_after_ms) // precision_ms - 1
        if len(rows) and (places.min() < 0 or places.max() >= len(units)):
            raise TurnRejected(f"{KIND_WALK}: the slot of a row is not in the plan")
        counted += np.bincount(places, minlength=len(units))
    if not np.array_equal(counted, units):
        wrong = int(np.flatnonzero(counted != units)[0])
        slot_ms = plan.walk_after_ms + (wrong + 1) * precision_ms
        raise TurnRejected(f"{KIND_WALK}: slot {slot_ms} has {units[wrong]} units, but {counted[wrong]} rows arrived")


def _check_queues(plan: TurnPlan, parts: list[TurnRows]) -> None:
    """Check that the rows of all parts, in sequence, are the plan's messages, each once, in order."""
    ranges = [
        np.arange(origin_of(Stream(stream), first), origin_of(Stream(stream), end))
        for stream, first, end in plan.queues
    ]
    expected = np.concatenate([np.empty(0, np.int64), *ranges])
    at = 0
    for rows in parts:
        if not are_the_origins(rows, expected[at : at + len(rows)]):
            raise TurnRejected(f"{KIND_QUEUE}: the rows from message {at} on are incomplete, repeated or out of order")
        at += len(rows)
    if at != len(expected):
        raise TurnRejected(f"{KIND_QUEUE}: received {at} rows, but the plan has {len(expected)} messages")
