"""Apache RocketMQ gets a store of ours with cancelled messages, and never delivers one of them.

A broker without sockets fills the store. Its clock shows the present time, so that some messages are in the timer
wheel and others are not. No cancel names the due second of its message. Apache then has the store until the last
message that was not cancelled has arrived. `make compat` runs every way.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from compat.apache.apache import VERSIONS, ApacheBroker, ApacheNameServer
from tests.compat.test_handover import Group, until
from wheelmq.broker.schema import BROKER
from wheelmq.delay.cancel import Cancelled
from wheelmq.formats.disk import properties as props
from wheelmq.system.clock import SystemClock
from wheelmq.testing.clock import ManualClock
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel

pytestmark = [pytest.mark.java, pytest.mark.timeout(360)]

STOPPED_ROLL_SECONDS: Final = 10
"""The roll window of both brokers after a clean stop: all messages roll."""
KILLED_ROLL_SECONDS: Final = 3600
"""No message rolls. Apache may deliver a cancelled message that rolled, also in a store of its own."""
INDEXING_MS: Final = 5000
DUE_MS: Final = (20_000, 30_000)
"""The due times, from the end of the filling on. Apache is up by the first of them."""
APACHES: Final = ("queue_file_bytes", "timer_log_file_bytes", "timer_slots")
"""Sizes that are the same by default."""
SIZES: Final = {
    **{name: BROKER.fields[name].default for name in APACHES},
    "log_file_bytes": 1 << 26,
    "max_hash_slot_num": 1000,
    "max_index_num": 4000,
}


class Way(NamedTuple):
    """The end of our broker, the version of Apache RocketMQ, and the delete key forms of the cancels."""

    version: str
    is_killed: bool
    forms: tuple[str, ...]

    @property
    def roll_seconds(self) -> int:
        """The roll window of both brokers."""
        return KILLED_ROLL_SECONDS if self.is_killed else STOPPED_ROLL_SECONDS


LONG, SHORT = "T+{}", "{}"
WAYS = [Way(VERSIONS[-1], False, (LONG, SHORT))]
if os.environ.get("COMPAT") == "whole":
    WAYS += [Way(version, False, (LONG, SHORT)) for version in VERSIONS[:-1]]
    WAYS += [Way(VERSIONS[0], True, (LONG,)), Way(VERSIONS[1], True, (SHORT,))]


def fill(store: Path, way: Way) -> set[bytes]:
    """Fill a store and end; return the bodies of the messages that were not cancelled."""
    clock = ManualClock(SystemClock().now_ms() - INDEXING_MS)
    settings = {**SIZES, "timer_roll_window_slots": way.roll_seconds, "timer_lead_ms": 5000}
    with BrokerHarness(store, clock=clock, **settings) as harness:
        model = PipelineModel(harness)
        start_ms = harness.now_ms + INDEXING_MS
        stays = send(harness, start_ms, "stays")
        gone = send(harness, start_ms, "indexed")
        harness.advance(INDEXING_MS, model.work, 500)
        assert harness.broker.parts.timer.indexed_to == len(stays) + len(gone)
        gone += send(harness, start_ms, "parked")
        for i, key in enumerate(gone):
            named = {props.TIMER_DEL_UNIQKEY: way.forms[i % len(way.forms)].format(key)}
            answer = harness.send("T", b"cancel", delay_ms=3000, properties=named)
            assert answer.ext["cancelResult"] == Cancelled.CANCELLED
        (harness.crash if way.is_killed else harness.stop)()
    return set(map(str.encode, stays))


def send(harness: BrokerHarness, start_ms: int, name: str) -> list[str]:
    """Send two messages for each of DUE_MS; return their unique keys, which are their bodies too."""
    keys = [f"{name}-{due_ms}-{i}" for due_ms in DUE_MS for i in range(2)]
    for key in keys:
        due_ms = start_ms + int(key.split("-")[1])
        assert harness.send("T", key.encode(), deliver_ms=due_ms, properties={props.UNIQ_KEY: key}).code == 0
    return keys


async def consume(namesrv: str, expected: set[bytes]) -> Group:
    """Consume until all `expected` bodies have arrived."""
    group = Group(namesrv, "handover")
    async with group.consumer:
        await until(lambda: set(group.came) >= expected)
    return group


@pytest.mark.parametrize("way", WAYS, ids=lambda way: f"{way.version}-{'killed' if way.is_killed else 'stopped'}")
def test_apache_never_delivers_cancelled_messages(tmp_path: Path, way: Way) -> None:
    expected = fill(tmp_path / "store", way)
    config = {
        "storePathRootDir": tmp_path / "store",
        "mappedFileSizeCommitLog": SIZES["log_file_bytes"],
        "maxHashSlotNum": SIZES["max_hash_slot_num"],
        "maxIndexNum": SIZES["max_index_num"],
        "timerRollWindowSlot": way.roll_seconds,
    }
    with (
        ApacheNameServer(tmp_path / "names") as names,
        ApacheBroker(tmp_path / "apache", names.address, config=config, version=way.version),
    ):
        group = asyncio.run(consume(names.address, expected))
    assert set(group.came) == expected
    shutil.rmtree(tmp_path)  # a failed store stays
