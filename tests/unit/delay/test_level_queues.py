"""Messages in the level queues, ours and Apache RocketMQ's, and their release by our broker."""

from __future__ import annotations

import errno
import itertools
import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from wheelmq.delay.levels.offsets import DelayOffsetsBody
from wheelmq.delay.offline import pending_in
from wheelmq.delay.pending_message import State
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import SYS_COMPRESSED, Host, Message
from wheelmq.formats.disk.origin import KIND_LEVEL, level_origin, origin_text
from wheelmq.formats.disk.queue_unit import QUEUE_UNIT
from wheelmq.formats.names import SCHEDULE_TOPIC
from wheelmq.formats.units import LogPosition, Millis
from wheelmq.formats.wire import bodies
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.system.disk import DiskFull
from wheelmq.testing import invariants
from wheelmq.testing.clock import START_MS
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel
from wheelmq.testing.stops import Died, Stops

LEVEL_MS = {1: 1000, 2: 5000, 3: 10_000}
BORN = Host(b"\x20\x01\x0d\xb8" + bytes(11) + b"\7", 4711)


def scheduled(level: int, body: bytes, **properties: str) -> Message:
    """A message with a level, as Apache stores it."""
    real = {props.REAL_TOPIC: "T", props.REAL_QID: "0", props.UNIQ_KEY: body.decode(), props.DELAY: str(level)}
    message = Message(SCHEDULE_TOPIC, level - 1, body, {**properties, **real})
    message.sys_flag, message.born_host, message.reconsume_times = SYS_COMPRESSED, BORN, 2
    message.born_ms = Millis(START_MS)
    return message


def unit_dues(harness: BrokerHarness, level: int) -> list[int]:
    """Return the due times in the units of a level's queue."""
    queue = harness.broker.parts.store.queues.find(SCHEDULE_TOPIC, level - 1)
    assert queue is not None
    return [int(tag) for units in queue.chunks() for tag in units["tag_code"]]


def send(harness: BrokerHarness, level: int, body: bytes, **properties: str) -> None:
    sent = {props.UNIQ_KEY: body.decode(), props.DELAY: str(level), **properties}
    assert harness.send("T", body, properties=sent).code == 0


def copied(message: Message) -> Message:
    """Return the message that Apache stores when it delivers `message`."""
    return message.again("T", 0, dict(message.properties))


def write(harness: BrokerHarness, *messages: Message) -> None:
    for message in messages:
        harness.broker.parts.store.append(message)
    harness.broker.parts.store.dispatch()


def leave(harness: BrokerHarness, store: Path, offsets: dict[int, int] | None = None) -> None:
    """End Apache's broker. delayOffset.json has the offsets that it had delivered."""
    harness.broker.parts.topics.create_for_group("T", 1)
    harness.broker.parts.topics.file.save_now()
    harness.crash()
    if offsets is not None:
        (store / "config" / "delayOffset.json").write_bytes(bodies.write(DelayOffsetsBody(offset_table=offsets)))


def offsets(store: Path) -> dict[str, int]:
    found: dict[str, int] = json.loads((store / "config" / "delayOffset.json").read_text())["offsetTable"]
    return found


@pytest.mark.parametrize("with_pipeline", [False, True], ids=["alone", "pipeline"])
def test_a_level_message_leaves_unchanged_at_its_due_time(
    harness: BrokerHarness, store: Path, with_pipeline: bool
) -> None:
    write(harness, *(scheduled(level, b"%d" % level, TAGS="t") for level in LEVEL_MS))
    leave(harness, store)
    harness.start(timer_lead_ms=2000)
    model = PipelineModel(harness)
    harness.advance(300, model.work if with_pipeline else None)
    for level, delay_ms in LEVEL_MS.items():
        harness.advance(START_MS + delay_ms - 1 - harness.now_ms, model.work)
        assert len(harness.bodies("T")) == level - 1
        harness.advance(1, model.work)
    for level, record in enumerate(harness.read_queue("T"), 1):
        message = record.message
        assert (message.body, message.properties[props.DELAY]) == (b"%d" % level, str(level))
        assert (message.sys_flag, message.born_host, message.reconsume_times) == (SYS_COMPRESSED | 0x10, BORN, 2)
        assert props.TIMER_DELAY_LEVEL not in message.properties
    assert len(harness.pull("T", subscription="t").records) == 3
    harness.advance(10_600)
    assert offsets(store) == {"1": 1, "2": 1, "3": 1}
    invariants.check(harness.broker)


def test_delivered_messages_are_not_delivered_again(harness: BrokerHarness, store: Path) -> None:
    write(harness, *(scheduled(1, b"%d" % i) for i in range(4)))
    leave(harness, store, {1: 3})
    harness.start()
    harness.advance(60_000)
    assert harness.bodies("T") == [b"3"]
    harness.restart(clean=False)
    harness.advance(60_000)
    assert harness.bodies("T") == [b"3"]
    assert offsets(store) == {"1": 4}
    (store / "config" / "delayOffset.json").unlink()
    (store / "config" / "delayOffset.json.bak").unlink()
    harness.restart(clean=False)
    harness.advance(60_000)
    assert harness.bodies("T") == [b"3"]


def test_overdue_messages_leave_at_once_after_a_start(harness: BrokerHarness, store: Path) -> None:
    write(harness, scheduled(2, b"late"))
    leave(harness, store, {})
    harness.clock.advance(3_600_000)
    harness.start()
    harness.settle()
    assert harness.bodies("T") == [b"late"]


def retag(store: Path, level: int, tags: list[int]) -> None:
    """Change the due times of a level's units, and make the units older than those that a start rewrites."""
    [path] = (store / "consumequeue" / SCHEDULE_TOPIC / str(level - 1)).iterdir()
    with path.open("r+b") as file:
        for i, tag_code in enumerate(tags):
            file.seek(i * QUEUE_UNIT.size + 12)
            file.write(tag_code.to_bytes(8, "big"))
    (store / "checkpoint").write_bytes(((START_MS + 4000).to_bytes(8, "big") * 2).ljust(4096, b"\0"))


def test_the_queue_unit_determines_the_due_time(harness: BrokerHarness, store: Path) -> None:
    """The units follow another level table. Messages that were due in the past leave at once, as with Apache."""
    write(harness, scheduled(3, b"past"), scheduled(3, b"soon"), scheduled(3, b"later"))
    harness.broker.parts.store.close()
    leave(harness, store, {})
    retag(store, 3, [5, START_MS + 5700, START_MS + 14_000])
    harness.clock.advance(5000)
    harness.start()
    harness.settle()
    assert harness.bodies("T") == [b"past"]
    harness.advance(699)
    assert harness.bodies("T") == [b"past"]
    harness.advance(1)
    assert harness.bodies("T") == [b"past", b"soon"]
    harness.advance(8299)
    assert harness.bodies("T") == [b"past", b"soon"]
    harness.advance(1)
    assert harness.bodies("T") == [b"past", b"soon", b"later"]


def test_a_message_due_later_than_its_level_allows_leaves_at_once(harness: BrokerHarness, store: Path) -> None:
    write(harness, scheduled(2, b"one"))
    harness.broker.parts.store.close()
    leave(harness, store, {})
    retag(store, 2, [START_MS + 10_001])
    harness.clock.advance(5000)
    harness.start()
    harness.settle()
    assert harness.bodies("T") == [b"one"]


class TestDeliveriesAfterTheStoredOffsets:
    def test_a_delivered_copy_settles_its_message(self, harness: BrokerHarness, store: Path) -> None:
        one, two = scheduled(1, b"one"), scheduled(1, b"two")
        write(harness, one, two)
        harness.clock.advance(1000)
        write(harness, copied(one))
        leave(harness, store, {})
        assert [pending.unique_key for pending in pending_in(store)] == ["two"]
        harness.start()
        harness.advance(5000)
        assert harness.bodies("T") == [b"one", b"two"]

    def test_a_copy_settles_only_one_message(self, harness: BrokerHarness, store: Path) -> None:
        write(harness, scheduled(1, b"same"), scheduled(1, b"same"))
        harness.clock.advance(1000)
        write(harness, copied(scheduled(1, b"same")))
        leave(harness, store, {})
        harness.start()
        harness.advance(5000)
        assert harness.bodies("T") == [b"same", b"same"]

    def test_an_early_copy_of_another_table_settles_its_message(self, harness: BrokerHarness, store: Path) -> None:
        write(harness, scheduled(2, b"one"))
        harness.clock.advance(3000)
        write(harness, copied(scheduled(2, b"one")))
        leave(harness, store, {})
        harness.start()
        harness.advance(5000)
        assert harness.bodies("T") == [b"one"]

    @pytest.mark.parametrize("change", ["key", "body", "born", "queue", "tries"])
    def test_a_different_message_is_no_copy(self, harness: BrokerHarness, store: Path, change: str) -> None:
        write(harness, scheduled(2, b"one"))
        harness.clock.advance(5000)
        other = copied(scheduled(2, b"one"))
        match change:
            case "key":
                other.properties[props.UNIQ_KEY] = "another"
            case "body":
                other.body = b"another"
            case "born":
                other.born_ms = Millis(START_MS - 1)
            case "queue":
                other.queue_id = 1
            case "tries":
                other.reconsume_times = 3
        write(harness, other)
        leave(harness, store, {})
        harness.start()
        harness.advance(5000)
        assert harness.bodies("T").count(b"one") == (1 if change in ("body", "queue") else 2)


def test_a_level_message_with_a_cancel_key_is_delivered(harness: BrokerHarness, store: Path) -> None:
    """Apache's broker ignores the cancel key of a message with a level."""
    message = scheduled(2, b"one")
    message.properties[props.TIMER_DEL_UNIQKEY] = "T+other"
    write(harness, message)
    leave(harness, store, {})
    harness.start()
    harness.advance(6000)
    assert harness.bodies("T") == [b"one"]


def test_messages_survive_a_start_that_dies_at_any_failpoint(
    harness: BrokerHarness, store: Path, tmp_path: Path
) -> None:
    write(harness, *(scheduled(level, b"%d" % (10 * level + i)) for i in range(2) for level in LEVEL_MS))
    leave(harness, store, {2: 1})
    ends: list[str] = []
    for die_at in itertools.count():
        folder = tmp_path / str(die_at)
        shutil.copytree(store, folder)
        with Stops(die_at=die_at) as stops:
            try:
                BrokerHarness(folder).crash()
                break
            except Died:
                ends.append(stops.passed[-1])
        with BrokerHarness(folder) as again:
            again.advance(20_000)
            assert sorted(again.bodies("T")) == [b"10", b"11", b"21", b"30", b"31"], ends[-1]
            invariants.check(again.broker)
    assert "recover.staged" in ends


def test_a_message_that_cannot_be_delivered_is_a_dead_letter(harness: BrokerHarness, store: Path) -> None:
    full = scheduled(1, b"full")
    full.properties["much"] = "x" * (props.PROPERTIES_BYTES_MAX - len(props.encode(full.properties)) - 6)
    write(harness, full)
    leave(harness, store)
    harness.start()
    harness.advance(1000)
    (record,) = harness.read_queue("rmq_sys_wheelmq_dead_letter")
    assert record.message.properties[props.WMQ_ORIGIN] == origin_text(level_origin(1, 0))


def test_a_waiting_level_message_is_listed(harness: BrokerHarness, store: Path) -> None:
    write(harness, scheduled(1, b"out"), scheduled(1, b"in"), scheduled(3, b"far"))
    leave(harness, store, {1: 1})
    found = [(line.unique_key, line.state, line.level, line.queue_offset, line.due_ms) for line in pending_in(store)]
    assert found == [("in", State.LEVEL, 1, 1, START_MS + 1000), ("far", State.LEVEL, 3, 0, START_MS + 10_000)]
    harness.start()
    harness.settle()
    lines = bytes(harness.ask_code(RequestCode.WMQ_LIST_TIMERS).body).splitlines()
    assert [(json.loads(line)["unique_key"], json.loads(line)["state"]) for line in lines] == [
        ("in", "armed"),
        ("far", "level"),
    ]
    harness.crash()
    assert [(line.unique_key, line.state) for line in pending_in(store)] == [("in", "level"), ("far", "level")]


class TestOurLevelMessages:
    def test_a_level_message_is_stored_and_released_as_by_apache(self, harness: BrokerHarness) -> None:
        send(harness, 2, b"one", TAGS="t", KEYS="k")
        (parked,) = harness.read_queue(SCHEDULE_TOPIC, 1)
        assert parked.message.properties == {
            props.UNIQ_KEY: "one",
            props.DELAY: "2",
            "TAGS": "t",
            "KEYS": "k",
            **{name: parked.message.properties[name] for name in (props.MSG_REGION, props.TRACE_ON, props.CLUSTER)},
            props.REAL_TOPIC: "T",
            props.REAL_QID: "0",
        }
        assert unit_dues(harness, 2) == [START_MS + 5000]
        harness.advance(4999)
        assert harness.bodies("T") == []
        harness.advance(1)
        (left,) = harness.read_queue("T")
        origin = {props.WMQ_ORIGIN: origin_text(level_origin(2, 0))}
        assert left.message.properties == {**parked.message.properties, **origin}
        assert list(left.message.properties)[-1] == props.WMQ_ORIGIN
        assert harness.pull("T", subscription="t").records and not harness.pull("T", subscription="u").records
        invariants.check(harness.broker)

    @pytest.mark.parametrize("with_pipeline", [False, True], ids=["alone", "pipeline"])
    @pytest.mark.parametrize("ends", [None, "clean", "killed"])
    def test_each_level_message_leaves_at_its_due_millisecond(
        self, harness: BrokerHarness, with_pipeline: bool, ends: str | None
    ) -> None:
        harness.restart(message_delay_level="1s 3s 7s 40s", timer_lead_ms=2000)
        model, due = PipelineModel(harness, queue_parts=3), dict[bytes, int]()
        work = model.work if with_pipeline else None
        for i in range(24):
            level = 1 + i % 4
            send(harness, level, b"%d" % i)
            due[b"%d" % i] = harness.now_ms + (1000, 3000, 7000, 40_000)[level - 1]
            harness.advance(37 * i, work)
        if ends is not None:
            harness.restart(clean=ends == "clean")
        while harness.now_ms < max(due.values()):
            came = set(harness.bodies("T"))
            assert came == {body for body, due_ms in due.items() if due_ms <= harness.now_ms}
            harness.advance(50, work)
        assert Counter(harness.bodies("T")) == Counter(list(due))
        invariants.check(harness.broker)
        by = harness.broker.parts.timer.pending.armed_by
        assert (by["pipeline"] > 0) == with_pipeline

    def test_a_turn_stages_messages_due_within_the_lead(self, harness: BrokerHarness) -> None:
        model = PipelineModel(harness)
        for i in range(5):
            send(harness, 3, b"near%d" % i)
            send(harness, 5, b"far%d" % i)
        harness.advance(7000, model.work)
        assert harness.broker.parts.timer.pending.armed.count == 5
        assert harness.broker.parts.timer.pending.armed_by["pipeline"] == 5
        (line, *_) = harness.broker.parts.timer.pending.levels
        assert line.staged_to == 5
        harness.advance(53_000, model.work)
        assert len(harness.bodies("T")) == 10
        by = harness.broker.parts.timer.pending.armed_by
        assert (by["pipeline"], by["pipeline_long"], by["near_lane"]) == (10, 10, 0)

    def test_a_clock_set_back_releases_messages_due_beyond_their_delay(self, harness: BrokerHarness) -> None:
        """Apache's rule: a message due later than its level's delay leaves at once. Others keep their due time."""
        send(harness, 2, b"before")
        harness.clock.step(-3_600_000)
        send(harness, 2, b"behind")
        harness.settle()
        assert harness.bodies("T") == [b"before"]
        harness.advance(4999)
        assert harness.bodies("T") == [b"before"]
        harness.advance(1)
        assert harness.bodies("T") == [b"before", b"behind"]

    @pytest.mark.parametrize("under_way", [False, True])
    def test_a_clock_set_back_releases_staged_level_messages(self, harness: BrokerHarness, under_way: bool) -> None:
        """Level messages leave at once, armed or in a running turn. Timers and blocks wait for their due time."""
        harness.restart(timer_lead_ms=30_000)
        model = PipelineModel(harness)
        for i in range(3):
            send(harness, 2, b"%d" % i)
            send(harness, 1, b"near %d" % i)
        for body, properties in ((b"timer", {"TIMER_DELAY_MS": "5000"}), (b"block", {"delayInSeconds": "5"})):
            assert harness.send("T", body, properties=properties).code == 0
        harness.advance(500)
        if under_way:
            model.open()
            plan = model.plan()
            assert plan is not None and plan.queues
            winners = [model.hand_over(plan, task) for task in model.read(plan)]
        else:
            harness.advance(300, model.work, 100)
            assert harness.broker.parts.timer.pending.armed_by["pipeline"] >= 3
        assert harness.bodies("T") == []
        harness.clock.step(-3_600_000)
        if under_way:
            model.commit(plan, winners)
        harness.settle()
        assert harness.bodies("T") == [*(b"near %d" % i for i in range(3)), *(b"%d" % i for i in range(3))]
        harness.clock.step(3_600_000)
        harness.advance(6000, model.work)
        assert sorted(harness.bodies("T")[6:]) == [b"block", b"timer"]
        invariants.check(harness.broker)

    def test_a_clock_set_back_by_less_than_the_delay_keeps_due_times(self, harness: BrokerHarness) -> None:
        """The first message of the level is due within its delay, so each keeps its due time, as with Apache."""
        model = PipelineModel(harness)
        send(harness, 2, b"first")
        harness.advance(2000, model.work, 500)
        send(harness, 2, b"second")
        harness.advance(1000, model.work, 500)
        assert harness.broker.parts.timer.pending.armed.count == 2
        harness.clock.step(-1500)
        harness.settle()
        harness.advance(3499, model.work)
        assert harness.bodies("T") == []
        harness.advance(1, model.work)
        assert harness.bodies("T") == [b"first"]
        harness.advance(2000, model.work)
        assert harness.bodies("T") == [b"first", b"second"]

    @pytest.mark.parametrize("restarts", [False, True])
    def test_a_message_due_before_its_predecessor_leaves_in_time(self, harness: BrokerHarness, restarts: bool) -> None:
        send(harness, 2, b"first")
        harness.clock.step(-2000)
        send(harness, 1, b"other level")
        send(harness, 2, b"second")
        if restarts:
            harness.restart(clean=False)
        model = PipelineModel(harness)
        harness.advance(4999, model.work)
        assert harness.bodies("T") == [b"first", b"other level"]  # the first was due too late
        harness.advance(1, model.work)
        assert harness.bodies("T")[2:] == [b"second"]

    def test_a_shorter_level_table_releases_messages_beyond_it(self, harness: BrokerHarness) -> None:
        for level in (1, 2, 3, 4):
            send(harness, level, b"%d" % level)
        harness.restart(message_delay_level="1s 6s")
        harness.settle()
        assert harness.bodies("T") == [b"3", b"4"]  # due later than the last level allows
        harness.advance(5000)
        assert harness.bodies("T")[2:] == [b"1", b"2"]
        send(harness, 3, b"capped")
        assert unit_dues(harness, 2)[-1] == harness.now_ms + 6000
        invariants.check(harness.broker)

    def test_rebuilt_units_keep_their_due_times(self, harness: BrokerHarness, store: Path) -> None:
        send(harness, 2, b"one")
        harness.clock.step(-1500)
        send(harness, 2, b"two")
        dues = unit_dues(harness, 2)
        assert dues == [START_MS + 5000, START_MS + 3500]
        harness.stop()
        shutil.rmtree(store / "consumequeue")
        harness.start()
        assert unit_dues(harness, 2) == dues

    def test_a_level_message_is_cancelled(self, harness: BrokerHarness) -> None:
        send(harness, 2, b"one")
        send(harness, 2, b"two")
        properties = {props.TIMER_DEL_UNIQKEY: "T+one", props.UNIQ_KEY: "C"}
        answer = harness.send("T", delay_ms=5000, properties=properties)
        assert answer.ext["cancelResult"] == "cancelled"
        harness.restart(clean=False)
        harness.advance(6000)
        assert harness.bodies("T") == [b"two"]
        invariants.check(harness.broker)

    def test_a_search_by_key_returns_the_outcome_of_a_level_message(self, harness: BrokerHarness) -> None:
        def end(key: str) -> list[tuple[str, str | None, int]]:
            body = bytes(harness.ask_code(RequestCode.WMQ_FIND_TIMERS, topic="T", key=key).body)
            fates = [json.loads(line) for line in body.splitlines()]
            return [(fate["message"]["state"], fate["end"], fate["message"]["due_ms"]) for fate in fates]

        send(harness, 3, b"one")
        send(harness, 3, b"two")
        harness.send("T", delay_ms=5000, properties={props.TIMER_DEL_UNIQKEY: "T+two", props.UNIQ_KEY: "C"})
        harness.advance(3000)
        assert end("one") == [("level", None, START_MS + 10_000)]
        harness.advance(20_000)
        assert end("one") == [("level", "released", START_MS + 10_000)]
        assert end("two") == [("level", "cancelled", START_MS + 10_000)]

    def test_the_log_is_kept_while_a_level_message_waits(self, harness: BrokerHarness) -> None:
        harness.send("U", bytes(100))
        send(harness, 4, b"one")
        (record,) = harness.read_queue(SCHEDULE_TOPIC, 3)
        assert harness.broker.parts.generations.needed_from() == record.position
        harness.advance(30_000)
        assert harness.broker.parts.generations.needed_from() == harness.broker.parts.store.log.end

    def test_a_full_disk_delays_a_due_level_message(
        self, harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        send(harness, 1, b"one")
        log = harness.broker.parts.store.log

        def full(size: int) -> None:
            raise DiskFull(errno.ENOSPC, "full")

        with monkeypatch.context() as patched:
            patched.setattr(log.files, "has_room", lambda position: False)
            patched.setattr(log, "reserve", full)
            harness.advance(60_000)
            assert harness.bodies("T") == []
        harness.advance(200)
        assert harness.bodies("T") == [b"one"]


class TestDelayOffsets:
    def test_the_file_has_the_offsets_of_released_and_synced_messages(
        self, harness: BrokerHarness, store: Path
    ) -> None:
        for level in (1, 1, 2):
            send(harness, level, b"x")
        harness.advance(4500)
        assert not (store / "config" / "delayOffset.json").exists()
        harness.advance(6200)
        assert offsets(store) == {"1": 2, "2": 1}
        raw = (store / "config" / "delayOffset.json").read_bytes()
        harness.advance(60_000)
        assert (store / "config" / "delayOffset.json").read_bytes() == raw  # nothing has changed
        send(harness, 1, b"y")
        harness.restart()
        assert offsets(store) == {"1": 2, "2": 1}  # it is not released yet
        harness.advance(1000)
        harness.stop()
        assert offsets(store) == {"1": 3, "2": 1}
        harness.start()

    def test_requests_return_the_delay_offsets(self, harness: BrokerHarness) -> None:
        for level in (1, 1, 4):
            send(harness, level, b"x")
        harness.advance(1000)
        body = json.loads(bytes(harness.ask_code(RequestCode.GET_ALL_DELAY_OFFSET).body))
        assert body["offsetTable"] == {"1": 2, "4": 0}
        info = json.loads(bytes(harness.ask_code(RequestCode.GET_BROKER_RUNTIME_INFO).body))["table"]
        assert (info["scheduleMessageOffset_1"], info["scheduleMessageOffset_4"]) == ("2,2", "0,1")

    def test_a_level_continues_after_its_cancelled_messages_expire(self, harness: BrokerHarness) -> None:
        """Its queue then begins after the staged offset."""
        for i in range(3):
            send(harness, 4, b"%d" % i)
            properties = {props.TIMER_DEL_UNIQKEY: f"T+{i}", props.UNIQ_KEY: f"C{i}"}
            assert harness.send("T", delay_ms=5000, properties=properties).ext["cancelResult"] == "cancelled"
        for _ in range(300):
            harness.submit(harness.send_command("U", bytes(4000)))
        harness.tick()
        harness.broker.parts.store.flush()
        harness.broker.parts.expiry.drop_before(LogPosition(1 << 20))
        send(harness, 4, b"there")
        harness.advance(29_999)
        assert harness.bodies("T") == []
        harness.advance(1)
        assert harness.bodies("T") == [b"there"]

    @pytest.mark.parametrize(("said", "left"), [(2, [b"2", b"3"]), (99, []), (-5, [b"0", b"1", b"2", b"3"])])
    def test_the_broker_obeys_the_offsets_of_apache(
        self, harness: BrokerHarness, store: Path, said: int, left: list[bytes]
    ) -> None:
        """An offset above the end of the queue counts as the end."""
        for i in range(4):
            send(harness, 1, b"%d" % i)
        harness.stop()
        (store / "config" / "delayOffset.json").write_text(json.dumps({"offsetTable": {"1": said}}))
        harness.start()
        harness.advance(1000)
        assert harness.bodies("T") == left
        send(harness, 1, b"new")
        harness.restart(clean=False)
        harness.advance(1000)
        assert harness.bodies("T") == [*left, b"new"]
        invariants.check(harness.broker)


def test_a_level_origin_encodes_kind_level_and_index() -> None:
    assert origin_text(level_origin(2, 7)) == "1000020000000007"
    assert level_origin(2, 7) >> 60 == KIND_LEVEL
