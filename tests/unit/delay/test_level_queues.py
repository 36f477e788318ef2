"""What waits in the level queues of a store that Apache RocketMQ wrote, and comes out here."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path

import pytest

from wheelmq.delay.level_queues import DelayOffsets
from wheelmq.delay.offline import pending_in
from wheelmq.delay.pending import State
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import SYS_COMPRESSED, Host, Message
from wheelmq.formats.disk.origin import KIND_LEVEL, level_origin, origin_text
from wheelmq.formats.disk.queue_unit import QUEUE_UNIT
from wheelmq.formats.names import SCHEDULE_TOPIC
from wheelmq.formats.units import Millis
from wheelmq.formats.wire import bodies
from wheelmq.testing import invariants
from wheelmq.testing.clock import START_MS
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel
from wheelmq.testing.stops import Died, Stops

LEVEL_MS = {1: 1000, 2: 5000, 3: 10_000}
BORN = Host(b"\x20\x01\x0d\xb8" + bytes(11) + b"\7", 4711)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def scheduled(level: int, body: bytes, **properties: str) -> Message:
    """A message with a level, as Apache stores it."""
    real = {props.REAL_TOPIC: "T", props.REAL_QID: "0", props.UNIQ_KEY: body.decode(), props.DELAY: str(level)}
    message = Message(SCHEDULE_TOPIC, level - 1, body, {**properties, **real})
    message.sys_flag, message.born_host, message.reconsume_times = SYS_COMPRESSED, BORN, 2
    message.born_ms = Millis(START_MS)
    return message


def copied(message: Message) -> Message:
    """What Apache's delivery of `message` stores."""
    return message.again("T", 0, dict(message.properties))


def write(harness: BrokerHarness, *messages: Message) -> None:
    for message in messages:
        harness.broker.store.append(message)
    harness.broker.store.dispatch()


def leave(harness: BrokerHarness, store: Path, offsets: dict[int, int] | None = None) -> None:
    """Apache is gone; what it had delivered is in delayOffset.json."""
    harness.broker.topics.create_for_group("T", 1)
    harness.crash()
    if offsets is not None:
        (store / "config" / "delayOffset.json").write_bytes(bodies.write(DelayOffsets(offset_table=offsets)))


def offsets(store: Path) -> dict[str, int]:
    found: dict[str, int] = json.loads((store / "config" / "delayOffset.json").read_text())["offsetTable"]
    return found


@pytest.mark.parametrize("with_pipeline", [False, True], ids=["alone", "pipeline"])
def test_it_comes_at_its_time_as_it_was_sent(harness: BrokerHarness, store: Path, with_pipeline: bool) -> None:
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
    assert offsets(store) == {"1": 1, "2": 1, "3": 1}
    invariants.check(harness.broker)


def test_what_is_out_stays_out(harness: BrokerHarness, store: Path) -> None:
    write(harness, *(scheduled(1, b"%d" % i) for i in range(4)))
    leave(harness, store, {1: 3})
    harness.start()
    harness.advance(60_000)
    assert harness.bodies("T") == [b"3"]
    harness.restart(clean=False)
    harness.advance(60_000)
    assert harness.bodies("T") == [b"3"]
    assert offsets(store) == {"1": 4}


def test_what_fell_due_meanwhile_leaves_at_once(harness: BrokerHarness, store: Path) -> None:
    write(harness, scheduled(2, b"late"))
    leave(harness, store, {})
    harness.clock.advance(3_600_000)
    harness.start()
    harness.settle()
    assert harness.bodies("T") == [b"late"]


def test_the_queue_unit_says_when(harness: BrokerHarness, store: Path) -> None:
    """Another level table than ours was in force."""
    write(harness, scheduled(3, b"soon"), scheduled(3, b"nonsense"))
    harness.broker.store.close()
    leave(harness, store, {})
    [path] = (store / "consumequeue" / SCHEDULE_TOPIC / "2").iterdir()
    with path.open("r+b") as file:
        for i, tag_code in enumerate((START_MS + 700, 5)):
            file.seek(i * QUEUE_UNIT.size + 12)
            file.write(tag_code.to_bytes(8, "big"))
    harness.clock.advance(5000)  # so that the units are older than what a start writes again
    (store / "checkpoint").write_bytes(((START_MS + 4000).to_bytes(8, "big") * 2).ljust(4096, b"\0"))
    harness.start()
    harness.settle()
    assert harness.bodies("T") == [b"soon"]
    harness.advance(LEVEL_MS[3] - 5000)
    assert harness.bodies("T") == [b"soon", b"nonsense"]


class TestWhatWasDeliveredBehindTheOffsets:
    def test_its_copy_tells(self, harness: BrokerHarness, store: Path) -> None:
        one, two = scheduled(1, b"one"), scheduled(1, b"two")
        write(harness, one, two)
        harness.clock.advance(1000)
        write(harness, copied(one))
        leave(harness, store, {})
        assert [pending.unique_key for pending in pending_in(store)] == ["two"]
        harness.start()
        harness.advance(5000)
        assert harness.bodies("T") == [b"one", b"two"]

    def test_a_copy_speaks_for_one_message(self, harness: BrokerHarness, store: Path) -> None:
        write(harness, scheduled(1, b"same"), scheduled(1, b"same"))
        harness.clock.advance(1000)
        write(harness, copied(scheduled(1, b"same")))
        leave(harness, store, {})
        harness.start()
        harness.advance(5000)
        assert harness.bodies("T") == [b"same", b"same"]

    def test_a_copy_that_came_sooner_by_another_table(self, harness: BrokerHarness, store: Path) -> None:
        write(harness, scheduled(2, b"one"))
        harness.clock.advance(3000)
        write(harness, copied(scheduled(2, b"one")))
        leave(harness, store, {})
        harness.start()
        harness.advance(5000)
        assert harness.bodies("T") == [b"one"]

    @pytest.mark.parametrize("change", ["key", "body", "born", "queue", "tries"])
    def test_what_is_no_copy(self, harness: BrokerHarness, store: Path, change: str) -> None:
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


def test_one_that_looks_like_a_cancel_is_delivered(harness: BrokerHarness, store: Path) -> None:
    """Apache's broker takes no notice of it in a message with a level."""
    message = scheduled(2, b"one")
    message.properties[props.TIMER_DEL_UNIQKEY] = "T+other"
    write(harness, message)
    leave(harness, store, {})
    harness.start()
    harness.advance(6000)
    assert harness.bodies("T") == [b"one"]


def test_a_start_that_ends_anywhere(harness: BrokerHarness, store: Path, tmp_path: Path) -> None:
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
    assert ends.count("levels.parked") == 5 and {"levels.flushed", "levels.saved"} <= set(ends)


def test_a_message_that_cannot_be_parked_is_a_dead_letter(harness: BrokerHarness, store: Path) -> None:
    full = scheduled(1, b"full")
    full.properties["much"] = "x" * (props.PROPERTIES_BYTES_MAX - len(props.encode(full.properties)) - 6)
    write(harness, full)
    leave(harness, store)
    harness.start()
    (record,) = harness.read_queue("rmq_sys_wheelmq_dead_letter")
    assert record.message.properties[props.WMQ_ORIGIN] == origin_text(level_origin(1, 0))


def test_it_is_listed_while_it_waits(harness: BrokerHarness, store: Path) -> None:
    write(harness, scheduled(1, b"out"), scheduled(1, b"in"))
    leave(harness, store, {1: 1})
    (line,) = pending_in(store)
    assert (line.unique_key, line.state, line.queue_offset) == ("in", State.LEVEL, 1)
    assert (line.topic, line.due_ms) == ("T", START_MS + 1000)
    harness.start()
    harness.crash()
    (line,) = pending_in(store)
    assert (line.unique_key, line.state, line.due_ms) == ("in", State.PARKED, START_MS + 1000)


def test_a_store_of_ours_gets_no_offsets(harness: BrokerHarness, store: Path) -> None:
    harness.send("T", properties={props.DELAY: "1"})
    harness.restart()
    assert not (store / "config" / "delayOffset.json").exists()


def test_origins_of_levels() -> None:
    assert origin_text(level_origin(2, 7)) == "1000020000000007"
    assert level_origin(2, 7) >> 60 == KIND_LEVEL
