"""The lease under which a pipeline runs turns: who holds it, and when its pipeline last worked.

Each lease has a random token, which only the answer to its opening contains. Each later request must have it, so no
other client can upload rows, commit a turn or read bytes.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable
from random import Random
from typing import Final

from wheelmq.broker.admission.store_health import StoreHealth
from wheelmq.broker.answers import PeerError
from wheelmq.broker.turns.lease_watch import LeaseWatch
from wheelmq.delay.timer.turns import Holder, LeaseHeld, Stale, Turns
from wheelmq.formats.wire.codes import ResponseCode
from wheelmq.system.clock import Clock
from wheelmq.system.secure_random import secure_token

log = logging.getLogger(__name__)

EPOCHS_FROM: Final = 1 << 20
"""The epochs of each store count from a random multiple of this, so that two stores share no epoch. A request for one
store is STALE at another that has taken its address."""


def _nobody() -> None:
    raise PeerError(ResponseCode.NO_PERMISSION, "TOKEN: no lease was opened since the broker started")


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
        self._token = ""
        """The token of the last lease that was opened."""
        self._check_holder: Callable[[], None] = _nobody
        """Raises PeerError if the user who opened the lease has lost the right to it."""
        self._asked_epoch = 0
        """Epoch of the last lease under which a plan was requested: only then does its pipeline turn."""

    @property
    def token(self) -> str:
        """The token of the last lease that was opened."""
        return self._token

    def open(self, holder: Holder, check_holder: Callable[[], None]) -> int:
        """Open a lease. Returns its epoch, which is not durable yet. Raises LeaseHeld, Stale.

        `check_holder` raises PeerError once the user of `holder` has lost the right to the lease.
        """
        self._must_go_on()
        turns = self._turns
        if turns.epoch < EPOCHS_FROM:
            turns.count_from(self._randomness.randrange(1, 1 << 30) * EPOCHS_FROM)
        try:
            epoch = turns.open(holder, self._clock.monotonic_ms())
        except LeaseHeld as held:
            self._watch.note_rejected(holder, held)
            raise
        self._token, self._check_holder = secure_token(), check_holder
        self._watch.note_opened(holder)
        log.info("pipeline %s at %s has the lease, epoch %d", holder.name, holder.address, epoch)
        self.note_progress()
        return epoch

    def check(self, epoch: int, token: str) -> None:
        """Check the token of a request under the lease of `epoch`. Raises Stale if that lease is over, and PeerError if
        the token is wrong."""
        if epoch != self._turns.epoch or not self._token:
            raise Stale(f"epoch {epoch} is over, the last epoch is {self._turns.epoch}")
        if not hmac.compare_digest(token.encode("utf-8", "replace"), self._token.encode()):
            raise PeerError(ResponseCode.NO_PERMISSION, "TOKEN: the request lacks the token of the lease")
        self._check_holder()

    def renew(self, epoch: int) -> None:
        """Renew the lease for a request about a plan or a commit. Raises Stale."""
        self._must_go_on()
        self._turns.renew(epoch, self._clock.monotonic_ms())
        self.note_progress()

    def _must_go_on(self) -> None:
        """Raise Stale once the broker has failed: a sync that succeeds after a failed one proves nothing."""
        if self._health.failure is not None:
            raise Stale(
                f"the broker is stopping after a failure ({self._health.failure}): open a lease after its next start"
            )

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
