"""Messages that Apache RocketMQ left in its level queues, and their release by our broker."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path

import pytest

from tests.unit.delay.delay_offsets import offsets
from wheelmq.delay.levels.offsets import DelayOffsetsBody
from wheelmq.delay.offline import pending_in
from wheelmq.delay.pending_message import State
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import SYS_COMPRESSED, Host, Message
from wheelmq.formats.disk.origin import level_origin, origin_text
from wheelmq.formats.disk.queue_unit import QUEUE_UNIT
from wheelmq.formats.names import SCHEDULE_TOPIC
from wheelmq.formats.units import Millis
from wheelmq.formats.wire import bodies
from wheelmq.formats.wire.codes import RequestCode
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
