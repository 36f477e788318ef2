"""Release: append due messages to the log, each in its real topic, once.

Due references wait in a ring of buckets of one millisecond, which share each append.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable

import numpy as np

from wheelmq.delay import refs as ref
from wheelmq.delay import ring
from wheelmq.delay.api import Generations
from wheelmq.delay.armed import cost_of
from wheelmq.delay.awaited import AwaitedReleases
from wheelmq.delay.failed import FailedReleases
from wheelmq.delay.rebuild import Unreleasable, dead_letter
from wheelmq.delay.refs import Refs
from wheelmq.delay.release_pace import ReleasePace
from wheelmq.delay.ring import Ring
from wheelmq.delay.timer.timer import Timer
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import Record
from wheelmq.formats.disk.origin import NO_ORIGIN, Origin, origin_text
from wheelmq.formats.kernels.journal import SETTLES
from wheelmq.formats.names import DEAD_LETTER_TOPIC
from wheelmq.formats.units import LogPosition, Millis
from wheelmq.observe.histogram import Histogram
from wheelmq.store.store import PropertiesTooLong, RecordTooLong, Store
from wheelmq.system.failpoint import reach
from wheelmq.system.rate_limited_log import RateLimitedLog

log = logging.getLogger(__name__)

TAKE_MAX = 500_000
"""Limit of the cost (armed.cost_of) of the references that one call puts into the ring: about 5 ms.

References due after a burst enter the ring after it.
"""

BulkAppend = Callable[[Refs, Millis], int]
"""Appends messages at the front of references sorted by origin, with the given time of release.

Returns the number of messages appended. The caller appends the next message with plain code.
"""


class Releaser:
    """Takes due references from the armed ones and appends their messages.

    Failed ones count as in hand. So do those of a slave, which its master releases.
    """

    def __init__(self, store: Store, timer: Timer, generations: Generations) -> None:
        self._store = store
        self._timer = timer
        self._pending = timer.pending
        self._generations = generations
        self._bulk: BulkAppend | None = None
        self._ring = Ring()
        self._pace = ReleasePace()
        self._is_leaving = False
        self.counts: Counter[str] = Counter()
        """Counts of messages by outcome.

        released, rolled, dead_letter: the message left its queue.
        early: the reference has an earlier due time than its record. It is armed again.
        unreadable: there is no record, or its body has changed. The message is set aside until the next start.
        too_long: no log file can hold the message, not even as a dead letter. It is set aside until the next start.
        failed: an unexpected error. The message stays in `failed` until the next try.
        """
        self.lateness_ms = Histogram(least=1.0)
        """Whole milliseconds from the due time of a message to the tick that released it."""
        self.failed = FailedReleases()
        self.awaited = AwaitedReleases(self._pending)
        self._failed_log = RateLimitedLog(log, store.clock.monotonic)
        self._failed_now: Counter[int] = Counter()
        """Number of failed references by fire time, since the lateness was last counted."""

    def append_by(self, bulk: BulkAppend) -> None:
        """Append by `bulk` from now on. Plain code appends the messages that `bulk` does not."""
        self._bulk = bulk

    def earliest_in_hand_ms(self) -> int | None:
        """Return the least fire time of references taken and not released, or None."""
        times = self._ring.earliest_ms(), self.failed.earliest_ms(), self.awaited.earliest_ms()
        return min((fire_ms for fire_ms in times if fire_ms is not None), default=None)

    def in_hand(self) -> int:
        return self._ring.count + self.failed.count + self.awaited.count

    def next_retry_ms(self) -> int | None:
        return self.failed.next_retry_ms

    def has_burst(self) -> bool:
        """Return whether the references in hand are a burst. Work that no client waits for should then pause."""
        return self._ring.has_burst

    def is_burst_leaving(self) -> bool:
        """Return whether there is a burst, or the rest of one."""
        return self._is_leaving

    def has_more(self) -> bool:
        return bool(self._ring)

    def next_take_ms(self) -> int | None:
        """Return the wall time of the next `take_due`, or None without references."""
        return self.awaited.earliest_ms() if self.awaited.count else self._pending.armed.next_fire_ms()

    def take_due(self, now_ms: Millis) -> None:
        """Put due references into the ring, up to RING_MAX buckets.

        After a time without releases, messages are due at many instants: they enter as the ring empties, the earliest
        first. Failed releases enter when their next try is due.
        """
        self.awaited.end(now_ms)
        if self.failed.count:
            self._pending.armed.requeue(self.failed.take_due(self._monotonic_ms()))
        left = TAKE_MAX
        while left > 0 and (room := self._ring.room) > 0:
            first_ms = self._pending.armed.next_fire_ms()
            if first_ms is None or first_ms > now_ms:
                return
            taken = deque(self._pending.armed.take_due(Millis(min(now_ms, first_ms + room - 1)), left))
            try:
                while taken:
                    self._ring.put(taken[0])
                    left -= cost_of(taken.popleft())
            except BaseException:
                for refs in taken:
                    self._pending.armed.requeue(refs)  # some may be in the ring too: each is released once
                raise

    def release(self, now_ms: Millis, slice_seconds: float, share_seconds: float = 0.0) -> int:
        """Append messages of the ring, the buckets in turn, and return the number of messages.

        This takes about one slice of time, several slices in a burst, or the release's share of the tick if it is
        longer. An error of one message does not stop the others. Raises OSError when the log cannot be written. The
        messages that were not appended stay in the ring.
        """
        if not self._ring:
            self._is_leaving = False
            return 0
        released = 0
        late_ms = self._ring.late_ms(now_ms)
        began = self._store.clock.monotonic()
        stop = began + self._pace.release_seconds(slice_seconds, share_seconds, late_ms, is_burst=self.has_burst())
        while self._ring:
            parts = self._ring.take(self._pace.halvings)
            try:
                released += self._append(np.concatenate(parts) if len(parts) > 1 else parts[0], now_ms)
            except BaseException:
                self._ring.put_back(parts)  # a message that was appended has its done bit set
                raise
            for part in parts:
                fire_ms = int(part[0, ref.FIRE_MS])
                self.lateness_ms.add(now_ms - fire_ms, len(part) - self._failed_now.pop(fire_ms, 0))
            now = self._store.clock.monotonic()
            self._pace.fit(now - began, slice_seconds)
            if now >= stop:
                break
            began = now
        self._is_leaving = self.has_burst() or (self._is_leaving and self._ring.count >= ring.QUANTUM)
        return released

    def _append(self, refs: Refs, now_ms: Millis) -> int:
        origins = refs[:, ref.ORIGIN]
        if (origins[1:] < origins[:-1]).any():  # the parts are of several buckets, or were armed separately
            refs = refs[np.argsort(origins, kind="stable")]
            origins = refs[:, ref.ORIGIN]
        stale = self._pending.done.get(origins)
        stale[1:] |= origins[1:] == origins[:-1]
        pending = refs[~stale] if stale.any() else refs
        at = 0
        while at < len(pending):
            if self._bulk is not None:
                reach("release.before")
                rows_before = self._store.journal.count
                try:
                    done = self._bulk(pending[at:], now_ms)
                    self._pending.done.update(pending[at : at + done, ref.ORIGIN])
                except Exception:
                    self._settle_appended(rows_before)
                    raise
                self.counts["released"] += done
                at += done
                reach("release.after")
            if at < len(pending):
                self._try_one(pending[at], now_ms)
                at += 1
        return len(pending)

    def _try_one(self, one: Refs, now_ms: Millis) -> None:
        """Append one message. After an unexpected error, log it and keep the message for a later try.

        Raises OSError. Then no message can be appended, and the caller keeps all of them.
        """
        origin, rows_before = Origin(int(one[ref.ORIGIN])), self._store.journal.count
        try:
            self._append_one(one, now_ms)
        except OSError:
            raise
        except Exception:
            self.counts["failed"] += 1
            self._settle_appended(rows_before)
            if origin in self._pending.done:
                self._say_failed(
                    "left", "timer: an error occurred after the release of the message %s", origin_text(origin)
                )
                return
            self._failed_now[int(one[ref.FIRE_MS])] += 1
            wait_ms = self.failed.add(one, self._monotonic_ms())
            self._say_failed(
                "failed",
                "timer: the release of the message %s failed. The broker tries again in %.1f s",
                origin_text(origin),
                wait_ms / 1000,
            )

    def _say_failed(self, kind: str, text: str, *arguments: object) -> None:
        """Log the exception that is being handled, unless the log has a recent line of this kind."""
        self._failed_log.log(logging.CRITICAL, kind, text, *arguments, traceback=True)

    def _settle_appended(self, rows_before: int) -> None:
        """Set the done bits of the messages that the journal's records from `rows_before` on settle.

        After an error, the journal is the only proof of the records that were appended.
        """
        origins = self._store.journal.rows()[rows_before:, SETTLES]
        self._pending.done.update(origins[origins != NO_ORIGIN])

    def _monotonic_ms(self) -> int:
        return self._store.clock.monotonic_ms()

    def _append_one(self, one: Refs, now_ms: Millis) -> None:
        origin, enqueue_ms = Origin(int(one[ref.ORIGIN])), int(one[ref.ENQUEUE_MS])
        generation = self._generations.of(origin)
        record = generation.record_at(origin, LogPosition(int(one[ref.POSITION])))
        if record is None or not record.body_is_intact:
            self.counts["unreadable"] += 1
            log.critical(
                "timer: the message %s is set aside: it has %s at log position %d",
                origin_text(origin),
                "no record" if record is None else "a damaged body",
                one[ref.POSITION],
            )
            return
        rolls = bool(one[ref.FLAGS] & ref.FLAG_ROLL)
        due_ms = generation.due_of(origin, record, now_ms)
        if not rolls and due_ms > now_ms:
            self.counts["early"] += 1
            again = one.reshape(1, -1).copy()
            again[:, ref.FIRE_MS] = due_ms
            self._pending.armed.requeue(again)
            return
        real_queue = self._store.real_queue(record.message.properties)
        reach("release.before")
        try:
            message = generation.rebuild(record, enqueue_ms=enqueue_ms, now_ms=now_ms, rolls=rolls)
            self._store.append(message, settles=origin, real_queue=real_queue)
        except (Unreleasable, PropertiesTooLong, RecordTooLong) as error:
            if not self._append_dead_letter(record, origin, real_queue, error):
                return
        else:
            self._pending.settle(origin)
            self.counts["rolled" if rolls else "released"] += 1
            if rolls:
                self._timer.congestion.roll(due_ms, record.store_ms, self._store.log.last_store_ms)
        reach("release.after")
        if rolls:
            reach("roll.after")

    def _append_dead_letter(self, record: Record, origin: Origin, real_queue: int, error: ValueError) -> bool:
        """Append a message to the dead-letter topic. Returns False, and leaves it parked, if no log file holds it."""
        letter = dead_letter(record)
        room_bytes = self._store.properties_room(letter, origin)
        if room_bytes < 0:
            self.counts["too_long"] += 1
            log.critical("timer: the message %s is set aside until the next start: %s", origin_text(origin), error)
            return False
        letter.properties = props.fitting(letter.properties, room_bytes)
        log.error("timer: the broker moves the message %s to %s: %s", origin_text(origin), DEAD_LETTER_TOPIC, error)
        self._store.append(letter, settles=origin, real_queue=real_queue)
        self._pending.settle(origin)
        self.counts["dead_letter"] += 1
        return True
