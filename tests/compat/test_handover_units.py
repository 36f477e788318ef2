"""Apache RocketMQ delivers from a timer log whose units carry details, and hands the store back.

WheelMQ parks and indexes messages, so that every unit of the timer log has a detail in its 8 reserved bytes. It stops
or is killed. Apache RocketMQ opens the store and delivers every pending message once, also those that roll. WheelMQ
then opens the store again and delivers no message twice. `make compat` does this with each version and each end.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compat.apache.apache import VERSIONS, ApacheBroker, ApacheNameServer
from wheelmq.delay.offline import pending_in
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.parked import due_of
from wheelmq.formats.disk.queue_unit import QUEUE_UNIT
from wheelmq.formats.disk.timer import MAGIC_ROLL, SLOTS, TIMER_LOG_FILE_BYTES
from wheelmq.formats.disk.timer_detail import read_details
from wheelmq.formats.units import Millis
from wheelmq.system.clock import SystemClock
from wheelmq.testing.clock import ManualClock
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel

pytestmark = [pytest.mark.java, pytest.mark.timeout(240)]

LOG_FILE_BYTES = 1 << 26
QUEUE_FILE_BYTES = 300_000 * 20
ROLL_WINDOW_S = 20
INDEXING_MS = 4000
DELAYS_MS = [*(10_000 + 137 * i for i in range(40)), *(12_000 + 1000 * i for i in range(5))]
"""From the first send on. Some share a slot, some are due at a whole second."""
ROLLING_MS = 36_500
FAR_MS = 3_600_000
DEADLINE_S = 90.0
WAYS = [(version, end) for version in VERSIONS for end in ("stopped", "killed")]
EARLY_MS = 1000
"""Apache delivers by the second of the slot, which is up to a second before the exact due time."""


def harness(store: Path, now_ms: int) -> BrokerHarness:
    """Return a broker over `store` whose files have the sizes of Apache's."""
    settings: dict[str, Any] = {
        "log_file_bytes": LOG_FILE_BYTES,
        "queue_file_bytes": QUEUE_FILE_BYTES,
        "timer_log_file_bytes": TIMER_LOG_FILE_BYTES,
        "timer_slots": SLOTS,
        "timer_roll_window_slots": ROLL_WINDOW_S,
        "message_index_enable": False,
    }
    return BrokerHarness(store, clock=ManualClock(now_ms), **settings)


def fill(store: Path, now_ms: int, end: str) -> None:
    """Park messages, index all of them, and stop or kill the broker. Every unit of the timer log has its detail."""
    with harness(store, now_ms) as ours:
        for delay_ms in (*DELAYS_MS, ROLLING_MS, FAR_MS):
            own = {props.UNIQ_KEY: f"K{delay_ms}"}
            answer = ours.send("T", b"%d" % delay_ms, deliver_ms=now_ms + delay_ms, properties=own, queue_id=0)
            assert answer.code == 0, answer.remark
        ours.advance(INDEXING_MS, PipelineModel(ours).work, 500)
        timer = ours.broker.parts.timer
        assert timer.indexed_to == len(DELAYS_MS) + 2
        units = np.concatenate([units for _, units in timer.log.chunks(0, timer.log.end)])
        details = read_details(units)
        rolls = (units["magic"] & MAGIC_ROLL) != 0
        assert details.is_known.all() and rolls.sum() == 2
        expected_ms = [now_ms + delay_ms for delay_ms in DELAYS_MS]
        assert details.due_ms[~rolls].tolist() == expected_ms
        if end == "stopped":
            ours.stop()
        else:
            ours.crash()


def delivered_count(store: Path) -> int:
    """Return how many messages are in the queue of their topic, by the file that Apache RocketMQ has mapped."""
    file = store / "consumequeue" / "T" / "0" / f"{0:020}"
    if not file.exists():
        return 0
    units = np.fromfile(file, QUEUE_UNIT.dtype, QUEUE_FILE_BYTES // QUEUE_UNIT.size)
    return int(np.count_nonzero(units["size"]))


def deliver(folder: Path, store: Path, version: str) -> None:
    """Let Apache RocketMQ deliver every message but the one that is far ahead, then stop it."""
    config = {
        "mappedFileSizeCommitLog": LOG_FILE_BYTES,
        "storePathRootDir": store,
        "timerRollWindowSlot": ROLL_WINDOW_S,
        "timerMaxDelaySec": 7200,
    }
    with (
        ApacheNameServer(folder / "names") as names,
        ApacheBroker(folder / "apache", names.address, config=config, version=version) as broker,
    ):
        end_s = time.monotonic() + DEADLINE_S
        while delivered_count(store) < len(DELAYS_MS) + 1 and time.monotonic() < end_s:
            time.sleep(0.1)
        broker.stop()


@pytest.mark.skipif(os.environ.get("COMPAT") != "whole", reason="COMPAT=whole, as `make compat` sets it")
@pytest.mark.parametrize(("version", "end"), WAYS)
def test_apache_delivers_from_a_timer_log_with_details(tmp_path: Path, version: str, end: str) -> None:
    store = tmp_path / "store"
    began_ms = SystemClock().now_ms() - INDEXING_MS
    fill(store, began_ms, end)
    deliver(tmp_path, store, version)
    waiting = Counter(pending.unique_key for pending in pending_in(store))
    assert waiting == Counter([f"K{FAR_MS}"])
    with harness(store, SystemClock().now_ms()) as ours:
        ours.advance(60_000, PipelineModel(ours).work, 1000)
        came = ours.read_queue("T")
        assert ours.broker.parts.timer.pending.counts.by_queue.sum() == 1
    assert Counter(int(record.message.body) for record in came) == Counter([*DELAYS_MS, ROLLING_MS])
    for record in came:
        due_ms = began_ms + int(record.message.body)
        assert due_of(record.message.properties, Millis(0)) == due_ms
        assert record.store_ms >= due_ms - EARLY_MS
