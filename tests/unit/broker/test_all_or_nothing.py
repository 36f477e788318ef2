"""A rejected send stores nothing, so a client that repeats it stores each message once."""

from __future__ import annotations

import pytest

from tests.unit.broker.test_send import inner
from wheelmq.formats.disk import properties as props
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.testing.disk import SimulatedDisk
from wheelmq.testing.harness import BrokerHarness


def send_batch(harness: BrokerHarness, body: bytes, topic: str = "T") -> Command:
    command = harness.send_command(topic, body, m=True)
    command.code = RequestCode.SEND_BATCH_MESSAGE
    return harness.ask(command)


def fill_log_except(harness: BrokerHarness, free: int) -> None:
    """Fill the log file until about `free` bytes are left."""
    log = harness.broker.parts.store.log
    while (left := log.files.file_bytes - log.end) > free + 2000:
        assert harness.send("filler", b"x" * min(200_000, left - free - 1000)).code == 0


def test_a_batch_rejected_by_a_full_disk_stores_no_message(harness: BrokerHarness, disk: SimulatedDisk) -> None:
    body = b"".join(inner(b"%d" % i * 1000) for i in range(10))
    disk.gives_room_ahead = True
    harness.send("filler")
    disk.is_full = lambda path: "commitlog" in str(path)
    fill_log_except(harness, 4000)
    assert send_batch(harness, body).code == ResponseCode.SYSTEM_ERROR
    disk.is_full = lambda path: False
    harness.advance(1000)
    assert harness.bodies("T") == []
    assert send_batch(harness, body).code == 0
    assert harness.bodies("T") == [b"%d" % i * 1000 for i in range(10)]
    harness.restart(clean=False)
    assert len(harness.bodies("T")) == 10


def test_a_batch_with_a_nul_in_its_properties_is_rejected(harness: BrokerHarness) -> None:
    body = inner(b"fine") + inner(b"one", b"k\x01a\0b\x02")
    assert send_batch(harness, body).code == ResponseCode.MESSAGE_ILLEGAL
    assert harness.bodies("T") == []


def test_a_batch_larger_than_a_log_file_is_rejected(harness: BrokerHarness) -> None:
    body = inner(b"x" * 600_000) * 2
    assert send_batch(harness, body).code == ResponseCode.MESSAGE_ILLEGAL
    assert harness.bodies("T") == []
    assert send_batch(harness, inner(b"x" * 600_000)).code == 0


@pytest.mark.parametrize("out_ms", ["abc", "", "9" * 30, "\u0663"])
def test_a_send_with_an_unreadable_timer_out_time_is_stored(harness: BrokerHarness, out_ms: str) -> None:
    answer = harness.send("T", properties={props.TIMER_OUT_MS: out_ms, props.REAL_TOPIC: "U"})
    assert answer.code == 0
    assert len(harness.bodies("T")) == 1
