"""The broker without its sockets.

The shell passes received bytes to `receive`, which serves each request as soon as its frame is complete. After each
round of reading, it calls `end_round`, which writes queue units, passes parked messages to the timer and wakes held
requests. Then the answers leave. The shell calls `tick` when `end_round` returns True, and whenever `next_tick_ms` has
passed. A tick releases due messages, begins a flush and runs all other due work. No handler waits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from random import Random

import numpy as np

from wheelmq.broker.admission.store_health import RETRY_MS
from wheelmq.broker.connection import Connection
from wheelmq.broker.dispatch import Dispatch
from wheelmq.broker.handlers import bind_handlers
from wheelmq.broker.hooks import Hooks
from wheelmq.broker.parts import Parts, ProcessContext
from wheelmq.broker.replication.master_link import MasterLink
from wheelmq.broker.replication.replicas import ReplicaLink, ReplicaTransport
from wheelmq.broker.settings import BrokerSettings
from wheelmq.broker.signed_sends import SENDS
from wheelmq.broker.steps import FAILED_STEP_MS
from wheelmq.broker.task_list import TaskList, TickTime
from wheelmq.broker.tasks import broker_tasks
from wheelmq.config.changes import Origin
from wheelmq.formats.wire import frame
from wheelmq.system.clock import Clock
from wheelmq.system.disk import Disk, StoreRemoved
from wheelmq.system.workers import Workers

log = logging.getLogger(__name__)

FOLLOW_STEPS_MAX = 4
"""Steps of a replica between two looks at its sockets. A step takes some milliseconds."""
ROUNDS_MS = 5
"""Maximum milliseconds between ticks while rounds run. A tick costs as much as half a send, and most rounds need none.
Timers are not late for that: a tick that arms them sets the time of the next one."""


class Broker:
    """One broker: its rounds and ticks. The parts that do the work are in `parts`."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.dispatch = Dispatch(
            bind_handlers(parts),
            clock=parts.clock,
            calls=parts.calls,
            hooks=parts.hooks,
            overload=parts.overload,
            health=parts.health,
            failed_puts=parts.failed_puts,
            access=parts.access,
            counts=parts.request_counts,
        )
        self.tasks = TaskList(broker_tasks(parts), parts.steps)
        self._clock, self._health, self._records = parts.clock, parts.health, parts.records
        self._replicas = parts.replicas
        self._ticks, self._steps = parts.ticks, parts.steps
        self._received = 0
        """Bytes received since the last tick."""
        self._served_s = 0.0
        """Seconds that the rounds since the last tick took."""
        self._has_served = False
        """Whether a round has ended since the last tick."""
        self._ticked_ms = self._tick_due_ms = 0

    # Called by the shell -------------------------------------------------------------------------------------------

    def receive(self, connection: Connection, buffer: memoryview, end: int) -> int:
        """Serve complete frames of `buffer[:end]`, until the connection must wait. Returns the number of bytes served.

        Raises FrameError. The caller then closes the connection.
        """
        self._ticks.begin()
        if self.parts.fast_send is not None:
            self.parts.fast_send.begin_read()
        at = 0
        try:
            while at < end and connection.is_open and not connection.must_wait:
                fast = self.parts.fast_send if connection.sends else None
                if fast is not None:
                    at = fast.serve(connection, np.frombuffer(buffer.toreadonly(), np.uint8), at, end)
                stop = frame.frame_end(buffer, at, end)
                if stop is None:
                    break
                command = frame.decode(buffer, at, stop)
                connection.sends = command.code in SENDS
                if connection.sends and fast is not self.parts.fast_send:
                    continue  # the kernel has not seen it
                self.dispatch.take(connection, command)
                at = stop
        finally:
            self._received += at
        if at == end or not connection.is_full:
            connection.waiting_since = None
        elif connection.waiting_since is None:
            connection.waiting_since = self._clock.monotonic()
        return at

    def connection_lost(self, connection: Connection) -> None:
        self.parts.holds.drop(connection)
        self.parts.block_source.lose(connection)
        self.parts.calls.drop(connection)
        self.parts.member_changes.note_left(self.parts.clients.lose(connection))

    # Called by the HA port -----------------------------------------------------------------------------------------

    def open_replica(self, transport: ReplicaTransport, peer: str) -> ReplicaLink | None:
        """Take a connection of a replica. Returns None if this broker is no master: close it then."""
        return self._replicas.open(transport, peer)

    def receive_of_replica(self, link: ReplicaLink, data: bytes) -> None:
        """Take bytes of a replica. The end of the next round sends the answers that waited for its report."""
        self._ticks.begin()
        self._received += len(data)
        self._replicas.receive(link, data)
        self.parts.acks.poll(self._clock.monotonic_ms())

    def lose_replica(self, link: ReplicaLink) -> None:
        """Forget a closed connection of a replica."""
        self._replicas.lost(link)

    def follow(self, link: MasterLink, data: bytes) -> bytes:
        """Take bytes of the master, and apply the records that are whole. Returns the bytes to send.

        Raises MasterWrong, MustTruncate, NotNext, MasterLogDamaged, DiskFull.
        """
        self._ticks.begin()
        self._received += len(data)
        now_ms = self._clock.monotonic_ms()
        replica_log = self.parts.replica_log
        if replica_log.damage is not None:  # a tick has found it
            raise replica_log.damage
        out = link.receive(data, now_ms) if data else b""
        for _ in range(FOLLOW_STEPS_MAX):
            if not replica_log.has_more():
                break
            replica_log.take()
            self._records.run()
        return out + link.report(now_ms)

    # The end of a round, and ticks ---------------------------------------------------------------------------------

    def end_round(self) -> bool:
        """Finish the round of reading. Returns whether a tick is due. Does nothing once the broker has failed."""
        if self._health.failure is not None:
            return False
        if self._received or self._records.has_records:
            self._finish_round()
        else:
            self._ticks.forget()  # only a part of a frame came: the sender causes its delay
        if self._health.failure is not None:
            return True  # the tick answers the requests that wait for the disk
        if self._clock.monotonic_ms() >= self._tick_due_ms or self.parts.flush.is_asked_for():
            return True
        near_ms = self.parts.timer.pending.next_near_ms()
        return (near_ms is not None and near_ms <= self._clock.now_ms()) or self._records.has_failed

    def _finish_round(self) -> None:
        self._ticks.begin()
        self._steps.begin()
        if self._replicas.links:
            self._replicas.push()
        self._records.run()
        if self.parts.block_source:
            self.parts.block_source.push()
        self._served_s += self._ticks.elapsed_s
        self._end(worked=True)
        self._has_served = True
        if self._tick_due_ms > self._ticked_ms + ROUNDS_MS:
            self._tick_due_ms = self._ticked_ms + ROUNDS_MS

    def tick(self, *, by_event: bool = True) -> None:
        """Run the due tasks. Without an event, tasks with `rests` are skipped before their time.

        A failed broker only answers requests that wait for the disk.
        """
        if self._health.failure is not None:
            self.parts.flush.cancel_waiting()
            return
        self._ticks.begin()
        self._steps.begin()
        requests_s = self._served_s + self._ticks.elapsed_s  # releases get as much time as requests had
        self._served_s = 0.0
        count = self.tasks.run(TickTime(self._clock.now_ms(), self._clock.monotonic_ms(), requests_s, by_event))
        self._end(worked=bool(count or self._received or self._has_served))
        self._has_served = False
        if self._health.failure is not None:
            self.parts.flush.cancel_waiting()  # the process may stop before the next tick

    def _end(self, *, worked: bool) -> None:
        if self._records.has_records and self._records.has_failed:
            return  # messages of this round are not in their queues, so the round goes on
        self._ticks.end(worked=worked)
        self.parts.overload.end_round()
        self._received = 0

    def next_tick_ms(self) -> int:
        """Set the time of the next tick. Returns the milliseconds until then; 0 for at once."""
        if self._health.failure is not None:
            return RETRY_MS
        if not self._has_served:
            wait_ms = max(self._wait_ms(), FAILED_STEP_MS if self._steps.failed_now else 0)
            self._ticked_ms = self._clock.monotonic_ms()
            self._tick_due_ms = self._ticked_ms + wait_ms
            return wait_ms
        wait_ms = self._tick_due_ms - self._clock.monotonic_ms()
        return wait_ms if wait_ms > 0 else 0

    def _wait_ms(self) -> int:
        if self._health.rejection is not None and (self.parts.releaser.has_more() or self._records.has_records):
            return RETRY_MS  # the store takes nothing now
        now = TickTime(self._clock.now_ms(), self._clock.monotonic_ms())
        next_ms = self.tasks.next_ms(now)
        assert next_ms is not None, "some tasks run at intervals"
        return max(0, next_ms - now.monotonic_ms)

    def close(self) -> None:
        """Stop cleanly. Call it when no more requests come and the workers are closed."""
        if isinstance(self._health.failure, StoreRemoved):
            return  # the files at this path are not the broker's
        self.tasks.close(lambda: self._health.failure is not None)


def open_broker(
    settings: BrokerSettings,
    *,
    disk: Disk,
    clock: Clock,
    workers: Workers,
    randomness: Random,
    origin: Origin | None = None,
    hooks: Hooks | None = None,
    process: ProcessContext | None = None,
    shell_figures: Callable[[], dict[str, int]] = dict,
) -> Broker:
    """Recover the store, and return the broker.

    Raises StoreLocked, OSError, ConfigError.
    """
    parts = Parts(
        settings,
        disk=disk,
        clock=clock,
        workers=workers,
        randomness=randomness,
        origin=origin,
        hooks=hooks,
        process=process,
        shell_figures=shell_figures,
    )
    return Broker(parts)
