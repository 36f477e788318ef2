"""The parts of the turn coordinator, each by itself."""

from __future__ import annotations

import logging
from random import Random

import pytest

from wheelmq.broker.admission.store_health import StoreHealth
from wheelmq.broker.turns.figures import TurnDone, TurnFigures
from wheelmq.broker.turns.lease import EPOCHS_FROM, PipelineLease
from wheelmq.broker.turns.lease_watch import LeaseWatch
from wheelmq.broker.turns.mark_writer import MarkWriter
from wheelmq.broker.turns.pace import AGE_MS, BURST_PACES, ROWS_AT_ONCE, TurnPace
from wheelmq.delay.timer.mark import CheckFile
from wheelmq.delay.timer.turns import LEASE_MS, Holder, LeaseHeld, Stale, Turns
from wheelmq.formats.units import Millis
from wheelmq.system.workers import InlineWorker
from wheelmq.testing.clock import ManualClock
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.workers import HeldWorker

HOLDER = Holder("one", "a random id")
OTHER = Holder("other", "another id")


def anyone() -> None:
    """Let any user keep the lease."""


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
        epoch = leases.lease.open(HOLDER, anyone)
        assert epoch > EPOCHS_FROM and epoch % EPOCHS_FROM == 1
        assert leases.lease.open(HOLDER, anyone) == epoch + 1

    def test_an_old_store_continues_its_epochs(self) -> None:
        assert Leases(5 * EPOCHS_FROM + 3).lease.open(HOLDER, anyone) == 5 * EPOCHS_FROM + 4

    def test_a_pipeline_turns_once_it_asked_for_a_plan_under_its_lease(self, leases: Leases) -> None:
        leases.lease.open(HOLDER, anyone)
        assert not leases.is_turning
        leases.lease.note_asked()
        assert leases.is_turning
        leases.lease.open(HOLDER, anyone)
        assert not leases.is_turning

    def test_a_lapsed_lease_is_not_turning(self, leases: Leases) -> None:
        leases.lease.open(HOLDER, anyone)
        leases.lease.note_asked()
        leases.clock.advance(LEASE_MS)
        assert not leases.is_turning

    def test_each_request_of_the_holder_is_progress(self, leases: Leases) -> None:
        epoch = leases.lease.open(HOLDER, anyone)
        leases.clock.advance(700)
        assert leases.lease.quiet_ms() == 700
        leases.lease.renew(epoch)
        assert leases.lease.quiet_ms() == 0

    def test_a_rejected_request_is_no_progress(self, leases: Leases) -> None:
        epoch = leases.lease.open(HOLDER, anyone)
        leases.clock.advance(700)
        with pytest.raises(Stale):
            leases.lease.renew(epoch - 1)
        with pytest.raises(LeaseHeld):
            leases.lease.open(OTHER, anyone)
        assert leases.lease.quiet_ms() == 700

    def test_a_broker_that_failed_opens_and_renews_nothing(self, leases: Leases) -> None:
        epoch = leases.lease.open(HOLDER, anyone)
        leases.health.fail(OSError(5, "broken"))
        with pytest.raises(Stale, match="stopping after a failure"):
            leases.lease.renew(epoch)
        with pytest.raises(Stale, match="stopping after a failure"):
            leases.lease.open(HOLDER, anyone)
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


class Paced:
    """A pace over the timer and the blocks of a broker, with a clock and a burst of its own."""

    def __init__(self, harness: BrokerHarness) -> None:
        broker = harness.broker
        self.wall_ms = Millis(harness.now_ms)
        self.pace_ms = broker.parts.settings.pipeline.pace_ms
        self.is_burst = False
        self.pace = TurnPace(
            broker.parts.timer, broker.parts.block_parts.walk, broker.parts.settings, lambda: self.is_burst
        )

    def is_due_at(self, now_ms: int) -> bool:
        return self.pace.is_due(self.wall_ms, now_ms)


class TestPace:
    def test_a_message_due_soon_is_reason_for_a_turn_at_the_next_pace(self, harness: BrokerHarness) -> None:
        harness.send("T", delay_ms=4000)
        paced = Paced(harness)
        paced.pace.note_plan(10_000)
        assert not paced.is_due_at(10_000 + paced.pace_ms - 1)
        assert paced.is_due_at(10_000 + paced.pace_ms)
        paced.is_burst = True
        assert not paced.is_due_at(10_000 + BURST_PACES * paced.pace_ms - 1)
        assert paced.is_due_at(10_000 + BURST_PACES * paced.pace_ms)

    def test_a_message_due_late_waits_for_its_age(self, harness: BrokerHarness) -> None:
        harness.send("T", delay_ms=15_000)
        paced = Paced(harness)
        paced.pace.poll(paced.wall_ms, 10_000)
        paced.pace.poll(paced.wall_ms, 10_050)
        assert paced.pace.oldest_waiting_age_ms(10_700) == 700
        assert not paced.is_due_at(10_000 + AGE_MS - 1)
        assert paced.is_due_at(10_000 + AGE_MS)

    def test_a_plan_ends_the_wait_of_all_messages(self, harness: BrokerHarness) -> None:
        harness.send("T", delay_ms=15_000)
        paced = Paced(harness)
        paced.pace.poll(paced.wall_ms, 10_000)
        paced.pace.note_plan(10_100)
        assert paced.pace.planned_ms == 10_100
        assert paced.pace.oldest_waiting_age_ms(10_700) == 0

    def test_a_new_lease_does_not_wait_for_the_pace(self, harness: BrokerHarness) -> None:
        harness.send("T", delay_ms=4000)
        paced = Paced(harness)
        paced.pace.note_plan(10_000)
        paced.pace.restart()
        assert paced.is_due_at(10_001)

    def test_very_many_messages_wait_for_no_pace(self, harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
        assert ROWS_AT_ONCE == 50_000
        monkeypatch.setattr("wheelmq.broker.turns.pace.ROWS_AT_ONCE", 2)
        paced = Paced(harness)
        paced.pace.note_plan(10_000)
        harness.send("T", delay_ms=15_000)
        assert not paced.is_due_at(10_000)
        harness.send("T", delay_ms=15_000)
        assert paced.is_due_at(10_000)


class TestMarkWriter:
    @pytest.fixture
    def worker(self) -> HeldWorker:
        return HeldWorker()

    @pytest.fixture
    def health(self, harness: BrokerHarness) -> StoreHealth:
        return StoreHealth(harness.clock)

    @pytest.fixture
    def marks(self, harness: BrokerHarness, worker: HeldWorker, health: StoreHealth) -> MarkWriter:
        store, timer = harness.broker.parts.store, harness.broker.parts.timer
        return MarkWriter(store, timer, CheckFile(store, InlineWorker()), worker, health, lambda: None)

    def test_a_save_ends_when_the_mark_is_on_disk(
        self, harness: BrokerHarness, marks: MarkWriter, worker: HeldWorker
    ) -> None:
        done: list[int] = []
        harness.broker.parts.timer.turns.count_from(77)
        marks.save(lambda: done.append(1))
        marks.save()
        worker.work(1)
        mark = harness.broker.parts.timer.mark_file.last
        assert mark is not None and mark.epoch == 77
        assert marks.is_saving() and not done
        worker.report(1)
        assert marks.is_saving() and done
        worker.run()
        assert not marks.is_saving()

    def test_a_failed_save_fails_the_broker(
        self, marks: MarkWriter, worker: HeldWorker, health: StoreHealth, caplog: pytest.LogCaptureFixture
    ) -> None:
        done: list[int] = []
        error = OSError(5, "broken")
        worker.fail_next(error)
        marks.save(lambda: done.append(1))
        worker.run()
        assert health.failure is error and not done and not marks.is_saving()
        assert "a flush of the timer log failed" in caplog.text
