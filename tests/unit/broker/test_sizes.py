"""Sizes: the broker delivers what it accepts, and rejects a message that no log file can hold later."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.unit.broker.test_put_statuses import batch
from tests.unit.broker.test_send import inner
from wheelmq.broker.app import BrokerApp
from wheelmq.broker.settings import BrokerSettings
from wheelmq.broker.start_warnings import body_size_warning
from wheelmq.delay.blocks.park import park_in_block
from wheelmq.delay.park import ParkSettings, park
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import BLANK_BYTES, Message, record_bytes
from wheelmq.formats.names import DEAD_LETTER_TOPIC
from wheelmq.formats.units import Millis
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.testing import invariants
from wheelmq.testing.harness import SMALL, BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel

FILE_BYTES = 1 << 14
HALF = {props.TRAN_MSG: "true", props.PRODUCER_GROUP: "g"}


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[BrokerHarness]:
    with BrokerHarness(tmp_path / "store", log_file_bytes=FILE_BYTES, block_log_file_bytes=2 * FILE_BYTES) as running:
        yield running


def longest_body(harness: BrokerHarness, topic: str, properties: dict[str, str], **letters: Any) -> int:
    """Find the length of the longest accepted body. The broker rejects one byte more with the reason."""
    low, high = 1, 2 * FILE_BYTES
    while high - low > 1:
        middle = (low + high) // 2
        answer = harness.ask(harness.send_command(topic, bytes(middle), properties=properties, **letters))
        if answer.code:
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL, answer.remark
            assert f"log_file_bytes (mappedFileSizeCommitLog) is {FILE_BYTES}" in (answer.remark or "")
            assert f"{FILE_BYTES - BLANK_BYTES} bytes" in (answer.remark or "")
            high = middle
        else:
            low = middle
    return low


@pytest.mark.parametrize("topic", ["T", "t" * 127])
@pytest.mark.parametrize(
    ("asked", "room"),
    [
        ({}, 0),
        ({props.TIMER_DELAY_MS: "700"}, 400),
        ({props.TIMER_DELAY_SEC: "65"}, 400),  # the timer rolls
        ({props.DELAY: "1"}, 60),
        ({props.DELAY_IN_SECONDS: "1"}, 400),
    ],
)
def test_the_longest_accepted_message_is_delivered(
    harness: BrokerHarness, topic: str, asked: dict[str, str], room: int
) -> None:
    length = longest_body(harness, topic, asked)
    assert length > FILE_BYTES - 1000 - room
    model = PipelineModel(harness)
    assert harness.send(topic, b"x" * length, properties=asked).code == 0
    harness.advance(66_000, model.work, 500)
    assert b"x" * length in harness.bodies(topic)
    assert not harness.read_queue(DEAD_LETTER_TOPIC)
    invariants.check(harness.broker)


@pytest.mark.parametrize("asked", [{}, {props.TIMER_DELAY_MS: "700"}, {props.DELAY: "1"}])
def test_the_longest_accepted_half_message_can_be_committed(harness: BrokerHarness, asked: dict[str, str]) -> None:
    longest = longest_body(harness, "T", {**HALF, **asked})
    sent = harness.ask(harness.send_command("T", b"x" * longest, properties={**HALF, **asked}))
    position = int(sent.ext["msgId"][16:], 16)
    record = harness.broker.parts.store.log.record_at(position)  # type: ignore[arg-type]
    assert record is not None
    harness.broker.parts.transactions.put_back(record, checked=True)
    answer = harness.ask_code(
        RequestCode.END_TRANSACTION,
        producerGroup="g",
        tranStateTableOffset=sent.ext["queueOffset"],
        commitLogOffset=position,
        commitOrRollback=8,
    )
    assert answer.code == 0
    harness.advance(2000)
    assert harness.bodies("T")[-1] == b"x" * longest


def test_a_batch_that_fits_no_log_file_is_rejected(harness: BrokerHarness) -> None:
    harness.send("T")
    answer = batch(harness, inner(bytes(FILE_BYTES // 2)) * 2)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert f"log_file_bytes (mappedFileSizeCommitLog) is {FILE_BYTES}" in (answer.remark or "")


def test_a_message_that_fits_no_block_file_is_rejected(harness: BrokerHarness) -> None:
    harness.restart(block_log_file_bytes=4096)
    answer = harness.send("T", bytes(5000), properties={props.DELAY_IN_SECONDS: "1"})
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "4088 bytes, because block_log_file_bytes is 4096" in (answer.remark or "")


def test_a_cancel_that_fits_no_log_file_is_rejected(harness: BrokerHarness) -> None:
    """The broker rejects such a cancel completely, and delivers the message that it names."""
    harness.send("T", b"waits", delay_ms=1500, properties={props.UNIQ_KEY: "U" * 200})
    cancel = {props.TIMER_DEL_UNIQKEY: "T+" + "U" * 200, props.TIMER_DELAY_MS: "1500"}
    length = longest_body(harness, "U", {props.TIMER_DELAY_MS: "60000", props.TIMER_DEL_UNIQKEY: "U+none"})
    for body_bytes in range(length - 400, length + 400, 100):
        answer = harness.send("T", bytes(body_bytes), properties=cancel)
        if answer.code:
            assert (answer.code, "log_file_bytes" in (answer.remark or "")) == (ResponseCode.MESSAGE_ILLEGAL, True)
            break
        assert answer.ext["cancelResult"] in ("cancelled", "already delivered or cancelled")
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    invariants.check(harness.broker)


def test_a_smaller_body_limit_does_not_affect_accepted_messages(harness: BrokerHarness) -> None:
    """maxMessageSize limits sends only. The broker delivers the messages accepted before the change."""
    harness.restart(block_length_seconds=60)
    for asked in ({props.TIMER_DELAY_MS: "1500"}, {props.DELAY: "2"}, {props.DELAY_IN_SECONDS: "2"}):
        assert harness.send("T", bytes(5000), properties=asked).code == 0
    assert harness.ask_code(RequestCode.UPDATE_BROKER_CONFIG, b"maxMessageSize=100\n").code == 0
    refused = harness.send("T", bytes(5000))
    assert refused.code == ResponseCode.MESSAGE_ILLEGAL and "limit 100B" in (refused.remark or "")
    harness.advance(6000)
    assert harness.bodies("T") == [bytes(5000)] * 3


@pytest.mark.parametrize(
    ("sizes", "is_warned"),
    [
        ({}, False),
        ({"log_file_bytes": 4 << 20}, True),
        ({"log_file_bytes": (4 << 20) + (33 << 10)}, False),
        ({"log_file_bytes": 1 << 20, "body_bytes_max": 1 << 20}, True),
        ({"log_file_bytes": 1 << 20, "body_bytes_max": 1 << 19}, False),
    ],
)
def test_a_body_limit_beyond_the_log_file_size_causes_a_warning(
    tmp_path: Path, sizes: dict[str, int], is_warned: bool
) -> None:
    warning = body_size_warning(BrokerSettings.of(store_path=tmp_path, **sizes))
    assert (warning is not None) == is_warned
    if warning is not None:
        assert "(log_file_bytes)" in warning
        assert str(sizes["log_file_bytes"]) in warning


def test_the_warning_about_the_body_limit_is_logged_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def started() -> None:
        app = BrokerApp(
            BrokerSettings.of(store_path=tmp_path, listen_port=0, fast_port_enable=False, **SMALL), owns_process=False
        )
        await app.start()
        await app.stop()

    asyncio.run(started())
    assert "body_bytes_max is 4194304, and a log file has 1048576 bytes" in caplog.text


class TestAcceptedBefore:
    """Messages accepted by a broker without the check, or with larger log files."""

    def park(self, harness: BrokerHarness, left_bytes: int) -> Message:
        """Park a timer whose record leaves `left_bytes` of the longest record unused."""
        store = harness.broker.parts.store
        message = Message("T", 0, b"", {"own": "x" * 50, props.UNIQ_KEY: "K", props.TIMER_DELAY_MS: "1000"})
        settings = harness.broker.parts.settings
        park(message, Millis(harness.now_ms), ParkSettings(settings.timer, settings.levels.levels_ms))
        without_body = record_bytes(len(message.topic), 0, len(props.encode(message.properties)))
        message.body = bytes(store.record_bytes_max - without_body - left_bytes)
        store.append(message, real_queue=store.real_queue(message.properties))
        harness.settle()
        return message

    def test_a_timer_that_is_too_long_becomes_a_dead_letter(self, harness: BrokerHarness) -> None:
        parked = self.park(harness, left_bytes=50)
        harness.send("T", b"beside", delay_ms=1000)
        harness.advance(1000)
        assert harness.bodies("T") == [b"beside"]
        (record,) = harness.read_queue(DEAD_LETTER_TOPIC)
        assert record.message.body == parked.body
        assert props.without_origin(record.message.properties) == parked.properties
        assert harness.broker.parts.releaser.counts["dead_letter"] == 1
        invariants.check(harness.broker)

    def test_a_dead_letter_without_room_loses_properties(self, harness: BrokerHarness) -> None:
        """The dead letter keeps the message's topic, queue and key."""
        parked = self.park(harness, left_bytes=0)
        harness.advance(1000)
        (record,) = harness.read_queue(DEAD_LETTER_TOPIC)
        properties = record.message.properties
        assert record.message.body == parked.body
        assert (properties[props.REAL_TOPIC], properties[props.REAL_QID], properties[props.UNIQ_KEY]) == ("T", "0", "K")
        assert len(properties) < len(parked.properties)

    def test_a_message_of_a_block_is_set_aside_with_an_alarm(
        self, harness: BrokerHarness, caplog: pytest.LogCaptureFixture
    ) -> None:
        message = Message("T", 0, bytes(FILE_BYTES), {props.UNIQ_KEY: "K"})
        due_ms = Millis(harness.now_ms + 1000)
        park_in_block(message, due_ms)
        harness.broker.parts.block_parts.intake.put(message, due_ms)
        harness.send("T", b"beside", properties={props.DELAY_IN_SECONDS: "1"})
        harness.send("T", b"a timer", delay_ms=1000)
        harness.advance(1000)
        assert sorted(harness.bodies("T")) == [b"a timer", b"beside"]
        counts = harness.broker.parts.releaser.counts
        assert (counts["too_long"], counts["dead_letter"], harness.broker.parts.releaser.has_more()) == (1, 0, False)
        (alarm,) = [record for record in caplog.records if "set aside" in record.message]
        assert alarm.levelname == "CRITICAL" and "log_file_bytes" in alarm.message
        before = msgspec.json.encode(counts)
        harness.advance(5000)
        assert msgspec.json.encode(counts) == before  # the broker does not retry it in each tick
        harness.send("T", b"later", delay_ms=100)
        harness.advance(100)
        assert b"later" in harness.bodies("T")
