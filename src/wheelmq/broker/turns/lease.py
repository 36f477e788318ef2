"""The lease under which a pipeline runs turns: who holds it, and when its pipeline last worked."""

from __future__ import annotations

import logging
from random import Random
from typing import Final

from wheelmq.broker.admission.store_health import StoreHealth
from wheelmq.broker.turns.lease_watch import LeaseWatch
from wheelmq.delay.timer.turns import Holder, LeaseHeld, Stale, Turns
from wheelmq.system.clock import Clock

log = logging.getLogger(__name__)

EPOCHS_FROM: Final = 1 << 20
"""The epochs of each store count from a random multiple of this, so that two stores share no epoch. A request for one
store is STALE at another that has taken its address."""


class PipelineLease:
    """Opens and renews leases until the broker fails. Times are monotonic milliseconds."""

    def __init__(self, turns: Turns, watch: LeaseWatch, clock: Clock, randomness: Random, health: StoreHealth) -> None:
        self._turns = turns
        self._watch = watch
        self._clock = clock
        self._randomness = randomness
        self._health = health
        self.progress_ms = 0
        """When a pipeline last opened a lease, asked for a plan, or worked on a turn."""
        self._asked_epoch = 0
        """Epoch of the last lease under which a plan was requested: only then does its pipeline turn."""

    def open(self, holder: Holder) -> int:
        """Open a lease. Returns its epoch, which is not durable yet. Raises LeaseHeld, Stale."""
        self._must_go_on()
        turns = self._turns
        if turns.epoch < EPOCHS_FROM:
            turns.count_from(self._randomness.randrange(1, 1 << 30) * EPOCHS_FROM)
        try:
            epoch = turns.open(holder, self._clock.monotonic_ms())
        except LeaseHeld as held:
            self._watch.note_rejected(holder, held)
            raise
        self._watch.note_opened(holder)
        log.info("pipeline %s at %s has the lease, epoch %d", holder.name, holder.address, epoch)
        self.note_progress()
        return epoch

    def renew(self, epoch: int) -> None:
        """Renew the lease for a request about a plan or a commit. Raises Stale."""
        self._must_go_on()
        self._turns.renew(epoch, self._clock.monotonic_ms())
        self.note_progress()

    def _must_go_on(self) -> None:
        """Raise Stale once the broker has failed: a sync that succeeds after a failed one proves nothing."""
        if self._health.failure is not None:
            raise Stale("the broker is stopping because its disk failed; open a lease after it has started again")

    def note_asked(self) -> None:
        self._asked_epoch = self._turns.epoch

    def note_progress(self) -> None:
        self.progress_ms = self._clock.monotonic_ms()

    def is_turning(self, now_ms: int) -> bool:
        return self._turns.is_held(now_ms) and self._asked_epoch == self._turns.epoch

    def quiet_ms(self) -> int:
        """Return the milliseconds since the pipeline last worked. Between turns it requests a plan every second."""
        return self._clock.monotonic_ms() - self.progress_ms

    def poll(self, now_ms: int) -> None:
        self._watch.poll(self._turns, now_ms)
