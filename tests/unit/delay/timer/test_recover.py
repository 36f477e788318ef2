"""The timer after a stop: due times, missing files, and the mark and timercheck that a start reads."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from wheelmq.delay.pending_message import State
from wheelmq.delay.timer.mark import Mark, MarkFile, load_check
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.origin import timer_origin
from wheelmq.formats.disk.paths import StorePaths
from wheelmq.testing import invariants
from wheelmq.testing.clock import START_MS, ManualClock
from wheelmq.testing.disk import SimulatedDisk
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel
from wheelmq.testing.workers import HeldWorker

DELAYS_MS = [500, 3000, 4500, 8000, 15_000, 30_000]


def send_all(harness: BrokerHarness) -> list[bytes]:
    bodies = [b"%d" % delay_ms for delay_ms in DELAYS_MS]
    for delay_ms, body in zip(DELAYS_MS, bodies, strict=True):
        assert harness.send("T", body, delay_ms=delay_ms).code == 0
    return bodies


def assert_on_time(harness: BrokerHarness, since_ms: int = START_MS) -> None:
    """Check that every message of `send_all` left at its due millisecond."""
    for record in harness.read_queue("T"):
        assert int(record.message.properties[props.TIMER_DEQUEUE_MS]) == since_ms + int(record.message.body)


class TestAfterAStop:
    @pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
    @pytest.mark.parametrize("worked_ms", [0, 100, 3200, 9000])
    def test_every_message_leaves_at_its_due_time(
        self, harness: BrokerHarness, model: PipelineModel, clean: bool, worked_ms: int
    ) -> None:
        bodies = send_all(harness)
        harness.advance(worked_ms, model.work, 500)
        harness.restart(clean=clean)
        invariants.check(harness.broker)
        harness.advance(31_000, model.work, 500)
        assert harness.bodies("T") == bodies
        assert_on_time(harness)

    def test_messages_within_the_lead_leave_without_a_pipeline(
        self, harness: BrokerHarness, model: PipelineModel
    ) -> None:
        bodies = send_all(harness)
        harness.advance(3200, model.work, 500)
        assert harness.broker.parts.timer.indexed_to == len(bodies)
        harness.restart(clean=False)
        harness.advance(4900)
        assert harness.bodies("T") == bodies[:4]
        assert_on_time(harness)
        assert harness.broker.parts.timer.pending.armed_by["recovery"] == 2  # 4500 and 8000: the lead is 5 s

    def test_overdue_messages_leave_at_once_in_order(
        self, harness: BrokerHarness, model: PipelineModel, clock: ManualClock
    ) -> None:
        bodies = send_all(harness)
        harness.advance(100, model.work, 500)
        harness.stop()
        clock.advance(60_000)
        harness.start()
        harness.settle()
        assert harness.bodies("T") == bodies

    def test_many_stops_deliver_no_message_twice(self, harness: BrokerHarness, model: PipelineModel) -> None:
        bodies = send_all(harness)
        for i in range(40):
            harness.advance(800, model.work, 300)
            harness.restart(clean=i % 2 == 0)
        assert harness.bodies("T") == bodies

    def test_a_clock_set_back_during_the_stop_keeps_due_times(
        self, harness: BrokerHarness, model: PipelineModel, clock: ManualClock
    ) -> None:
        bodies = send_all(harness)
        harness.advance(3200, model.work, 500)
        harness.stop()
        clock.step(-10_000)
        harness.start()
        invariants.check(harness.broker)
        harness.advance(40_000, model.work, 500)
        assert harness.bodies("T") == bodies
        assert_on_time(harness)

    @pytest.mark.parametrize("stops", [True, False])
    def test_a_clock_wrong_by_a_round_of_the_wheel_loses_no_message(
        self, harness: BrokerHarness, model: PipelineModel, clock: ManualClock, stops: bool
    ) -> None:
        """Two slots need one place: the later slot has it, and the other message is in memory."""
        round_ms = harness.broker.parts.timer.wheel.slots * 1000
        clock.step(round_ms)
        harness.send("T", b"far", delay_ms=19_000)
        harness.advance(4000, model.work, 500)
        clock.step(-round_ms)
        harness.send("T", b"near", delay_ms=15_000)
        harness.advance(4000, model.work, 500)
        timer = harness.broker.parts.timer
        assert timer.indexed_to == 2
        slot_ms = timer.wheel.floor_slot(START_MS + 19_000)
        assert timer.wheel.holds(np.array([slot_ms, slot_ms + round_ms])).tolist() == [False, True]
        if stops:
            harness.restart(clean=False)
        invariants.check(harness.broker)
        harness.advance(11_000, model.work, 500)
        assert harness.bodies("T") == [b"near"]
        harness.advance(round_ms, model.work, 500)
        assert harness.bodies("T") == [b"near", b"far"]
        invariants.check(harness.broker)

    def test_a_clock_that_skips_waiting_slots_loses_no_message(
        self, harness: BrokerHarness, model: PipelineModel, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The skipped slots are scanned before a message that needs their places is indexed."""
        monkeypatch.setattr("wheelmq.delay.timer.scans.WALK_ROWS_MAX", 1)
        round_ms = harness.broker.parts.timer.wheel.slots * 1000
        for seconds in (15, 16, 17):
            harness.send("T", b"%d" % seconds, delay_ms=1000 * seconds)
        harness.advance(4000, model.work, 500)
        clock.step(round_ms)
        harness.send("T", b"last", delay_ms=13_000)
        for _ in range(8):
            harness.advance(500, model.work, 500)
            invariants.check(harness.broker)
        assert harness.bodies("T") == [b"15", b"16", b"17"]
        harness.advance(10_000, model.work, 500)
        assert harness.bodies("T") == [b"15", b"16", b"17", b"last"]

    def test_a_rolled_message_leaves_once(self, harness: BrokerHarness, model: PipelineModel) -> None:
        harness.send("T", delay_ms=65_000)
        rolled = 0
        for _ in range(13):
            harness.advance(5000, model.work, 500)
            rolled += harness.broker.parts.releaser.counts["rolled"]
            harness.restart(clean=False)
            invariants.check(harness.broker)
        assert harness.bodies("T") == [b"body"]
        assert rolled >= 2

    def test_a_roll_that_was_due_during_the_stop_leaves_in_time(
        self, harness: BrokerHarness, model: PipelineModel, clock: ManualClock
    ) -> None:
        harness.send("T", delay_ms=65_000)
        harness.advance(4000, model.work, 500)
        harness.stop()
        clock.advance(30_000)  # past its roll slot, before its due time
        harness.start()
        harness.advance(31_000, model.work, 500)
        assert [record.store_ms for record in harness.read_queue("T")] == [START_MS + 65_000]

    def test_the_state_of_a_message_follows_its_progress(self, harness: BrokerHarness, model: PipelineModel) -> None:
        harness.send("T", delay_ms=15_000)
        state_of = harness.broker.parts.generations.state_of
        assert state_of(timer_origin(0)) is State.PARKED
        harness.advance(4000, model.work, 500)
        assert state_of(timer_origin(0)) is State.INDEXED
        harness.advance(10_000, model.work, 500)
        assert state_of(timer_origin(0)) is State.ARMED
        harness.restart()
        assert harness.broker.parts.generations.state_of(timer_origin(0)) is State.ARMED


class TestMissingFiles:
    def prepare(self, harness: BrokerHarness, model: PipelineModel) -> list[bytes]:
        bodies = send_all(harness)
        harness.advance(3200, model.work, 500)
        harness.stop()
        return bodies

    def finish(self, harness: BrokerHarness, model: PipelineModel, bodies: list[bytes]) -> None:
        harness.start()
        invariants.check(harness.broker)
        harness.advance(30_000, model.work, 500)
        assert harness.bodies("T") == bodies
        assert_on_time(harness)

    def test_a_missing_wheel_loses_no_message(self, harness: BrokerHarness, model: PipelineModel, store: Path) -> None:
        bodies = self.prepare(harness, model)
        (store / "timerwheel").unlink()
        self.finish(harness, model, bodies)

    def test_a_missing_mark_loses_no_message(self, harness: BrokerHarness, model: PipelineModel, store: Path) -> None:
        bodies = self.prepare(harness, model)
        (store / "config" / "timermark").unlink()
        self.finish(harness, model, bodies)

    def test_a_missing_mark_and_timercheck_lose_no_message(
        self, harness: BrokerHarness, model: PipelineModel, store: Path
    ) -> None:
        bodies = self.prepare(harness, model)
        for name in ("timermark", "timercheck"):
            (store / "config" / name).unlink()
        self.finish(harness, model, bodies)

    def test_a_missing_mark_wheel_and_log_lose_no_message(
        self, harness: BrokerHarness, model: PipelineModel, store: Path
    ) -> None:
        bodies = self.prepare(harness, model)
        (store / "config" / "timermark").unlink()
        (store / "timerwheel").unlink()
        shutil.rmtree(store / "timerlog")
        self.finish(harness, model, bodies)

    def test_a_missing_log_loses_no_message(self, harness: BrokerHarness, model: PipelineModel, store: Path) -> None:
        bodies = self.prepare(harness, model)
        shutil.rmtree(store / "timerlog")
        self.finish(harness, model, bodies)

    def test_messages_of_an_unreadable_unit_are_indexed_again(
        self, harness: BrokerHarness, model: PipelineModel, store: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        bodies = self.prepare(harness, model)
        with open(store / "timerlog" / f"{0:020d}", "r+b") as file:
            file.seek(2 * 52)
            file.write(bytes(52))
        harness.start()
        assert "have no unit in the timer log" in caplog.text
        harness.advance(5000, model.work, 500)
        assert harness.bodies("T") == bodies[:4]
        invariants.check(harness.broker)
        harness.restart(clean=False)
        harness.advance(30_000, model.work, 500)
        assert harness.bodies("T") == bodies  # messages due later were indexed again
        assert_on_time(harness)

    def test_a_mark_beyond_the_queue_indexes_everything_again(
        self, harness: BrokerHarness, model: PipelineModel, store: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The mark names a queue offset after the end of the timer queue."""
        bodies = self.prepare(harness, model)
        marks = MarkFile(harness.disk, StorePaths(store))
        mark = marks.load()
        assert mark is not None and mark.queue_offset == 6
        marks.write(mark._replace(queue_offset=9))
        self.finish(harness, model, bodies)
        assert "all messages are indexed again" in caplog.text

    def test_a_torn_mark_loses_no_message(self, harness: BrokerHarness, model: PipelineModel, store: Path) -> None:
        bodies = self.prepare(harness, model)
        path = store / "config" / "timermark"
        raw = bytearray(path.read_bytes())
        raw[5] ^= 1
        raw[4096 + 5] ^= 1
        path.write_bytes(raw)
        self.finish(harness, model, bodies)


class TestMarkAndTimercheck:
    def test_the_mark_follows_the_turns(
        self, harness: BrokerHarness, model: PipelineModel, disk: SimulatedDisk
    ) -> None:
        send_all(harness)
        harness.advance(3200, model.work, 500)
        timer = harness.broker.parts.timer
        mark = MarkFile(disk, harness.broker.parts.paths).load()
        assert mark == Mark(6, timer.log.end, model.epoch, 1)
        check = load_check(disk, harness.broker.parts.paths)
        assert check is not None and (check.queue_offset, check.log_flush_position) == (6, timer.log.end)
        harness.stop()
        check = load_check(disk, timer.store.paths)
        assert check is not None and check.log_flush_position == timer.log.end

    def test_timercheck_waits_for_the_flush_of_the_log(self, tmp_path: Path) -> None:
        """A slot counts as released once the release is on disk. Before that a power cut can undo the release."""
        with BrokerHarness(tmp_path, worker=HeldWorker(), flush_interval_ms=60_000) as harness:
            model = PipelineModel(harness)
            harness.send("T", b"out", delay_ms=2700)
            harness.advance(4700, model.work)
            model.open()  # the mark is written, and the log was not flushed since the turn
            log, slot_ms = harness.broker.parts.store.log, (START_MS + 2700 - 1) // 1000 * 1000
            assert harness.bodies("T") == [b"out"] and log.synced < log.end
            assert harness.broker.parts.timer.timercheck(None).last_read_ms > slot_ms
            check = load_check(harness.disk, harness.broker.parts.paths)
            assert check is not None and check.queue_offset == 1 and check.last_read_ms <= slot_ms
            invariants.check(harness.broker)
            harness.broker.parts.flush.want()
            harness.tick()
            while harness.run_jobs():
                pass
            assert log.synced == log.end
            check = load_check(harness.disk, harness.broker.parts.paths)
            assert check is not None and check.last_read_ms > slot_ms

    def test_epochs_grow_over_stops(self, harness: BrokerHarness, model: PipelineModel) -> None:
        epochs = []
        for clean in (True, False, True):
            model.terms = None
            epochs.append(model.open())
            harness.restart(clean=clean)
        assert epochs == sorted(set(epochs))

    def test_timercheck_never_passes_a_waiting_message(self, harness: BrokerHarness, model: PipelineModel) -> None:
        """Every slot before lastReadTimeMs is released, at every moment."""
        bodies = send_all(harness)
        for _ in range(64):
            check = harness.broker.parts.timer.timercheck(harness.broker.parts.releaser.earliest_in_hand_ms())
            out = harness.bodies("T")
            for delay_ms, body in zip(DELAYS_MS, bodies, strict=True):
                slot_ms = (START_MS + delay_ms - 1) // 1000 * 1000
                assert body in out or slot_ms >= check.last_read_ms, (body, harness.now_ms)
            harness.advance(500, model.work, 250)
        assert check.last_read_ms > START_MS + 28_000
