"""The timer after a stop, from the files alone; and a store that Apache RocketMQ wrote."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from wheelmq.delay.pending import State
from wheelmq.delay.timer.mark import Mark, MarkFile, TimerCheck, load_check, save_check
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import Message
from wheelmq.formats.disk.paths import StorePaths
from wheelmq.formats.disk.timer import TIMER_TOPIC
from wheelmq.formats.units import Millis
from wheelmq.testing import invariants
from wheelmq.testing.clock import START_MS, ManualClock
from wheelmq.testing.disk import SimulatedDisk
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel

DELAYS_MS = [500, 3000, 4500, 8000, 15_000, 30_000]


@pytest.fixture
def model(harness: BrokerHarness) -> PipelineModel:
    return PipelineModel(harness)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def send_all(harness: BrokerHarness) -> list[bytes]:
    bodies = [b"%d" % delay_ms for delay_ms in DELAYS_MS]
    for delay_ms, body in zip(DELAYS_MS, bodies, strict=True):
        assert harness.send("T", body, delay_ms=delay_ms).code == 0
    return bodies


def assert_on_time(harness: BrokerHarness, since_ms: int = START_MS) -> None:
    """Every message of `send_all` left at its millisecond."""
    for record in harness.read_queue("T"):
        assert int(record.message.properties[props.TIMER_DEQUEUE_MS]) == since_ms + int(record.message.body)


class TestAfterAStop:
    @pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
    @pytest.mark.parametrize("worked_ms", [0, 100, 3200, 9000])
    def test_everything_leaves_at_its_time(
        self, harness: BrokerHarness, model: PipelineModel, clean: bool, worked_ms: int
    ) -> None:
        bodies = send_all(harness)
        harness.advance(worked_ms, model.work, 500)
        harness.restart(clean=clean)
        invariants.check(harness.broker)
        harness.advance(31_000, model.work, 500)
        assert harness.bodies("T") == bodies
        assert_on_time(harness)

    def test_without_a_pipeline_what_is_within_the_lead_leaves(
        self, harness: BrokerHarness, model: PipelineModel
    ) -> None:
        bodies = send_all(harness)
        harness.advance(3200, model.work, 500)
        assert harness.broker.timer.indexed_to == len(bodies)
        harness.restart(clean=False)
        harness.advance(4900)
        assert harness.bodies("T") == bodies[:4]
        assert_on_time(harness)
        assert harness.broker.timer.armed_by["recovery"] == 2  # 4500 and 8000: the lead is 5 s

    def test_what_fell_due_meanwhile_leaves_at_once_and_in_order(
        self, harness: BrokerHarness, model: PipelineModel, clock: ManualClock
    ) -> None:
        bodies = send_all(harness)
        harness.advance(100, model.work, 500)
        harness.stop()
        clock.advance(60_000)
        harness.start()
        harness.settle()
        assert harness.bodies("T") == bodies

    def test_nothing_twice_over_many_stops(self, harness: BrokerHarness, model: PipelineModel) -> None:
        bodies = send_all(harness)
        for i in range(40):
            harness.advance(800, model.work, 300)
            harness.restart(clean=i % 2 == 0)
        assert harness.bodies("T") == bodies

    def test_a_clock_that_was_set_back_meanwhile(
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

    def test_a_rolled_message_leaves_once(self, harness: BrokerHarness, model: PipelineModel) -> None:
        harness.send("T", delay_ms=65_000)
        rolled = 0
        for _ in range(13):
            harness.advance(5000, model.work, 500)
            rolled += harness.broker.releaser.counts["rolled"]
            harness.restart(clean=False)
            invariants.check(harness.broker)
        assert harness.bodies("T") == [b"body"]
        assert rolled >= 2

    def test_a_roll_whose_time_came_meanwhile(
        self, harness: BrokerHarness, model: PipelineModel, clock: ManualClock
    ) -> None:
        harness.send("T", delay_ms=65_000)
        harness.advance(4000, model.work, 500)
        harness.stop()
        clock.advance(30_000)  # past its roll slot, before its due time
        harness.start()
        harness.advance(31_000, model.work, 500)
        assert [record.store_ms for record in harness.read_queue("T")] == [START_MS + 65_000]

    def test_how_far_a_message_has_come(self, harness: BrokerHarness, model: PipelineModel) -> None:
        harness.send("T", delay_ms=15_000)
        timer = harness.broker.timer
        assert timer.state_of(0) is State.PARKED
        harness.advance(4000, model.work, 500)
        assert timer.state_of(0) is State.INDEXED
        harness.advance(10_000, model.work, 500)
        assert timer.state_of(0) is State.ARMED
        harness.restart()
        assert harness.broker.timer.state_of(0) is State.ARMED


class TestFilesThatAreGone:
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

    def test_the_wheel(self, harness: BrokerHarness, model: PipelineModel, store: Path) -> None:
        bodies = self.prepare(harness, model)
        (store / "timerwheel").unlink()
        self.finish(harness, model, bodies)

    def test_the_mark(self, harness: BrokerHarness, model: PipelineModel, store: Path) -> None:
        bodies = self.prepare(harness, model)
        (store / "config" / "timermark").unlink()
        self.finish(harness, model, bodies)

    def test_mark_and_timercheck(self, harness: BrokerHarness, model: PipelineModel, store: Path) -> None:
        bodies = self.prepare(harness, model)
        for name in ("timermark", "timercheck"):
            (store / "config" / name).unlink()
        self.finish(harness, model, bodies)

    def test_mark_wheel_and_log(self, harness: BrokerHarness, model: PipelineModel, store: Path) -> None:
        bodies = self.prepare(harness, model)
        (store / "config" / "timermark").unlink()
        (store / "timerwheel").unlink()
        shutil.rmtree(store / "timerlog")
        self.finish(harness, model, bodies)

    @pytest.mark.xfail(
        strict=True,
        raises=AssertionError,
        reason="a mark that names a timer log which is not there ends the start with an AssertionError. Index anew "
        "from the start of the timer queue then, as without a mark, or say which file to remove.",
    )
    def test_the_log(self, harness: BrokerHarness, model: PipelineModel, store: Path) -> None:
        bodies = self.prepare(harness, model)
        shutil.rmtree(store / "timerlog")
        self.finish(harness, model, bodies)

    def test_a_unit_that_does_not_read(
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

    def test_a_mark_that_was_torn(self, harness: BrokerHarness, model: PipelineModel, store: Path) -> None:
        bodies = self.prepare(harness, model)
        path = store / "config" / "timermark"
        raw = bytearray(path.read_bytes())
        raw[5] ^= 1
        raw[4096 + 5] ^= 1
        path.write_bytes(raw)
        self.finish(harness, model, bodies)


class TestTheMark:
    def test_it_follows_the_turns(self, harness: BrokerHarness, model: PipelineModel, disk: SimulatedDisk) -> None:
        send_all(harness)
        harness.advance(3200, model.work, 500)
        timer = harness.broker.timer
        mark = MarkFile(disk, harness.broker.paths).load()
        assert mark == Mark(6, timer.log.end, model.epoch, 1)
        check = load_check(disk, harness.broker.paths)
        assert check is not None and (check.queue_offset, check.log_flush_position) == (6, 0)
        harness.stop()
        check = load_check(disk, timer.store.paths)
        assert check is not None and check.log_flush_position == timer.log.end

    def test_epochs_grow_over_stops(self, harness: BrokerHarness, model: PipelineModel) -> None:
        epochs = []
        for clean in (True, False, True):
            model.terms = None
            epochs.append(model.open())
            harness.restart(clean=clean)
        assert epochs == sorted(set(epochs))

    def test_apache_finds_nothing_out_that_is_not(self, harness: BrokerHarness, model: PipelineModel) -> None:
        """lastReadTimeMs: every slot before it is out, whatever happens in between."""
        bodies = send_all(harness)
        for _ in range(64):
            check = harness.broker.timer.check(harness.broker.releaser.earliest_in_hand_ms())
            out = harness.bodies("T")
            for delay_ms, body in zip(DELAYS_MS, bodies, strict=True):
                slot_ms = (START_MS + delay_ms - 1) // 1000 * 1000
                assert body in out or slot_ms >= check.last_read_ms, (body, harness.now_ms)
            harness.advance(500, model.work, 250)
        assert check.last_read_ms > START_MS + 28_000


class TestAStoreOfApaches:
    """Records without our property, a timercheck, no mark."""

    REAL = {props.REAL_TOPIC: "T", props.REAL_QID: "0"}

    def adopt(
        self, harness: BrokerHarness, parked: list[dict[str, str]], check: TimerCheck | None, store: Path
    ) -> None:
        """Write what Apache would have left behind, and start on it."""
        harness.broker.topics.create_for_group("T", 1)
        for i, properties in enumerate(parked):
            message = Message(TIMER_TOPIC, 0, b"%d" % i, {**self.REAL, props.UNIQ_KEY: f"K{i}", **properties})
            message.born_ms = Millis(harness.now_ms)
            harness.broker.store.append(message)
        harness.broker.store.dispatch()
        harness.crash()
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

    def test_what_is_out_stays_out(self, harness: BrokerHarness, model: PipelineModel, store: Path) -> None:
        parked = [self.relative(seconds) for seconds in (2, 5, 9)]
        harness.clock.advance(6000)
        harness.clock.step(-6000)
        check = TimerCheck(last_read_ms=START_MS // 1000 * 1000 + 5000, queue_offset=3)
        self.adopt(harness, parked, check, store)
        harness.advance(12_000, model.work, 500)
        assert harness.bodies("T") == [b"1", b"2"]  # the slot of 5 s is at 5 s, which was not read yet

    def test_what_was_not_indexed_is_not_out(self, harness: BrokerHarness, model: PipelineModel, store: Path) -> None:
        parked = [self.relative(seconds) for seconds in (2, 2)]
        check = TimerCheck(last_read_ms=START_MS + 60_000, queue_offset=1)
        self.adopt(harness, parked, check, store)
        harness.advance(5000, model.work, 500)
        assert harness.bodies("T") == [b"1"]

    def test_without_a_timercheck_everything_is_pending(
        self, harness: BrokerHarness, model: PipelineModel, store: Path
    ) -> None:
        self.adopt(harness, [self.relative(seconds) for seconds in (2, 30)], None, store)
        harness.advance(31_000, model.work, 500)
        assert harness.bodies("T") == [b"0", b"1"]
        for record in harness.read_queue("T"):
            seconds = int(record.message.properties[props.TIMER_DELAY_SEC])
            assert int(record.message.properties[props.TIMER_DEQUEUE_MS]) >= START_MS + 1000 * seconds - 1000

    def test_a_cancel_whose_message_is_pending(self, harness: BrokerHarness, model: PipelineModel, store: Path) -> None:
        cancel = {props.TIMER_DEL_UNIQKEY: "T+K0", props.TIMER_DELIVER_MS: str(START_MS + 5000)}
        self.adopt(harness, [self.relative(5), self.relative(6), cancel], None, store)
        harness.advance(8000, model.work, 500)
        assert harness.bodies("T") == [b"1"]
        harness.restart(clean=False)
        harness.advance(8000, model.work, 500)
        assert harness.bodies("T") == [b"1"]

    @pytest.mark.xfail(
        strict=True,
        reason="adoption goes by due times alone: of a message that Apache rolled, the first record is taken for "
        "pending beside the one it was rolled to, and it is delivered twice. Read Apache's timer log before it is "
        "cut: a unit that rolls, in a slot before lastReadTimeMs, is out.",
    )
    def test_a_message_that_was_rolled_there(self, harness: BrokerHarness, model: PipelineModel, store: Path) -> None:
        far = self.relative(30)
        rolled = {**far, props.TIMER_ROLL_TIMES: "1", props.UNIQ_KEY: "K0"}
        check = TimerCheck(last_read_ms=START_MS + 12_000, queue_offset=1)
        self.adopt(harness, [far, rolled], check, store)
        harness.advance(32_000, model.work, 500)
        assert len(harness.bodies("T")) == 1
