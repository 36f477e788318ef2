"""Messages in the level queues: their due times, their release, and the offsets in delayOffset.json."""

from __future__ import annotations

import errno
import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from tests.unit.delay.delay_offsets import offsets
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.origin import KIND_LEVEL, level_origin, origin_text
from wheelmq.formats.names import SCHEDULE_TOPIC
from wheelmq.formats.units import LogPosition
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.system.disk import DiskFull
from wheelmq.testing import invariants
from wheelmq.testing.clock import START_MS
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel


def unit_dues(harness: BrokerHarness, level: int) -> list[int]:
    """Return the due times in the units of a level's queue."""
    queue = harness.broker.parts.store.queues.find(SCHEDULE_TOPIC, level - 1)
    assert queue is not None
    return [int(tag) for units in queue.chunks() for tag in units["tag_code"]]


def send(harness: BrokerHarness, level: int, body: bytes, **properties: str) -> None:
    sent = {props.UNIQ_KEY: body.decode(), props.DELAY: str(level), **properties}
    assert harness.send("T", body, properties=sent).code == 0


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
            patched.setattr(log.files, "room_end", lambda position: position)
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
        harness.broker.parts.file_upkeep.expiry.drop_before(LogPosition(1 << 20))
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
