"""Messages that Apache's broker would deliver from a cleanly stopped store: the pending ones, and no others."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import pytest

from wheelmq.delay.cancel import Cancelled
from wheelmq.delay.offline import pending_in
from wheelmq.delay.ring import QUANTUM
from wheelmq.delay.timer import staging
from wheelmq.delay.timer.mark import load_check
from wheelmq.delay.timer.view import TIMER_QUEUE, StoreSizes, StoreView
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.origin import timer_origin
from wheelmq.formats.disk.paths import StorePaths
from wheelmq.formats.disk.queue_unit import QUEUE_UNIT
from wheelmq.formats.disk.timer import MAGIC_DELETE, MAGIC_HIDDEN, TIMER_UNIT
from wheelmq.system.disk import Disk
from wheelmq.testing.harness import SMALL, BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel

PRECISION_MS = 1000


SLOTS: Final = 60
"""Number of slots that are read, from timercheck's slot on, if a test does not ask for more."""


def delivered_by_apache(root: Path, slots: int = SLOTS) -> list[int]:
    """Return the queue offsets of the messages that Apache would deliver.

    Apache delivers the units of all slots from timercheck's on, and the timer queue from timercheck's offset on.
    """
    check = load_check(Disk(), StorePaths(root))
    assert check is not None
    names = ("log_file_bytes", "queue_file_bytes", "timer_log_file_bytes", "timer_slots", "block_queue_file_bytes")
    view = StoreView(root, StoreSizes(**{name: SMALL[name] for name in names}))
    through_ms = check.last_read_ms + slots * PRECISION_MS
    rows = staging.read_walk(
        view,
        check.last_read_ms - PRECISION_MS,
        through_ms,
        log_end=view.timer_log.end,
        precision_ms=PRECISION_MS,
        write_ms=0,
        turn=0,
    )
    walked = (rows["origin"] - timer_origin(0))[(rows["magic"] & MAGIC_DELETE) == 0].tolist()
    units = np.frombuffer(view.queue(TIMER_QUEUE).file_at(0).view, QUEUE_UNIT.dtype)
    return sorted([*walked, *range(check.queue_offset, int(np.count_nonzero(units["size"])))])


def pending(root: Path) -> list[int]:
    return sorted(one.queue_offset for one in pending_in(root))


@pytest.mark.parametrize("turns", [False, True])
def test_apache_delivers_only_pending_messages(harness: BrokerHarness, tmp_path: Path, turns: bool) -> None:
    model = PipelineModel(harness)
    work = model.work if turns else None
    for delay_ms in (100, 400, 700, 950, 1400, 2900, 7000, 25_000):
        harness.send("T", b"%d" % delay_ms, delay_ms=delay_ms)
    harness.advance(750, work)
    assert len(harness.bodies("T")) == 3
    harness.stop()
    store = tmp_path / "store"
    assert pending(store) == [3, 4, 5, 6, 7]
    assert delivered_by_apache(store) == [3, 4, 5, 6, 7]


def test_apache_delivers_only_the_rest_of_an_interrupted_burst(tmp_path: Path) -> None:
    """The units of the released messages lie seconds before the present slot. Apache skips them."""
    store = tmp_path / "store"
    with BrokerHarness(store, release_slice_ms=0.0) as harness:
        model = PipelineModel(harness)
        due_ms = harness.now_ms + 4500
        for i in range(QUANTUM + 100):
            harness.send("T", b"%d" % i, deliver_ms=due_ms)
        harness.advance(4400, model.work)
        harness.clock.advance(due_ms - harness.now_ms)
        harness.tick()
        assert harness.broker.parts.releaser.in_hand() == 100
        harness.clock.advance(4000)
        harness.stop()
    left = list(range(QUANTUM, QUANTUM + 100))
    assert pending(store) == left
    assert delivered_by_apache(store) == left


@pytest.mark.parametrize("turns", [False, True], ids=["not indexed", "indexed"])
@pytest.mark.parametrize("short", [False, True], ids=["topic and key", "key alone"])
def test_cancelled_messages_stay_cancelled(harness: BrokerHarness, tmp_path: Path, turns: bool, short: bool) -> None:
    """The cancels name another second than their messages, in slots after the present one. One message rolls."""
    model = PipelineModel(harness)
    for delay_ms in (8000, 8000, 25_000, 90_000):
        harness.send("T", delay_ms=delay_ms, properties={props.UNIQ_KEY: f"K{delay_ms}"})
    harness.send("T", delay_ms=25_000, properties={props.UNIQ_KEY: "stays"})
    if turns:
        harness.advance(4000, model.work, 500)
        assert harness.broker.parts.timer.indexed_to == 5
    for delay_ms in (8000, 25_000, 90_000):
        key = f"K{delay_ms}" if short else f"T+K{delay_ms}"
        named = harness.send("T", delay_ms=14_000, properties={props.TIMER_DEL_UNIQKEY: key})
        assert named.ext["cancelResult"] == Cancelled.CANCELLED
    if turns:
        harness.advance(1000, model.work, 500)
    harness.stop()
    store = tmp_path / "store"
    assert pending(store) == [4]
    assert delivered_by_apache(store, 200) == [4]
    harness.start()
    harness.advance(100_000, model.work, 1000)
    assert len(harness.bodies("T")) == 1


def test_the_next_start_restores_hidden_units(harness: BrokerHarness, tmp_path: Path) -> None:
    """The slot counts a cancelled message and its cancel as nothing, before and after the stop."""
    model = PipelineModel(harness)
    due_ms = harness.now_ms + 15_000
    harness.send("T", deliver_ms=due_ms, properties={props.UNIQ_KEY: "K"})
    harness.send("T", deliver_ms=due_ms)
    assert harness.send("T", delay_ms=9000, properties={props.TIMER_DEL_UNIQKEY: "T+K"}).code == 0
    harness.advance(4000, model.work, 500)

    def counted() -> tuple[int, list[int]]:
        timer = harness.broker.parts.timer
        assert timer.indexed_to == 3
        slot = timer.wheel.table[timer.wheel.index(timer.wheel.floor_slot(due_ms))]
        [(_, units)] = timer.log.chunks(timer.log.files.start, timer.log.end)
        return int(slot["count"]), units["magic"].tolist()

    before = counted()
    assert before == (1, [1, 1, 5])
    harness.stop()
    [file] = (tmp_path / "store" / "timerlog").iterdir()
    assert np.frombuffer(file.read_bytes(), TIMER_UNIT.dtype, 3)["magic"].tolist() == [MAGIC_HIDDEN, 1, 5]
    harness.start()
    assert counted() == before
    harness.restart(clean=False)
    assert counted() == before


def test_units_beyond_the_time_limit_are_not_checked(
    harness: BrokerHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    harness.send("T", delay_ms=8000, properties={props.UNIQ_KEY: "K"})
    harness.send("T", delay_ms=8000, properties={props.TIMER_DEL_UNIQKEY: "T+K"})
    monkeypatch.setattr("wheelmq.delay.timer.apache_export.HIDE_SECONDS_MAX", -1.0)
    harness.stop()
    assert "did not check 2 units of the timer log" in caplog.text
    assert delivered_by_apache(tmp_path / "store") == [0]


def test_settled_units_are_found_in_several_batches(
    harness: BrokerHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each third message is cancelled, and other records lie in between."""
    monkeypatch.setattr("wheelmq.delay.timer.settled_units.UNITS_AT_ONCE", 7)
    for i in range(60):
        harness.send("T", delay_ms=8000 + 100 * (i * 37 % 60), properties={props.UNIQ_KEY: f"K{i}"})
        harness.send("P")
    for i in range(0, 60, 3):
        harness.send("T", delay_ms=2000, properties={props.TIMER_DEL_UNIQKEY: f"T+K{i}"})
    harness.stop()
    left = [i for i in range(60) if i % 3]
    assert pending(tmp_path / "store") == left
    assert delivered_by_apache(tmp_path / "store") == left


def test_our_broker_continues_as_before(harness: BrokerHarness) -> None:
    for delay_ms in range(2000, 12_000, 20):
        harness.send("T", b"%d" % delay_ms, delay_ms=delay_ms)
    harness.restart()
    assert harness.broker.parts.timer.indexed_to == 0
    harness.advance(12_000)  # without a pipeline: no turn has indexed these messages
    assert sorted(map(int, harness.bodies("T"))) == list(range(2000, 12_000, 20))


def test_an_unreadable_record_does_not_fail_the_stop(
    harness: BrokerHarness, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    harness.send("T", b"one", delay_ms=8000)
    log = harness.broker.parts.store.log
    log.files.file_at(0).view[4:8] = b"torn"
    harness.stop()
    assert "settled messages are not marked" in caplog.text
