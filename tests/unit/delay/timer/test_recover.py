"""The timer after a stop, recovered from its files, and a store that Apache RocketMQ wrote."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from wheelmq.delay.offline import pending_in
from wheelmq.delay.pending_message import State
from wheelmq.delay.timer.mark import Mark, MarkFile, TimerCheck, check_is_apaches, load_check, save_check
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.index import INDEX_HEADER, SLOT_BYTES
from wheelmq.formats.disk.message import Message
from wheelmq.formats.disk.origin import timer_origin
from wheelmq.formats.disk.paths import StorePaths
from wheelmq.formats.disk.timer import TIMER_TOPIC
from wheelmq.formats.units import LogPosition, Millis, QueueOffset
from wheelmq.store.settings import StoreSettings
from wheelmq.store.store import Store
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
            assert harness.broker.parts.timer.check(None).last_read_ms > slot_ms
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
            check = harness.broker.parts.timer.check(harness.broker.parts.releaser.earliest_in_hand_ms())
            out = harness.bodies("T")
            for delay_ms, body in zip(DELAYS_MS, bodies, strict=True):
                slot_ms = (START_MS + delay_ms - 1) // 1000 * 1000
                assert body in out or slot_ms >= check.last_read_ms, (body, harness.now_ms)
            harness.advance(500, model.work, 250)
        assert check.last_read_ms > START_MS + 28_000


class TestStoreOfApache:
    """Records without our property, with a timercheck and without a mark."""

    REAL = {props.REAL_TOPIC: "T", props.REAL_QID: "0"}

    def adopt(
        self, harness: BrokerHarness, parked: list[dict[str, str]], check: TimerCheck | None, store: Path
    ) -> None:
        """Write a store as Apache would leave it, and start on it."""
        self.park(harness, parked)
        harness.crash()
        self.start(harness, check, store)

    def park(self, harness: BrokerHarness, parked: list[dict[str, str]]) -> None:
        """Append records as Apache does."""
        harness.broker.parts.topics.create_for_group("T", 1)
        harness.broker.parts.topics.file.save_now()
        for i, properties in enumerate(parked):
            message = Message(TIMER_TOPIC, 0, b"%d" % i, {**self.REAL, props.UNIQ_KEY: f"K{i}", **properties})
            message.born_ms = Millis(harness.now_ms)
            harness.broker.parts.store.append(message)
        harness.broker.parts.store.dispatch()

    def start(self, harness: BrokerHarness, check: TimerCheck | None, store: Path) -> None:
        """Start on a store without the files of a timer that Apache does not write."""
        for name in ("config/timermark", "timerwheel"):
            (store / name).unlink()
        shutil.rmtree(store / "timerlog", ignore_errors=True)
        if check is not None:
            save_check(harness.disk, StorePaths(store), check)
        harness.start()
        invariants.read_log(harness.broker)

    def relative(self, seconds: int) -> dict[str, str]:
        out_ms = (START_MS + 1000 * seconds - 1) // 1000 * 1000
        return {props.TIMER_DELAY_SEC: str(seconds), props.TIMER_OUT_MS: str(out_ms)}

    def test_messages_before_the_last_read_slot_stay_delivered(
        self, harness: BrokerHarness, model: PipelineModel, store: Path
    ) -> None:
        parked = [self.relative(seconds) for seconds in (2, 5, 9)]
        harness.clock.advance(6000)
        harness.clock.step(-6000)
        check = TimerCheck(last_read_ms=START_MS // 1000 * 1000 + 5000, queue_offset=3)
        self.adopt(harness, parked, check, store)
        harness.advance(12_000, model.work, 500)
        assert harness.bodies("T") == [b"1", b"2"]  # the slot at 5 s was not read yet

    def test_messages_after_the_indexed_offset_are_delivered(
        self, harness: BrokerHarness, model: PipelineModel, store: Path
    ) -> None:
        parked = [self.relative(seconds) for seconds in (2, 2)]
        check = TimerCheck(last_read_ms=START_MS + 60_000, queue_offset=1)
        self.adopt(harness, parked, check, store)
        harness.advance(5000, model.work, 500)
        assert harness.bodies("T") == [b"1"]

    def test_all_messages_are_pending_without_a_timercheck(
        self, harness: BrokerHarness, model: PipelineModel, store: Path
    ) -> None:
        self.adopt(harness, [self.relative(seconds) for seconds in (2, 30)], None, store)
        harness.advance(31_000, model.work, 500)
        assert harness.bodies("T") == [b"0", b"1"]
        for record in harness.read_queue("T"):
            seconds = int(record.message.properties[props.TIMER_DELAY_SEC])
            assert int(record.message.properties[props.TIMER_DEQUEUE_MS]) >= START_MS + 1000 * seconds - 1000

    def test_a_cancel_of_a_pending_message_is_obeyed(
        self, harness: BrokerHarness, model: PipelineModel, store: Path
    ) -> None:
        cancel = {props.TIMER_DEL_UNIQKEY: "T+K0", props.TIMER_DELIVER_MS: str(START_MS + 5000)}
        self.adopt(harness, [self.relative(5), self.relative(6), cancel], None, store)
        harness.advance(8000, model.work, 500)
        assert harness.bodies("T") == [b"1"]
        harness.restart(clean=False)
        harness.advance(8000, model.work, 500)
        assert harness.bodies("T") == [b"1"]

    def test_a_cancel_by_the_unique_key_alone_is_obeyed(
        self, harness: BrokerHarness, model: PipelineModel, store: Path
    ) -> None:
        """Apache RocketMQ 5.4.0 and later writes such cancels. They cancel messages of their own topic."""
        times = {props.TIMER_DELIVER_MS: str(START_MS + 5000)}
        cancels = [{props.TIMER_DEL_UNIQKEY: key, **times} for key in ("K0", "K2")]
        harness.broker.parts.topics.create_for_group("U", 1)
        self.park(harness, [self.relative(5), self.relative(6), {**self.relative(6), props.REAL_TOPIC: "U"}, *cancels])
        harness.crash()
        assert [one.unique_key for one in pending_in(store)] == ["K1", "K2"]
        self.start(harness, None, store)
        harness.advance(8000, model.work, 500)
        assert (harness.bodies("T"), harness.bodies("U")) == ([b"1"], [b"2"])

    def test_a_cancel_is_obeyed_despite_a_damaged_index(
        self, harness: BrokerHarness, model: PipelineModel, store: Path
    ) -> None:
        """Queries tolerate such a file, so Apache leaves it in the store."""
        cancel = {props.TIMER_DEL_UNIQKEY: "T+K0", props.TIMER_DELIVER_MS: str(START_MS + 5000)}
        self.park(harness, [self.relative(5), self.relative(6), cancel])
        harness.stop()
        [path] = (store / "index").iterdir()
        raw = bytearray(path.read_bytes())
        slots = slice(INDEX_HEADER.size, INDEX_HEADER.size + 100 * SLOT_BYTES)  # the slots of the harness
        raw[slots] = b"\x7f" * (100 * SLOT_BYTES)
        path.write_bytes(raw)
        (store / "config" / "snapshot").unlink()
        self.start(harness, None, store)
        harness.advance(8000, model.work, 500)
        assert harness.bodies("T") == [b"1"]

    @pytest.mark.parametrize("size", [100, 32_550, 32_767 - 96])
    def test_a_cancel_without_room_for_added_properties_is_obeyed(
        self, harness: BrokerHarness, model: PipelineModel, store: Path, size: int
    ) -> None:
        cancel = {props.TIMER_DEL_UNIQKEY: "T+K0", props.TIMER_DELIVER_MS: str(START_MS + 5000)}
        cancel["long"] = "x" * (size - len(props.encode(cancel)) - len("long12"))
        self.adopt(harness, [self.relative(5), self.relative(6), cancel], None, store)
        harness.advance(8000, model.work, 500)
        assert harness.bodies("T") == [b"1"]

    def test_a_message_rolled_by_apache_is_delivered_once(
        self, harness: BrokerHarness, model: PipelineModel, store: Path
    ) -> None:
        far = self.relative(30)
        rolled = {**far, props.TIMER_ROLL_TIMES: "1", props.UNIQ_KEY: "K0"}
        check = TimerCheck(last_read_ms=START_MS + 12_000, queue_offset=1)
        self.adopt(harness, [far, rolled], check, store)
        harness.advance(32_000, model.work, 500)
        assert harness.bodies("T") == [b"1"]
        harness.restart(clean=False)
        harness.advance(32_000, model.work, 500)
        assert harness.bodies("T") == [b"1"]
        invariants.check(harness.broker)

    def test_a_roll_settles_only_one_message(self, harness: BrokerHarness, model: PipelineModel, store: Path) -> None:
        """A client repeated a send, so the message is there twice. Apache had rolled one of the two."""
        far = {**self.relative(30), props.UNIQ_KEY: "K"}
        rolls = [{**far, props.TIMER_ROLL_TIMES: str(times)} for times in (1, 2)]
        another = {**far, props.UNIQ_KEY: "L"}
        self.adopt(harness, [far, far, *rolls, another], None, store)
        harness.advance(32_000, model.work, 500)
        assert sorted(harness.bodies("T")) == [b"1", b"3", b"4"]

    def test_the_slot_in_the_record_decides_if_it_was_delivered(
        self, harness: BrokerHarness, model: PipelineModel, store: Path
    ) -> None:
        """The due time follows from the store time: it is over a precision after the slot, or equal to the slot."""
        read_ms = START_MS // 1000 * 1000 + 5000
        late = {props.TIMER_DELAY_MS: str(read_ms + 3 - START_MS), props.TIMER_OUT_MS: str(read_ms - 1000)}
        rolled = {**self.relative(0), props.TIMER_ROLL_TIMES: "1", props.TIMER_OUT_MS: str(read_ms)}
        check = TimerCheck(last_read_ms=read_ms, queue_offset=2)
        self.adopt(harness, [late, rolled], check, store)
        harness.advance(10_000, model.work, 500)
        assert harness.bodies("T") == [b"1"]

    @pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
    @pytest.mark.parametrize("works", [True, False], ids=["pipeline", "none"])
    def test_delivered_messages_stay_delivered_over_more_stops(
        self, harness: BrokerHarness, model: PipelineModel, store: Path, clean: bool, works: bool
    ) -> None:
        parked = [self.relative(seconds) for seconds in (2, 5, 9)]
        check = TimerCheck(last_read_ms=START_MS // 1000 * 1000 + 5000, queue_offset=3)
        self.adopt(harness, parked, check, store)
        left = [1, 2]
        for _ in range(4):
            harness.stop() if clean else harness.crash()
            assert [pending.queue_offset for pending in pending_in(store)] == left
            harness.start()
            invariants.check(harness.broker)
            harness.advance(3000, model.work if works else None, 500)
            left = [i for i in (1, 2) if b"%d" % i not in harness.bodies("T")]
        assert harness.bodies("T") == [b"1", b"2"]

    def test_an_obeyed_cancel_is_not_obeyed_again(
        self, harness: BrokerHarness, model: PipelineModel, store: Path
    ) -> None:
        cancel = {props.TIMER_DEL_UNIQKEY: "T+K0", props.TIMER_DELIVER_MS: str(START_MS + 60_000)}
        self.adopt(harness, [self.relative(5), cancel], None, store)
        harness.send("T", b"again", delay_ms=3000, properties={props.UNIQ_KEY: "K0"})
        harness.restart(clean=False)
        harness.advance(8000, model.work, 500)
        assert harness.bodies("T") == [b"again"]

    @pytest.mark.parametrize("damage", [slice(0, 1), slice(9, 10), slice(24, 25), slice(20, None)])
    def test_an_unreadable_snapshot_of_done_bits_fails_the_start(
        self, harness: BrokerHarness, model: PipelineModel, store: Path, damage: slice
    ) -> None:
        check = TimerCheck(last_read_ms=START_MS + 5000, queue_offset=2)
        self.adopt(harness, [self.relative(2), self.relative(30)], check, store)
        harness.stop()
        path = store / "config" / "timerdone"
        raw = bytearray(path.read_bytes())
        raw[damage] = b"\xa5" if damage.stop else b""
        path.write_bytes(raw)
        with pytest.raises(OSError, match="not a snapshot of done bits"):
            harness.start()


class TestStoreThatApacheServedInBetween:
    """Our store, with a mark. Apache serves it and delivers some pending messages, and then we have it again."""

    DELAYS_MS = (2000, 4000, 9000, 15_000)

    @pytest.fixture
    def left(self, harness: BrokerHarness, model: PipelineModel, store: Path) -> BrokerHarness:
        """A store that was stopped when the first message was delivered and the others were on the wheel."""
        for delay_ms in self.DELAYS_MS:
            harness.send("T", b"%d" % delay_ms, delay_ms=delay_ms, properties={"UNIQ_KEY": f"K{delay_ms}"})
        harness.advance(2500, model.work, 250)
        assert harness.broker.parts.timer.indexed_to == 4 and harness.bodies("T") == [b"2000"]
        harness.stop()
        return harness

    def deliver(self, harness: BrokerHarness, folder: Path, index: int) -> None:
        """Write to the log as Apache does when a message is due. Its copy has no origin of ours."""
        harness.clock.advance(START_MS + self.DELAYS_MS[index] - harness.now_ms)
        disk, clock = harness.disk, harness.clock
        store = Store(StoreSettings(path=folder, log_file_bytes=1 << 20, queue_file_bytes=300 * 20), disk, clock)
        store.recover(lambda rows, names: None)
        queue = store.queues.find(TIMER_TOPIC, 0)
        assert queue is not None
        parked = store.log.record_at(LogPosition(int(queue.read(QueueOffset(index), 1)["position"][0])))
        assert parked is not None
        added = {props.TIMER_ENQUEUE_MS: "1", props.TIMER_DEQUEUE_MS: str(harness.now_ms)}
        store.append(parked.message.again("T", 0, {**parked.message.properties, **added}))
        store.dispatch()
        store.close()
        disk.release_locks()

    def check(self, store: Path, read_ms: int) -> None:
        with (store / "config" / "timercheck").open("r+b") as file:
            file.write(TimerCheck(read_ms, 0, 4, 4).pack())

    @pytest.mark.parametrize("told_ms", [0, 4000])
    def test_messages_delivered_by_apache_stay_delivered(self, left: BrokerHarness, store: Path, told_ms: int) -> None:
        """Apache's timercheck names the delivered slot, or it lags. Then the copy of the message settles it."""
        self.deliver(left, store, 1)
        self.check(store, (START_MS + told_ms) // 1000 * 1000)
        assert [line.unique_key for line in pending_in(store)] == ["K9000", "K15000"]
        left.start()
        model = PipelineModel(left)
        left.advance(1000, model.work)
        left.restart(clean=False)
        model = PipelineModel(left)
        left.advance(20_000, model.work)
        assert left.bodies("T") == [b"2000", b"4000", b"9000", b"15000"]
        invariants.check(left.broker)
        assert not check_is_apaches(left.disk, StorePaths(store))

    def test_an_unchanged_store_continues(self, left: BrokerHarness, store: Path) -> None:
        before = (store / "config" / "timermark").read_bytes()
        left.start()
        assert (store / "config" / "timermark").read_bytes() == before
        left.advance(20_000, PipelineModel(left).work)
        assert left.bodies("T") == [b"2000", b"4000", b"9000", b"15000"]
