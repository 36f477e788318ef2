"""The parts of the turn coordinator, each without a broker."""

from __future__ import annotations

import logging
from random import Random

import pytest

from wheelmq.broker.admission.store_health import StoreHealth
from wheelmq.broker.turns.figures import TurnDone, TurnFigures
from wheelmq.broker.turns.lease import EPOCHS_FROM, PipelineLease
from wheelmq.broker.turns.lease_watch import LeaseWatch
from wheelmq.delay.timer.turns import LEASE_MS, Holder, LeaseHeld, Stale, Turns
from wheelmq.testing.clock import ManualClock

HOLDER = Holder("one", "a random id")
OTHER = Holder("other", "another id")


class Leases:
    """A lease over turns in memory."""

    def __init__(self, epoch: int = 0) -> None:
        self.clock = ManualClock()
        self.turns = Turns(epoch, 0)
        self.health = StoreHealth(self.clock)
        watch = LeaseWatch(self.clock.monotonic)
        self.lease = PipelineLease(self.turns, watch, self.clock, Random(7), self.health)

    @property
    def is_turning(self) -> bool:
        return self.lease.is_turning(self.clock.monotonic_ms())


@pytest.fixture
def leases() -> Leases:
    return Leases()


class TestLease:
    def test_a_new_store_counts_epochs_from_a_random_number(self, leases: Leases) -> None:
        epoch = leases.lease.open(HOLDER)
        assert epoch > EPOCHS_FROM and epoch % EPOCHS_FROM == 1
        assert leases.lease.open(HOLDER) == epoch + 1

    def test_an_old_store_continues_its_epochs(self) -> None:
        assert Leases(5 * EPOCHS_FROM + 3).lease.open(HOLDER) == 5 * EPOCHS_FROM + 4

    def test_a_pipeline_turns_once_it_asked_for_a_plan_under_its_lease(self, leases: Leases) -> None:
        leases.lease.open(HOLDER)
        assert not leases.is_turning
        leases.lease.note_asked()
        assert leases.is_turning
        leases.lease.open(HOLDER)
        assert not leases.is_turning

    def test_a_lapsed_lease_is_not_turning(self, leases: Leases) -> None:
        leases.lease.open(HOLDER)
        leases.lease.note_asked()
        leases.clock.advance(LEASE_MS)
        assert not leases.is_turning

    def test_each_request_of_the_holder_is_progress(self, leases: Leases) -> None:
        epoch = leases.lease.open(HOLDER)
        leases.clock.advance(700)
        assert leases.lease.quiet_ms() == 700
        leases.lease.renew(epoch)
        assert leases.lease.quiet_ms() == 0

    def test_a_rejected_request_is_no_progress(self, leases: Leases) -> None:
        epoch = leases.lease.open(HOLDER)
        leases.clock.advance(700)
        with pytest.raises(Stale):
            leases.lease.renew(epoch - 1)
        with pytest.raises(LeaseHeld):
            leases.lease.open(OTHER)
        assert leases.lease.quiet_ms() == 700

    def test_a_broker_that_failed_opens_and_renews_nothing(self, leases: Leases) -> None:
        epoch = leases.lease.open(HOLDER)
        leases.health.fail(OSError(5, "broken"))
        with pytest.raises(Stale, match="its disk failed"):
            leases.lease.renew(epoch)
        with pytest.raises(Stale, match="its disk failed"):
            leases.lease.open(HOLDER)
        assert leases.turns.epoch == epoch


def test_figures_sum_the_rows_of_turns_and_log_each_turn(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "wheelmq.broker.turns.figures")
    figures = TurnFigures()
    last = TurnDone(turn=8, indexed=10, walked=20, armed=30, seconds=0.25, commit_seconds=0.0015)
    figures.note(TurnDone(turn=7, indexed=1, walked=2, armed=3, seconds=0.5, commit_seconds=0.001), 4)
    figures.note(last, 40)
    assert figures.last == last
    assert figures.rows == {"indexed": 11, "walked": 22, "armed": 33}
    assert figures.slots_walked == 44
    assert figures.seconds.summary()["count"] == 2
    assert caplog.messages[1] == (
        "turn 8: 10 indexed, 20 walked, 30 armed; 250 ms from plan to commit, 1.5 ms of them the commit"
    )
