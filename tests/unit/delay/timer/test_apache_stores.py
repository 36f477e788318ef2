"""Stores that Apache RocketMQ wrote or served. Messages that it delivered are not delivered again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from wheelmq.delay.offline import pending_in
from wheelmq.delay.timer.mark import TimerCheck, check_is_apaches, save_check
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.index import INDEX_HEADER, SLOT_BYTES
from wheelmq.formats.disk.message import Message
from wheelmq.formats.disk.paths import StorePaths
from wheelmq.formats.disk.timer import TIMER_TOPIC
from wheelmq.formats.units import LogPosition, Millis, QueueOffset
from wheelmq.store.settings import StoreSettings
from wheelmq.store.store import Store
from wheelmq.testing import invariants
from wheelmq.testing.clock import START_MS
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel


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
