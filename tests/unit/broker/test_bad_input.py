"""Invalid requests and files, handled as docs/operations/bad-input.md describes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.unit.broker.chosen import chosen
from wheelmq.config.errors import ConfigError
from wheelmq.delay.blocks.park import BOTH
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.block import BLOCK_UNIT
from wheelmq.formats.disk.queue_unit import QUEUE_UNIT
from wheelmq.formats.disk.timer import TIMER_TOPIC, TIMER_UNIT
from wheelmq.formats.names import SCHEDULE_TOPIC
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.testing import invariants
from wheelmq.testing.clock import START_MS
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel

OK, ILLEGAL, ERROR = ResponseCode.SUCCESS, ResponseCode.MESSAGE_ILLEGAL, ResponseCode.SYSTEM_ERROR
SEC, MS, AT = props.TIMER_DELAY_SEC, props.TIMER_DELAY_MS, props.TIMER_DELIVER_MS
LEVEL, BLOCK = props.DELAY, props.DELAY_IN_SECONDS


@pytest.mark.parametrize(
    ("properties", "code", "remark"),
    [
        ({AT: str(START_MS - 1)}, OK, None),
        ({AT: "0"}, OK, None),
        ({AT: "-1"}, OK, None),
        ({SEC: "-1"}, OK, None),
        ({MS: "-5"}, OK, None),
        ({LEVEL: "-1"}, OK, None),
        ({BLOCK: "0"}, OK, None),
        ({BLOCK: "-1"}, ILLEGAL, "delayInSeconds is -1: it must be 0 or more"),
        ({SEC: "soon"}, ILLEGAL, "TIMER_DELAY_SEC is 'soon', not a 64-bit number"),
        ({MS: "1.5"}, ILLEGAL, "TIMER_DELAY_MS is '1.5', not a 64-bit number"),
        ({AT: "9223372036854775808"}, ILLEGAL, "not a 64-bit number"),
        ({LEVEL: "x"}, ERROR, "DELAY is 'x', not a 32-bit number"),
        ({BLOCK: "2147483648"}, ILLEGAL, "delayInSeconds is '2147483648', not a 32-bit number"),
        ({SEC: "259201"}, ILLEGAL, "the delay must not exceed 259200000ms"),
        ({AT: str(START_MS + 259_200_001)}, ILLEGAL, "the delay must not exceed 259200000ms"),
        ({BLOCK: "31622401"}, ILLEGAL, "the delay must not exceed 31622400s"),
        ({LEVEL: "1", BLOCK: "1"}, ILLEGAL, BOTH),
        ({SEC: "1", BLOCK: "1"}, ILLEGAL, "delayInSeconds and TIMER_DELAY_SEC should not be specified"),
    ],
)
def test_an_invalid_delay_is_ignored_or_rejected(
    harness: BrokerHarness, properties: dict[str, str], code: ResponseCode, remark: str | None
) -> None:
    """The broker delivers the message at once, or rejects the send and stores nothing."""
    answer = harness.send("T", properties=properties)
    assert answer.code == code
    assert remark is None or remark in (answer.remark or "")
    assert harness.bodies("T") == ([b"body"] if code == OK else [])
    assert harness.broker.parts.timer.pending.counts.by_queue.sum() == 0 and len(harness.broker.parts.blocks) == 0


@pytest.mark.parametrize("text", ["", "1s 5", "1 s", "-1s", "1s,5s", "1s 24856d"])
def test_an_invalid_level_table_is_rejected(text: str) -> None:
    with pytest.raises(ConfigError, match="--set message_delay_level: messageDelayLevel"):
        chosen(message_delay_level=text)


def test_a_block_length_below_60_seconds_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"block_length_seconds is 59: .* set 60 or more"):
        chosen(block_length_seconds="59")
    assert chosen(block_length_seconds="60").blocks.length_seconds == 60


WAYS = ({SEC: "25"}, {LEVEL: "3"}, {BLOCK: "25"})
"""The properties of a timer, a level and a block."""


def fill(harness: BrokerHarness, count: int = 3) -> list[bytes]:
    """Send `count` messages of each kind, and index the timers. Returns the bodies."""
    bodies = []
    for i in range(count):
        for way in WAYS:
            bodies.append(b"%d of %s" % (i, next(iter(way)).encode()))
            assert harness.send("T", bodies[-1], properties=way).code == OK
    harness.advance(6000, PipelineModel(harness).work, 500)
    assert harness.broker.parts.timer.indexed_to == count and harness.bodies("T") == []
    return bodies


def all_leave_once(harness: BrokerHarness, bodies: list[bytes]) -> None:
    harness.advance(40_000, PipelineModel(harness).work, 500)
    assert sorted(harness.bodies("T")) == sorted(bodies)
    invariants.check(harness.broker)


@pytest.mark.parametrize("change", [-32, -1, 1, 32])
def test_a_start_rejects_a_wheel_file_of_the_wrong_length(harness: BrokerHarness, tmp_path: Path, change: int) -> None:
    bodies = fill(harness)
    harness.stop()
    path = tmp_path / "store" / "timerwheel"
    raw = path.read_bytes()
    path.write_bytes(raw[:change] if change < 0 else raw + bytes(change))
    with pytest.raises(OSError, match=f"has {len(raw) + change} bytes where {len(raw)} are configured.*remove it"):
        harness.start()
    path.unlink()
    harness.start()
    all_leave_once(harness, bodies)


def test_a_start_rejects_queues_with_extension_files(harness: BrokerHarness, tmp_path: Path) -> None:
    """Apache's broker writes extension files with enableConsumeQueueExt.

    A unit then holds the address of its extension, which would be read as a due time in the past.
    """
    bodies = fill(harness)
    harness.stop()
    store = tmp_path / "store"
    extension = store / "consumequeue_ext" / SCHEDULE_TOPIC / "2"
    extension.mkdir(parents=True)
    (extension / f"{0:020d}").write_bytes(bytes(48))
    [queue] = (store / "consumequeue" / SCHEDULE_TOPIC / "2").iterdir()
    raw = bytearray(queue.read_bytes())
    for i in range(3):
        raw[20 * i + 12 : 20 * i + 20] = (-(1 << 63) + 48 * i).to_bytes(8, "big", signed=True)
    queue.write_bytes(raw)
    with pytest.raises(
        OSError, match=r"enableConsumeQueueExt was on.*Remove it and .*consumequeue: the next start writes"
    ):
        harness.start()
    shutil.rmtree(store / "consumequeue_ext")
    shutil.rmtree(store / "consumequeue")
    harness.start()
    assert harness.bodies("T") == []
    all_leave_once(harness, bodies)


@pytest.mark.parametrize("left", [0, 1, 7, 8, 13, 19])
@pytest.mark.parametrize("where", ["timer log", "timer queue", "level queue", "block queue"])
def test_a_start_repairs_a_torn_unit(harness: BrokerHarness, tmp_path: Path, where: str, left: int) -> None:
    """Only the first bytes of the last unit have reached the disk."""
    bodies = fill(harness)
    harness.crash()
    store = tmp_path / "store"
    path, layout, units = {
        "timer log": (store / "timerlog", TIMER_UNIT, 3),
        "timer queue": (store / "consumequeue" / TIMER_TOPIC / "0", QUEUE_UNIT, 3),
        "level queue": (store / "consumequeue" / SCHEDULE_TOPIC / "2", QUEUE_UNIT, 3),
        "block queue": (next((store / "scheduledtempdata").iterdir()) / "queue", BLOCK_UNIT, 3),
    }[where]
    path /= f"{0:020d}"
    raw = bytearray(path.read_bytes())
    at, stop = (units - 1) * layout.size + left, units * layout.size
    assert any(raw[stop - layout.size : stop]) and not any(raw[stop : stop + layout.size])
    raw[at:stop] = bytes(stop - at)
    path.write_bytes(raw)
    harness.start()
    all_leave_once(harness, bodies)


@pytest.mark.parametrize("step", ["planned", "read", "handed over", "committed"])
@pytest.mark.parametrize("loses_power", [False, True])
def test_a_crash_during_a_turn_loses_and_repeats_no_message(
    harness: BrokerHarness, step: str, loses_power: bool
) -> None:
    """Another lease repeats the turn. Requests of the old lease get STALE and change nothing."""
    bodies = []
    for i in range(4):
        for way in WAYS:
            bodies.append(b"%d of %s" % (i, next(iter(way)).encode()))
            harness.send("T", bodies[-1], properties=way)
    harness.advance(6000)
    model = PipelineModel(harness)
    model.open()
    plan = model.plan()
    assert plan is not None
    tasks = model.read(plan) if step != "planned" else []
    winners = [model.hand_over(plan, task) for task in tasks] if step in ("handed over", "committed") else []
    if step == "committed":
        model.commit(plan, winners)
    if loses_power:
        harness.cut_power(keep=0.5)
    else:
        harness.crash()
    harness.start()
    assert (harness.ask_code(RequestCode.WMQ_PIPELINE_RENEW, epoch=model.epoch).remark or "").startswith("STALE")
    assert harness.bodies("T") == []
    waiting = int(harness.broker.parts.timer.pending.counts.by_queue.sum())
    assert waiting == len(bodies) or loses_power
    harness.advance(40_000, PipelineModel(harness).work, 500)
    delivered = harness.bodies("T")
    assert len(delivered) == len(set(delivered)) == waiting and set(delivered) <= set(bodies)
    invariants.check(harness.broker)
