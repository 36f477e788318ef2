"""The batches of this broker: each is decided once, and its rows are appended once.

A decision is on disk before the first row. Ticks append the rows in slices. Each slice begins with a mark, so the log
alone defines how many rows it has, also after a kill or on another machine.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from wheelmq.broker.admission.put_status import PutFailed
from wheelmq.broker.answers import Deferred, Given, PeerError, reply
from wheelmq.broker.background_jobs import run_in_background
from wheelmq.broker.batches.cursor import RowCursor
from wheelmq.broker.batches.layouts import BatchLayouts
from wheelmq.broker.batches.marks import find_progress, mark_message
from wheelmq.broker.batches.spool import Spool, UploadWrong
from wheelmq.broker.durability import Durability
from wheelmq.broker.fast_batch import FastBatch
from wheelmq.broker.holds import Holds
from wheelmq.broker.puts import Puts
from wheelmq.broker.replication.role import Role
from wheelmq.broker.settings import BrokerSettings
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.batch import (
    BatchDecision,
    BatchId,
    BatchMark,
    BatchPart,
    RowsWrong,
    UploadedChunk,
    UploadedRow,
    encode_key,
    key_hashes,
)
from wheelmq.formats.disk.message import Message
from wheelmq.formats.units import LogPosition
from wheelmq.formats.wire.codes import ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.store.store import Store
from wheelmq.system.clock import Clock
from wheelmq.system.workers import Worker

log = logging.getLogger(__name__)

SLICE_ROWS: Final = 256
"""Maximum rows of a slice, so that no tick takes long."""
SLICE_BYTES: Final = 256 << 10
"""Maximum bytes of the records of a slice, unless one row is larger."""
ROW_ROOM_BYTES: Final = 512
"""Bytes of the record of a row besides its body and its own properties, and of its hash in the mark, at most."""
OPEN_MAX: Final = 1000
"""Maximum decided batches that are not complete."""
REMEMBERED_MAX: Final = 10_000
"""Complete batches in memory. The broker finds others by their marks."""
RETRY_MS: Final = 1000
"""Wait after a slice that the store rejected."""
EXPIRY_MS: Final = 60_000
"""Time between two looks for uploads without a commit."""
UNDECIDED_MS: Final = 3_600_000
"""Life of an upload without a commit, since its last chunk."""


_START: Final = LogPosition(0)


class Phase(StrEnum):
    DECIDING = "deciding"
    """A worker checks the uploads and saves the decision."""
    APPENDING = "appending"
    SYNCING = "syncing"
    """All rows are in the log, and not yet on disk."""
    REJECTED = "rejected"
    """The uploads are not those of the commit. The next commit is checked again."""


@dataclass(slots=True)
class Batch:
    """A batch with a decision."""

    decision: BatchDecision
    phase: Phase
    done: int | None = None
    """Rows in the log; None until the marks are read."""
    end: LogPosition = _START
    """The position after the last row in the log."""
    is_awaited: bool = False
    """Whether a wait for the replicas runs."""
    problem: str = ""
    """Why the last slice failed, or the commit."""
    retry_ms: int = 0
    """Monotonic time of the next slice, after a failure."""
    cursor: RowCursor | None = None
    """The first row that is not in the log; None until it is found."""


class Batches:
    def __init__(
        self,
        store: Store,
        puts: Puts,
        spool: Spool,
        holds: Holds,
        *,
        layouts: BatchLayouts,
        fast: FastBatch,
        durability: Durability,
        want_flush: Callable[[], None],
        role: Role,
        settings: BrokerSettings,
        clock: Clock,
        worker: Worker,
    ) -> None:
        """Take up the decided batches of the spool. `want_flush` requests a flush of the log."""
        self.layouts = layouts
        self.fast: FastBatch | None = fast
        """None leaves all rows to the plain code."""
        self._store, self._puts, self._spool, self._holds = store, puts, spool, holds
        self._durability, self._want_flush = durability, want_flush
        self._role, self._settings = role, settings
        self._clock, self._worker = clock, worker
        self._open = OrderedDict((one.id, Batch(one, Phase.APPENDING)) for one in spool.decisions())
        self._done: OrderedDict[BatchId, int] = OrderedDict()
        """The number of rows of complete batches."""
        decided = {batch.key for batch in self._open}
        now_ms = clock.monotonic_ms()
        self._uploads = {key: now_ms for key in spool.batch_keys() if key not in decided}
        """Monotonic time of the last chunk of each undecided batch."""

    def find(self, batch: BatchId) -> Batch | int | None:
        """Return a batch that is open, or the number of rows of a complete one, or None."""
        return self._open.get(batch) or self._done.get(batch)

    def known_rows(self, batch: BatchId) -> int | None:
        """Return the number of rows of a batch that memory or the log knows; None for any other batch."""
        found = self.find(batch)
        if found is None:
            progress = find_progress(self._store, batch)
            return None if progress is None else progress.rows
        return found if isinstance(found, int) else found.decision.rows

    # Uploads -------------------------------------------------------------------------------------------------------

    def save_job(self, batch: BatchId, part: BatchPart, number: int, chunk: UploadedChunk) -> Callable[[], None] | None:
        """Return the job that saves a chunk; None if the batch is decided, and needs no further uploads."""
        self.forget_rejected(batch)
        found = self.find(batch)
        if found is None:
            self._uploads[batch.key] = self._clock.monotonic_ms()
        elif isinstance(found, int) or found.phase is not Phase.DECIDING:
            return None  # while a commit is checked, it can still be rejected
        return self._spool.save_job(batch, part, number, chunk)

    def expire(self) -> None:
        """Remove uploads that no commit has named for an hour."""
        before_ms = self._clock.monotonic_ms() - UNDECIDED_MS
        for key in [key for key, at_ms in self._uploads.items() if at_ms <= before_ms]:
            log.warning("the uploads of batch %s are removed: no commit named them for %d s", key, UNDECIDED_MS // 1000)
            self._remove(key)

    # Commits -------------------------------------------------------------------------------------------------------

    def commit(self, decision: BatchDecision) -> None:
        """Begin a batch, unless it has begun.

        Raises PeerError if too many are open, rows are not on disk, or the number of rows differs.
        """
        batch = decision.id
        self.forget_rejected(batch)
        if self.find(batch) is not None:
            return
        progress = find_progress(self._store, batch)
        if progress is not None and progress.done == progress.rows:
            if progress.end > self._store.log.synced:
                raise PeerError(ResponseCode.SYSTEM_BUSY, "the rows are not on disk yet: commit the batch again")
            self._finish(batch, progress.rows)
            return
        if not decision.rows:
            self._finish(batch, 0)
            return
        if len(self._open) >= OPEN_MAX:
            raise PeerError(ResponseCode.SYSTEM_BUSY, f"{OPEN_MAX} batches are open: try again later")
        if progress is not None and progress.rows != decision.rows:
            raise PeerError(
                ResponseCode.INVALID_PARAMETER,
                f"batch {batch} has {progress.rows} rows in the log of this broker, and the commit names "
                f"{decision.rows}: the job gave other rows this time",
            )
        found = self._open[batch] = Batch(decision, Phase.DECIDING)
        self._uploads.pop(batch.key, None)

        def decided(result: object) -> None:
            if isinstance(result, Exception):
                found.phase, found.problem = Phase.REJECTED, str(result)
                self._uploads[batch.key] = self._clock.monotonic_ms()
                if not isinstance(result, UploadWrong):
                    log.error("the decision about batch %s was not saved: %s", batch, result)
            else:
                found.phase = Phase.APPENDING
            self._holds.wake(batch)

        self._worker.submit(self._spool.decide_job(decision), decided)

    def forget_rejected(self, batch: BatchId) -> None:
        """Let a batch whose commit was rejected be uploaded and committed again. Its sink may not have the answer."""
        found = self._open.get(batch)
        if found is not None and found.phase is Phase.REJECTED:
            del self._open[batch]

    # Ticks ---------------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> int:
        """Append the next slice, and finish the batches that are on disk. Returns the number of records."""
        if not self._role.is_master:
            self._forget_progress()
            return 0
        for one in list(self._open.values()):
            if one.phase is Phase.SYNCING and not one.is_awaited and one.retry_ms <= now_ms:
                self._finish_when_safe(one)
        if self._store.journal.is_full:
            return 0
        appending = (one for one in self._open.values() if one.phase is Phase.APPENDING and one.retry_ms <= now_ms)
        ready = next(appending, None)
        return 0 if ready is None else self._append(ready, now_ms)

    def _finish_when_safe(self, one: Batch) -> None:
        """Finish a batch once its rows are on disk, and on the replicas as far as the settings ask for that."""
        if self._store.log.synced < one.end:
            return
        if not self._durability.is_sync:
            self._finish(one.decision.id, one.decision.rows)
            return
        one.is_awaited = True

        def safe(given: Given) -> None:
            one.is_awaited = False
            if isinstance(given, Command) and given.code == ResponseCode.SUCCESS:
                self._finish(one.decision.id, one.decision.rows)
            else:
                one.problem, one.retry_ms = "the replicas do not have the rows", self._clock.monotonic_ms() + RETRY_MS

        waited = self._durability.defer(reply(), one.end)
        if isinstance(waited, Deferred):
            waited.when_given(safe)
        else:
            safe(waited)

    def _forget_progress(self) -> None:
        """Read the marks again once this broker is a master: another master may go on with the batches."""
        self._done.clear()
        for one in self._open.values():
            one.done = one.cursor = None
            if one.phase is Phase.SYNCING:
                one.phase = Phase.APPENDING

    def next_ms(self, now_ms: int) -> int | None:
        """Return the monotonic time at which a slice can be appended; None without one."""
        if not self._role.is_master:
            return None
        synced = self._store.log.synced
        times_ms = [
            one.retry_ms
            for one in self._open.values()
            if one.phase is Phase.APPENDING or (one.phase is Phase.SYNCING and not one.is_awaited and synced >= one.end)
        ]
        return max(now_ms, min(times_ms)) if times_ms else None

    def _append(self, one: Batch, now_ms: int) -> int:
        try:
            count = self._append_slice(one)
        except (PeerError, PutFailed, OSError, UploadWrong, RowsWrong) as error:
            one.problem, one.retry_ms, one.cursor = str(error), now_ms + RETRY_MS, None
            log.warning("rows of batch %s wait: %s", one.decision.id, error)
            return 0
        one.problem = ""
        if one.done == one.decision.rows:
            one.phase = Phase.SYNCING
            self._want_flush()  # the sink waits, and the next flush can be seconds away
        else:
            self._open.move_to_end(one.decision.id)  # the next slice is one of another batch
        return count

    def _append_slice(self, one: Batch) -> int:
        decision = one.decision
        if one.done is None:
            progress = find_progress(self._store, decision.id)
            one.done, one.end = (0, _START) if progress is None else (progress.done, progress.end)
        if one.done == decision.rows:
            return 0
        if one.cursor is None:
            one.cursor = RowCursor(self._spool.chunks(decision))
            one.cursor.skip(one.done)
        cursor, size_max = one.cursor, min(SLICE_BYTES, self._store.record_bytes_max // 4)
        rows = None
        if self.fast is not None:
            rows = self.fast.measure(cursor, SLICE_ROWS, size_max, ROW_ROOM_BYTES)
        if rows is not None:
            count, place = len(rows), rows.place
            one.end = self._puts.put_measured(rows, self._mark(one, rows.keys()))
        else:
            messages, place = self._next_messages(cursor, size_max)
            keys = [encode_key(message.properties[props.UNIQ_KEY]) for message in messages]
            last, count = self._puts.put_marked(messages, self._mark(one, keys)), len(messages)
            one.end = LogPosition(last.position + last.size)
        cursor.move(*place)
        one.done += count
        return 1 + count

    def _mark(self, one: Batch, keys: list[bytes]) -> Message:
        """Return the mark before the next rows, which have these unique keys."""
        assert one.done is not None
        job, batch, hashes = one.decision.job, one.decision.batch, key_hashes(keys)
        return mark_message(BatchMark(job=job, batch=batch, rows=one.decision.rows, first=one.done, keys=hashes))

    def _next_messages(self, cursor: RowCursor, size_max: int) -> tuple[list[Message], tuple[int, int]]:
        """Return the messages of the next slice, and the place after it. Raises UploadWrong, RowsWrong, OSError."""
        found, size, place = list[Message](), 0, (0, cursor.at)
        for chunk, row, after in cursor.rows():
            size += len(row.body) + len(row.properties) + ROW_ROOM_BYTES
            if len(found) == SLICE_ROWS or (found and size > size_max):
                break
            found.append(self.message(chunk.topic, chunk.chunk, row))
            place = after
        if not found:
            raise UploadWrong("the files of the uploads have lost rows since the commit was checked")
        return found, place

    def message(self, topic: str, chunk: UploadedChunk, row: UploadedRow) -> Message:
        """Return the message of a row, as a send would store it."""
        properties = props.parse(row.properties.decode("utf-8", "replace"))
        properties.update(self._settings.broker.record_properties())
        return Message(topic, row.queue_id, row.body, properties, born_ms=chunk.born_ms, born_host=chunk.born_host)

    def _finish(self, batch: BatchId, rows: int) -> None:
        self._open.pop(batch, None)
        self._done[batch] = rows
        if len(self._done) > REMEMBERED_MAX:
            self._done.popitem(last=False)
        self._remove(batch.key)
        self._holds.wake(batch)

    def _remove(self, key: str) -> None:
        self._uploads.pop(key, None)
        run_in_background(self._spool.remove_job(key), self._worker)
