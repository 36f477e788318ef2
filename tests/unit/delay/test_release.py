"""Releases: once, at the due millisecond, unchanged, and despite full disks and wrong turns."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.delay.parked import REAL, park_raw
from wheelmq.delay import refs as ref
from wheelmq.delay.park import ParkSettings, park
from wheelmq.delay.ring import QUANTUM
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import Message
from wheelmq.formats.disk.origin import origin_text, timer_origin
from wheelmq.formats.units import Millis
from wheelmq.testing import invariants
from wheelmq.testing.clock import START_MS, ManualClock
from wheelmq.testing.disk import SimulatedDisk
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel, Task


class TestTime:
    @pytest.mark.parametrize("delay_ms", [1, 2, 49, 50, 749, 750, 751, 999, 1000, 1001, 1749, 1750, 1751, 3000])
    def test_a_message_leaves_at_its_due_millisecond(self, harness: BrokerHarness, delay_ms: int) -> None:
        harness.send("T", delay_ms=delay_ms)
        harness.advance(delay_ms - 1)
        assert harness.bodies("T") == []
        harness.advance(1)
        (record,) = harness.read_queue("T")
        assert record.message.properties[props.TIMER_DEQUEUE_MS] == str(START_MS + delay_ms)
        assert record.store_ms == START_MS + delay_ms

    @pytest.mark.parametrize("delay_ms", [1, 999, 1000, 1001, 7003])
    def test_the_broker_requests_its_tick_in_time(self, harness: BrokerHarness, delay_ms: int) -> None:
        harness.send("T", delay_ms=delay_ms)
        while not harness.broker.parts.releaser.counts["released"]:
            harness.advance_to_next()
        assert harness.now_ms == START_MS + delay_ms

    def test_an_idle_broker_requests_few_ticks(self, harness: BrokerHarness) -> None:
        harness.send("T", delay_ms=60_000)
        ticks = 0
        while harness.now_ms < START_MS + 20_000:
            harness.advance_to_next()
            ticks += 1
        assert ticks <= 60  # its periodic_tasks

    def test_a_clock_set_back_delays_the_release(self, harness: BrokerHarness, clock: ManualClock) -> None:
        harness.send("T", delay_ms=1000)
        clock.step(-5000)
        harness.advance(5999)
        assert harness.bodies("T") == []
        harness.advance(1)
        assert harness.bodies("T") == [b"body"]

    def test_a_clock_set_back_delays_messages_in_hand(self, harness: BrokerHarness, clock: ManualClock) -> None:
        for _ in range(3 * QUANTUM):
            harness.submit(harness.send_command("T", delay_ms=1000))
        harness.tick()
        clock.advance(1000)
        clock.creep_ms = 10  # the slice is over after the first quantum
        harness.tick()
        clock.creep_ms = 0
        queue = harness.broker.parts.store.queues.find("T", 0)
        assert queue is not None and queue.end == QUANTUM
        clock.step(-1)
        harness.settle()
        harness.settle()
        assert queue.end == QUANTUM
        assert harness.broker.parts.releaser.counts["early"] > 0
        harness.advance(1)
        assert len(harness.bodies("T")) == 3 * QUANTUM
        invariants.check(harness.broker)

    def test_a_clock_set_forward_releases_messages(self, harness: BrokerHarness, clock: ManualClock) -> None:
        harness.send("T", delay_ms=60_000)
        clock.step(60_000)
        harness.settle()
        assert harness.bodies("T") == [b"body"]


class TestReleasedMessages:
    def test_a_released_message_equals_the_sent_one(self, harness: BrokerHarness) -> None:
        sent = {"KEYS": "k", "TAGS": "TagA", "own": "ü"}
        harness.send("T", b"a body", queue_id=2, delay_ms=1500, properties=sent, h=7, f=1)
        harness.advance(1500)
        (record,) = harness.read_queue("T", 2)
        message = record.message
        assert (message.body, message.flag, message.sys_flag) == (b"a body", 7, 1)
        assert message.born_host == harness.client.peer and message.born_ms == START_MS
        properties = message.properties
        assert {name: properties[name] for name in sent} == sent
        assert properties[props.TIMER_DELAY_MS] == "1500"
        assert properties[props.TIMER_ENQUEUE_MS] == str((1 << 63) - 1)  # Apache's value for: never indexed
        assert list(properties)[-1] == props.WMQ_ORIGIN
        assert properties[props.WMQ_ORIGIN] == origin_text(timer_origin(0))

    def test_a_timer_with_a_level_gets_its_level_back(self, harness: BrokerHarness) -> None:
        """Applies to messages with a level in the timer queue. Apache RocketMQ parks them there if configured to."""
        harness.send("T", b"another", queue_id=1)
        parked = Message("T", 0, b"body", {props.TIMER_DELAY_MS: "1000"})
        settings = harness.broker.parts.settings
        park(parked, Millis(harness.now_ms), ParkSettings(settings.timer, settings.levels.levels_ms))
        parked.properties[props.TIMER_DELAY_LEVEL] = "1"
        harness.broker.parts.store.append(parked, real_queue=harness.broker.parts.store.real_queue(parked.properties))
        harness.settle()
        harness.advance(1000)
        (record,) = harness.read_queue("T")
        assert record.message.properties[props.DELAY] == "1"
        assert props.TIMER_DELAY_LEVEL not in record.message.properties

    def test_the_unit_has_the_tag_of_the_message(self, harness: BrokerHarness) -> None:
        harness.send("T", delay_ms=10, properties={"TAGS": "TagA"})
        harness.advance(10)
        assert harness.pull("T", subscription="TagA").records
        assert not harness.pull("T", subscription="TagB").records

    def test_a_message_armed_by_the_pipeline_names_the_time_of_its_indexing(self, harness: BrokerHarness) -> None:
        model = PipelineModel(harness)
        harness.send("T", delay_ms=9000)
        harness.advance(9000, model.work, 500)
        (record,) = harness.read_queue("T")
        enqueue_ms = int(record.message.properties[props.TIMER_ENQUEUE_MS])
        assert START_MS < enqueue_ms < START_MS + 9000 and enqueue_ms % 1000 == 0
        assert record.message.properties[props.TIMER_DEQUEUE_MS] == str(START_MS + 9000)
        assert harness.broker.parts.timer.pending.armed_by["pipeline"] == 1

    def test_a_message_to_a_queue_beyond_the_queues_keeps_its_queue(self, harness: BrokerHarness) -> None:
        """The topic has shrunk since the send. The message goes to its original queue, as with Apache."""
        harness.send("T", queue_id=3, delay_ms=1000)
        answer = harness.ask_code(
            17, topic="T", defaultTopic="", readQueueNums=1, writeQueueNums=1, perm=6, order=False
        )  # type: ignore[arg-type]
        assert answer.code == 0
        harness.advance(1000)
        queue = harness.broker.parts.store.queues.find("T", 3)
        assert queue is not None and queue.end == 1
        invariants.check(harness.broker)

    def test_a_message_of_a_deleted_topic_is_released(self, harness: BrokerHarness) -> None:
        harness.send("T", delay_ms=1000)
        assert harness.ask_code(215, topic="T").code == 0  # type: ignore[arg-type]
        harness.advance(1000)
        queue = harness.broker.parts.store.queues.find("T", 0)
        assert queue is not None and queue.end == 1
        assert harness.pull("T").answer.code == 17
        invariants.check(harness.broker)


class TestPipelineMistakes:
    @pytest.mark.parametrize("early_ms", [1, 500, 4000])
    def test_a_reference_with_too_early_a_time_is_requeued(self, harness: BrokerHarness, early_ms: int) -> None:
        harness.send("T", delay_ms=8000)
        forged = ref.make(1)
        forged[0, ref.FIRE_MS], forged[0, ref.ORIGIN] = harness.now_ms + 8000 - early_ms, timer_origin(0)
        forged[0, ref.SIZE] = 300
        harness.broker.parts.timer.pending.armed.arm(forged)
        harness.advance(7999)
        assert harness.bodies("T") == []
        assert harness.broker.parts.releaser.counts["early"] == 1
        harness.advance(1)
        assert harness.bodies("T") == [b"body"]

    @pytest.mark.parametrize("skew_ms", [-4000, -500, -1, 1, 500, 4000])
    def test_rows_with_wrong_times_are_rejected_and_the_message_is_on_time(
        self, harness: BrokerHarness, skew_ms: int
    ) -> None:
        model = PipelineModel(harness)

        def bend(task: Task) -> Task:
            rows = task.rows.copy()
            rows["fire_ms"] += skew_ms
            return task._replace(rows=rows)

        model.bend = bend
        harness.send("T", delay_ms=8000)
        harness.advance(7999, model.work, 500)
        assert harness.bodies("T") == []
        assert model.committed == 0 and harness.broker.parts.timer.pending.armed_by["pipeline"] == 0
        harness.advance(1)
        assert harness.bodies("T") == [b"body"]


class TestFullDisk:
    @pytest.fixture(autouse=True)
    def takes_space_ahead(self, disk: SimulatedDisk) -> None:
        """Let the present file have all its space."""
        disk.gives_room_ahead = True

    def fill(self, harness: BrokerHarness, disk: SimulatedDisk) -> None:
        """Leave no room in the log's file for a record of 1000 bytes and more, and none for another file."""
        disk.is_full = lambda path: "commitlog" in str(path)
        left = harness.broker.parts.store.log.files.end - harness.broker.parts.store.log.end
        harness.send("U", bytes(left - 1400))
        assert harness.broker.parts.store.log.files.end - harness.broker.parts.store.log.end < 1300

    def test_due_messages_wait_for_room(self, harness: BrokerHarness, disk: SimulatedDisk) -> None:
        for i in range(5):
            harness.send("T", b"%d" % i * 1200, delay_ms=1000)
        self.fill(harness, disk)
        harness.clock.advance(1000)
        for _ in range(5):
            harness.tick()
            assert harness.broker.next_tick_ms() > 0  # no busy wait
            harness.clock.advance(100)
        assert harness.bodies("T") == []
        assert harness.send("T", bytes(1200)).code == 14
        disk.is_full = lambda path: False
        harness.advance(200)
        assert [body[:1] for body in harness.bodies("T")] == [b"0", b"1", b"2", b"3", b"4"]
        assert harness.send("T").code == 0
        invariants.check(harness.broker)

    def test_messages_on_a_full_disk_can_be_pulled(self, harness: BrokerHarness, disk: SimulatedDisk) -> None:
        harness.send("T", bytes(1200), delay_ms=1000)
        self.fill(harness, disk)
        harness.clock.advance(1000)
        assert harness.send("U", b"small").code == 0
        harness.clock.advance(150)
        harness.tick()
        assert b"small" in harness.bodies("U")

    def test_due_messages_wait_for_room_for_queue_units(self, harness: BrokerHarness, disk: SimulatedDisk) -> None:
        for i in range(5):
            harness.send("NEW", b"%d" % i, delay_ms=1000)
        disk.is_full = lambda path: "consumequeue" in str(path)
        harness.clock.advance(1000)
        for _ in range(3):
            harness.tick()
            harness.clock.advance(100)
        assert harness.bodies("NEW") == []
        disk.is_full = lambda path: False
        harness.advance(200)
        assert harness.bodies("NEW") == [b"0", b"1", b"2", b"3", b"4"]
        invariants.check(harness.broker)


class TestRolls:
    def test_a_message_beyond_the_window_rolls_and_leaves_in_time(self, harness: BrokerHarness) -> None:
        model = PipelineModel(harness)
        due_ms = harness.now_ms + 65_123
        harness.send("T", delay_ms=65_123)  # the window is 20 s
        harness.advance(65_122, model.work, 500)
        assert harness.bodies("T") == []
        harness.advance(1)
        (record,) = harness.read_queue("T")
        assert record.store_ms == due_ms
        rolled = harness.broker.parts.releaser.counts["rolled"]
        assert rolled >= 2
        assert record.message.properties[props.TIMER_ROLL_TIMES] == str(rolled)
        assert record.message.properties[props.WMQ_ORIGIN] == origin_text(timer_origin(rolled))
        invariants.check(harness.broker)

    @pytest.mark.parametrize("name", [props.TIMER_DELAY_SEC, props.TIMER_DELAY_MS])
    def test_a_rolled_record_of_apache_does_not_leave_early(self, harness: BrokerHarness, name: str) -> None:
        model = PipelineModel(harness)
        due_ms = harness.now_ms + 30_000
        value = "30" if name == props.TIMER_DELAY_SEC else "30000"
        park_raw(harness, {**REAL, name: value, props.TIMER_OUT_MS: str(due_ms // 1000 * 1000)})
        harness.broker.parts.topics.create_for_group("T", 1)
        harness.advance(29_999, model.work, 500)
        assert harness.broker.parts.releaser.counts["rolled"]
        assert harness.bodies("T") == []
        harness.advance(1)
        assert harness.bodies("T") == [b"raw"]


class TestRecordsOfApache:
    """Parked records without our property. The delay determines the due time, and Apache computed the slot."""

    def test_records_due_after_their_slot_are_released(self, harness: BrokerHarness) -> None:
        model = PipelineModel(harness)
        harness.broker.parts.topics.create_for_group("T", 1)
        for second in range(4, 13):
            slot_ms = START_MS // 1000 * 1000 + 1000 * second
            delay_ms = slot_ms + 1003 - START_MS  # sent 3 ms before it was stored, it is due at slot + 1000
            times = {props.TIMER_DELAY_MS: str(delay_ms), props.TIMER_OUT_MS: str(slot_ms)}
            park_raw(harness, {**REAL, **times}, b"%d" % second)
        harness.advance(20_000, model.work, 100)
        assert harness.bodies("T") == [b"%d" % second for second in range(4, 13)]


@pytest.mark.parametrize("precision_ms", [100, 200, 500, 1000])
@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
def test_messages_leave_at_their_due_millisecond_at_each_precision(
    tmp_path: Path, precision_ms: int, clean: bool
) -> None:
    """The messages are indexed, scanned, rolled and cancelled, with a stop in between."""
    settings = {"timer_precision_ms": precision_ms, "timer_slots": 60, "timer_roll_window_slots": 20}
    with BrokerHarness(tmp_path, timer_lead_ms=2000, **settings) as harness:
        model, due_ms = PipelineModel(harness), dict[bytes, int]()
        window_ms = 20 * precision_ms
        for i, delay_ms in enumerate((window_ms // 2 + 7, window_ms, window_ms + precision_ms, 3 * window_ms + 1)):
            due_ms[b"%d" % i] = harness.now_ms + delay_ms
            assert harness.send("T", b"%d" % i, delay_ms=delay_ms, properties={props.UNIQ_KEY: f"K{i}"}).code == 0
            harness.advance(37)
        harness.send("T", b"never", delay_ms=9000, properties={props.UNIQ_KEY: "K"})
        harness.advance(3100, model.work, 250)
        assert harness.broker.parts.timer.indexed_to >= 5
        assert harness.broker.parts.timer.wheel.table["time"].max() >= (START_MS + window_ms) // precision_ms
        cancel = {props.TIMER_DEL_UNIQKEY: "T+K"}
        answer = harness.send("T", b"x", deliver_ms=harness.now_ms + 5000, properties=cancel)
        assert answer.ext["cancelResult"] == "cancelled"
        harness.restart(clean=clean)
        harness.advance(max(*due_ms.values(), harness.now_ms + 9000) - harness.now_ms, PipelineModel(harness).work, 250)
        found = {record.message.body: record.store_ms for record in harness.read_queue("T")}
        assert found == due_ms
        assert harness.broker.parts.releaser.counts["rolled"] >= 1
        invariants.check(harness.broker)


def test_a_restart_can_change_the_precision(tmp_path: Path) -> None:
    """A broker of one precision scans units that were written with another."""
    with BrokerHarness(tmp_path) as harness:
        model = PipelineModel(harness)
        harness.send("T", delay_ms=15_900)
        harness.advance(4000, model.work, 500)
        assert model.committed == 1
        harness.restart(timer_precision_ms=500)
        harness.advance(15_000, model.work, 500)
        assert harness.bodies("T") == [b"body"]
