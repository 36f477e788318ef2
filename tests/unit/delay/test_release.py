"""Release: once, at the due millisecond, in order, in fair shares, and despite disk errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from wheelmq.delay import refs as ref
from wheelmq.delay import ring
from wheelmq.delay.park import ParkSettings, park
from wheelmq.delay.rebuild import PARKED_TOPICS
from wheelmq.delay.refs import Refs
from wheelmq.delay.release import Releaser
from wheelmq.delay.release_pace import BURST_SLICES
from wheelmq.delay.ring import QUANTUM, RING_MAX
from wheelmq.delay.room import DEAD_LETTER_TOPIC
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import Message
from wheelmq.formats.disk.origin import origin_text, timer_origin
from wheelmq.formats.disk.timer import TIMER_TOPIC
from wheelmq.formats.units import Millis
from wheelmq.testing import invariants
from wheelmq.testing.clock import START_MS, ManualClock
from wheelmq.testing.disk import SimulatedDisk
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel, Task


def park_raw(harness: BrokerHarness, properties: dict[str, str], body: bytes = b"raw") -> int:
    """Append a record to the timer queue unchanged, as Apache or a faulty writer would. Returns its queue offset."""
    store = harness.broker.parts.store
    message = Message(TIMER_TOPIC, 0, body, dict(properties), born_ms=Millis(START_MS))
    appended = store.append(message, real_queue=store.real_queue(message.properties))
    harness.settle()
    return appended.queue_offset


def due(ms: int) -> dict[str, str]:
    """Return the times of a parked record that is due `ms` after the start."""
    return {props.TIMER_OUT_MS: str((START_MS + ms - 1) // 1000 * 1000), props.WMQ_DUE: f"{START_MS + ms:013d}"}


REAL = {props.REAL_TOPIC: "T", props.REAL_QID: "0", props.UNIQ_KEY: "K"}


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


class TestOrder:
    def test_messages_of_one_millisecond_and_queue_keep_their_order(self, harness: BrokerHarness) -> None:
        for i in range(200):
            harness.submit(harness.send_command("T", b"%d" % i, queue_id=i % 2, deliver_ms=START_MS + 1000))
        harness.advance(1000)
        assert harness.bodies("T", 0) == [b"%d" % i for i in range(0, 200, 2)]
        assert harness.bodies("T", 1) == [b"%d" % i for i in range(1, 200, 2)]

    def test_near_lane_and_pipeline_together_keep_the_order(self, harness: BrokerHarness) -> None:
        model = PipelineModel(harness)
        sent = []
        for i in range(60):
            sent.append(b"%d" % i)
            harness.send("T", sent[-1], deliver_ms=START_MS + 7000)
            harness.advance(100, model.work, 100)
        harness.advance(1000)
        assert harness.bodies("T") == sent
        assert min(harness.broker.parts.timer.pending.armed_by[by] for by in ("pipeline", "near_lane")) > 0

    def test_a_burst_does_not_delay_a_message_of_the_next_millisecond(
        self, harness: BrokerHarness, clock: ManualClock
    ) -> None:
        count = 5 * QUANTUM
        for _ in range(count):
            harness.submit(harness.send_command("T", b"burst", deliver_ms=START_MS + 1000))
        harness.submit(harness.send_command("T", b"beside", deliver_ms=START_MS + 1001))
        harness.settle()
        clock.advance(1001)
        clock.creep_ms = 1  # each clock reading takes 1 ms, so a slice of 2 ms has room for one quantum
        harness.tick()
        clock.creep_ms = 0
        assert harness.broker.parts.releaser.counts["released"] < count
        assert timer_origin(count) in harness.broker.parts.timer.pending.done  # that message was parked last
        harness.settle()
        assert len(harness.bodies("T")) == count + 1

    def test_a_burst_leaves_in_larger_quanta_until_it_is_small(
        self, harness: BrokerHarness, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ring, "QUANTUM", 4)
        monkeypatch.setattr(ring, "BURST", 64)
        monkeypatch.setattr(ring, "BURST_QUANTA", 8)
        for i in range(71):
            harness.submit(harness.send_command("T", b"%d" % i, deliver_ms=START_MS + 1000))
        harness.submit(harness.send_command("T", b"beside", deliver_ms=START_MS + 1001))
        harness.advance(1)  # now the last message is near as well
        clock.advance(1000)
        releaser, sizes = harness.broker.parts.releaser, []
        releaser.take_due(Millis(harness.now_ms))
        while releaser.has_more():
            sizes.append(releaser.release(Millis(harness.now_ms), 0.0))
            assert releaser.in_hand() == 72 - sum(sizes)
        assert sizes == [32, *[4] * 10], "the one beside and all that has room with it; then it is a burst no more"
        harness.settle()
        assert sorted(harness.bodies("T")) == sorted([b"beside", *(b"%d" % i for i in range(71))])

    def test_a_burst_has_a_longer_slice(
        self, harness: BrokerHarness, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ring, "QUANTUM", 1)
        monkeypatch.setattr(ring, "BURST", 16)
        monkeypatch.setattr(ring, "BURST_QUANTA", 2)
        releaser = with_hundred_in_hand(harness, clock)
        assert BURST_SLICES == 4
        assert releaser.release(Millis(harness.now_ms), 0.0024) == 2 * 10  # 9.6 ms, 1 ms for each quantum
        assert releaser.release(Millis(harness.now_ms), 0.0024, 0.012) == 2 * 12  # a larger share
        assert releaser.release(Millis(harness.now_ms), 0.0024, 0.008) == 2 * 10  # a smaller share
        clock.creep_ms = 0
        harness.settle()
        assert len(harness.bodies("T")) == 100

    def test_messages_of_a_few_of_many_instants_leave_together(
        self, harness: BrokerHarness, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A bucket's cost does not depend on its size. If 40 buckets shared 16 places, each would release one."""
        monkeypatch.setattr(ring, "QUANTUM", 16)
        monkeypatch.setattr(ring, "SHARES_MAX", 2)
        for i in range(40 * 8):
            harness.submit(harness.send_command("T", b"%d" % i, deliver_ms=START_MS + 1000 + i // 8))
        harness.advance(40)  # all messages are near
        clock.advance(1000)
        releaser = harness.broker.parts.releaser
        releaser.take_due(Millis(harness.now_ms))
        assert releaser.release(Millis(harness.now_ms), 0.0) == 16
        assert releaser.earliest_in_hand_ms() == START_MS + 1002, "two of them"
        harness.settle()
        assert harness.bodies("T") == [b"%d" % i for i in range(40 * 8)]

    def test_a_share_grows_with_lateness(
        self, harness: BrokerHarness, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ring, "QUANTUM", 1)
        releaser = with_hundred_in_hand(harness, clock)
        now_ms = START_MS + 1000
        assert releaser.release(Millis(now_ms), 0.001, 0.0024) == 3
        assert releaser.release(Millis(now_ms + 10), 0.001, 0.0024) == 5, "twice as long"
        assert releaser.release(Millis(now_ms + 60_000), 0.001, 0.0024) == 7, "four slices more, and no more"
        clock.creep_ms = 0
        harness.settle()
        assert len(harness.bodies("T")) == 100

    def test_the_quantum_shrinks_if_a_release_takes_long_and_grows_again(
        self, harness: BrokerHarness, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ring, "QUANTUM", 16)
        releaser = with_hundred_in_hand(harness, clock)
        now_ms = Millis(harness.now_ms)
        assert [releaser.release(now_ms, 0.0002) for _ in range(6)] == [16, 8, 4, 2, 1, 1], "1 ms, not 0.8"
        assert [releaser.release(now_ms, 0.0004) for _ in range(2)] == [1, 1], "just as long as it may be"
        assert [releaser.release(now_ms, 0.002) for _ in range(3)] == [1 + 2, 4 + 8, 16 + 16]
        clock.creep_ms = 0
        harness.settle()
        assert len(harness.bodies("T")) == 100

    def test_a_burst_ends_when_few_of_its_messages_are_in_hand(
        self, harness: BrokerHarness, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ring, "QUANTUM", 30)
        monkeypatch.setattr(ring, "BURST", 64)
        monkeypatch.setattr(ring, "BURST_QUANTA", 1)
        releaser = with_hundred_in_hand(harness, clock)
        clock.creep_ms = 0
        now_ms = Millis(harness.now_ms)
        assert not releaser.is_burst_leaving()
        seen = [(releaser.release(now_ms, 0.0), releaser.is_burst_leaving()) for _ in range(3)]
        assert seen == [(30, True), (30, True), (30, False)]
        harness.settle()
        assert len(harness.bodies("T")) == 100


def with_hundred_in_hand(harness: BrokerHarness, clock: ManualClock) -> Releaser:
    """Return the releaser with 100 messages due at one millisecond. From now on each clock reading takes 1 ms."""
    for _ in range(100):
        harness.submit(harness.send_command("T", deliver_ms=START_MS + 1000))
    harness.settle()
    clock.advance(1000)
    harness.broker.parts.releaser.take_due(Millis(harness.now_ms))
    clock.creep_ms = 1
    return harness.broker.parts.releaser


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


class TestPoison:
    @pytest.mark.parametrize(
        "properties",
        [
            {},
            {props.REAL_QID: "0"},
            {props.REAL_TOPIC: "T"},
            {props.REAL_TOPIC: "no topic", props.REAL_QID: "0"},
            {props.REAL_TOPIC: "../etc", props.REAL_QID: "0"},
            {props.REAL_TOPIC: TIMER_TOPIC, props.REAL_QID: "0"},
            {props.REAL_TOPIC: "T", props.REAL_QID: "x"},
            {props.REAL_TOPIC: "T", props.REAL_QID: "-1"},
            {props.REAL_TOPIC: "T", props.REAL_QID: str(1 << 31)},
        ],
    )
    def test_a_message_without_a_valid_destination_is_a_dead_letter(
        self, harness: BrokerHarness, properties: dict[str, str]
    ) -> None:
        index = park_raw(harness, {"own": "x", **properties, **due(1000)})
        harness.advance(1000)
        (record,) = harness.read_queue(DEAD_LETTER_TOPIC)
        assert record.message.body == b"raw"
        assert record.message.properties["own"] == "x"
        assert record.message.properties[props.WMQ_ORIGIN] == origin_text(timer_origin(index))
        assert harness.broker.parts.releaser.counts["dead_letter"] == 1
        assert sum(harness.broker.parts.timer.pending.counts.by_queue) == 0
        harness.restart(clean=False)
        harness.advance(5000)
        assert len(harness.read_queue(DEAD_LETTER_TOPIC)) == 1

    @pytest.mark.kernels
    @pytest.mark.parametrize("topic", PARKED_TOPICS)
    def test_the_kernel_releases_nothing_to_a_topic_of_parked_messages(
        self, harness: BrokerHarness, topic: str
    ) -> None:
        index = park_raw(harness, {props.REAL_TOPIC: topic, props.REAL_QID: "0", **due(1000)})
        harness.advance(1000)
        (record,) = harness.read_queue(DEAD_LETTER_TOPIC)
        assert record.message.properties[props.WMQ_ORIGIN] == origin_text(timer_origin(index))

    def test_a_message_without_room_for_its_origin_is_a_dead_letter(self, harness: BrokerHarness) -> None:
        block = {**REAL, **due(1000)}
        block["own"] = "x" * (props.PROPERTIES_BYTES_MAX - len(props.encode(block)) - 5)
        park_raw(harness, block)
        harness.advance(1000)
        (record,) = harness.read_queue(DEAD_LETTER_TOPIC)
        assert record.message.properties[props.REAL_TOPIC] == "T"
        assert list(record.message.properties)[-1] == props.WMQ_ORIGIN
        assert harness.bodies("T") == []
        invariants.check(harness.broker)

    def test_a_dead_letter_does_not_stop_other_messages(self, harness: BrokerHarness) -> None:
        park_raw(harness, {**due(1000)})
        harness.send("T", delay_ms=1000)
        harness.advance(1000)
        assert harness.bodies("T") == [b"body"]

    def test_an_unreadable_record_stays_pending(self, harness: BrokerHarness) -> None:
        for i in range(3):
            harness.send("T", b"%d" % i, delay_ms=1000)
        harness.broker.parts.store.log.files.file_at(0).view[4] = 0
        harness.advance(1000)
        assert harness.bodies("T") == [b"1", b"2"]
        assert harness.broker.parts.releaser.counts["unreadable"] == 1
        assert not harness.broker.parts.releaser.has_more()
        assert (
            sum(harness.broker.parts.timer.pending.counts.by_queue) == 1
        )  # it is not settled: a good copy may be restored
        assert harness.send("T", b"3").code == 0
        harness.broker.parts.store.log.files.file_at(0).view[4] = 0xDA
        harness.restart()
        harness.settle()
        assert harness.bodies("T") == [b"1", b"2", b"3", b"0"]


class TestFullDisk:
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


class TestRing:
    @pytest.mark.plain  # the kernel appends by itself
    def test_a_disk_error_loses_no_message(self, harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
        for i in range(5):
            harness.send("T", b"%d" % i, delay_ms=1000)

        def fail(*_: object, **__: object) -> None:
            raise OSError("unforeseen")

        monkeypatch.setattr(harness.broker.parts.store, "append", fail)
        harness.clock.advance(1000)
        harness.broker.tick()
        assert harness.broker.parts.releaser.earliest_in_hand_ms() == START_MS + 1000
        monkeypatch.undo()
        harness.advance(200)
        assert harness.bodies("T") == [b"0", b"1", b"2", b"3", b"4"]
        invariants.check(harness.broker)

    def test_many_overdue_instants_enter_as_the_ring_empties(self, harness: BrokerHarness) -> None:
        refs = overdue(np.arange(1, 100_001))
        broker = harness.broker
        timer, releaser = (
            broker.parts.timer,
            Releaser(broker.parts.store, broker.parts.timer, broker.parts.generations),
        )
        timer.pending.armed.requeue(refs)
        left = []
        for _ in range(5):  # again in each tick
            releaser.take_due(Millis(100_000))
            left.append(timer.pending.armed.count)
        assert left[0] > left[-1] == left[-2] == 100_000 - RING_MAX
        assert releaser.earliest_in_hand_ms() == 1

    def test_a_burst_keeps_no_other_instant_out(self, harness: BrokerHarness) -> None:
        broker = harness.broker
        timer, releaser = (
            broker.parts.timer,
            Releaser(broker.parts.store, broker.parts.timer, broker.parts.generations),
        )
        timer.pending.armed.requeue(overdue(np.repeat([1, 2], [50_000, 10])))
        releaser.take_due(Millis(2))
        assert timer.pending.armed.count == 0


def overdue(fire_ms: npt.NDArray[np.int64]) -> Refs:
    """Make references that fire at these times and name no message."""
    refs = ref.make(len(fire_ms))
    refs[:, ref.FIRE_MS] = fire_ms
    refs[:, ref.ORIGIN] = np.arange(len(fire_ms))
    return refs


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
