"""Write the queue units of new records, and wake what waits for them (RocketMQ: ReputMessageService)."""

from __future__ import annotations

import logging
from functools import partial
from typing import Final

from wheelmq.broker.admission.error_text import TimersLost
from wheelmq.broker.admission.store_health import StoreHealth
from wheelmq.broker.arrivals import Arrivals
from wheelmq.broker.engine import Engine
from wheelmq.broker.holds import Holds
from wheelmq.broker.replication.replicas import Replicas
from wheelmq.broker.statistics import BrokerStats
from wheelmq.broker.steps import Steps
from wheelmq.formats.kernels.journal import SIZE

log = logging.getLogger(__name__)

DISPATCH: Final = "dispatch"
"""The name of the step in the log and in the metrics."""


class RecordDispatch:
    """Runs at the end of each round, and in each tick after the releases."""

    def __init__(
        self,
        engine: Engine,
        replicas: Replicas,
        stats: BrokerStats,
        holds: Holds,
        health: StoreHealth,
        steps: Steps,
    ) -> None:
        self._store = engine.store
        self._replicas = replicas
        self._pending = engine.timer.pending
        self._knows_pending = engine.knows_pending
        self._block_settlement = engine.block_parts.settlement
        self._stats = stats
        self._holds = holds
        self._health = health
        self._steps = steps

    @property
    def has_records(self) -> bool:
        """Whether `run` lets consumers see more records, because enough replicas have them."""
        hidden_from = self._store.hidden_tail.start
        if hidden_from is not None and self._replicas.visible_to() > hidden_from:
            return True
        return self._store.journal.count > 0 and (self._replicas.shows_all or self._count() > 0)

    def next_ms(self) -> int | None:
        """Return when records that wait for replicas may be dispatched anyway; None if there are none."""
        return self._replicas.next_visible_ms() if self._store.journal.count else None

    def _count(self) -> int:
        """Return the number of records in the journal that consumers may see now."""
        return self._store.dispatchable(self._replicas.visible_to())

    @property
    def has_failed(self) -> bool:
        """Whether the last run failed. It left the records in the journal, and the next run tries them again."""
        return DISPATCH in self._steps.failed_now

    def run(self) -> int:
        """Dispatch the new records. An error is logged and counted. Returns the number of records."""
        if self._store.hidden_tail.start is not None and self._store.hidden_tail.show(self._replicas.visible_to()):
            self._wake_all()
        if self._store.dispatched_to == self._store.log.end:
            return 0
        journal = self._store.journal
        visible = journal.count if self._replicas.shows_all else self._count()
        if journal.count and not visible:
            return 0
        try:
            return self._health.run_or_reject(partial(self._dispatch, visible))
        except Exception as error:
            self._steps.note_failure(DISPATCH, error)
            return 0

    def close(self) -> None:
        """Dispatch all records, for a clean stop. The snapshot then counts those that wait for replicas too.

        The next start hides these records from consumers.
        """
        try:
            if self._store.dispatched_to < self._store.log.end:
                if self._replicas.needed_acks and self._store.hidden_tail.start is None:
                    self._store.hidden_tail.hide_from(self._store.dispatched_to)
                rows, _ = self._store.dispatch()
                if self._pending.take_journal(rows):
                    self._block_settlement.note(rows, self._store.dispatched_to)
        except Exception as error:
            log.error("queue units are missing, and the next start writes them: %s", error)

    def _wake_all(self) -> None:
        """Check all held pulls again, because consumers may see more of the records that a start had hidden."""
        for queue_row in range(len(self._store.queues)):
            self._holds.wake(queue_row)

    def _dispatch(self, count: int) -> int:
        """Write the queue units of `count` records, then note timers, then wake requests. Returns their number.

        The records have left the journal after the first part. An error in the second part loses timers in memory, so
        it fails the broker. The next start finds them in the log.
        """
        rows, grown = self._store.dispatch(count)
        try:
            if self._knows_pending and self._pending.take_journal(rows):
                self._block_settlement.note(rows, self._store.dispatched_to)
        except Exception as error:
            self._health.fail(TimersLost(error))
            raise
        self._steps.run("statistics", self._stats.note_puts, grown, rows[:, SIZE])
        waiting = [queue_row for queue_row in grown if self._holds.has(queue_row)]
        if waiting:
            arrivals = Arrivals(rows, self._store.log)
            for queue_row in waiting:
                self._steps.run("held pulls", self._holds.wake, queue_row, partial(arrivals.of, queue_row))
        return len(rows)
