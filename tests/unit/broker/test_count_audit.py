"""The daily recount of pending messages from their records."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from wheelmq.broker import count_audit
from wheelmq.delay import recount
from wheelmq.formats.disk import properties as props
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.testing.clock import START_MS
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel
from wheelmq.testing.workers import HeldWorker

HOUR_MS = 3_600_000
ALL_DAY = ";".join(f"{hour:02d}" for hour in range(24))


def counts(harness: BrokerHarness) -> dict[str, int]:
    found = json.loads(harness.ask_code(RequestCode.GET_TIMER_METRICS).body)["timingCount"]
    return {topic: one["count"] for topic, one in found.items()}


def fill(harness: BrokerHarness) -> dict[str, int]:
    """Send messages of each kind, and let some be released, cancelled and rolled.

    Returns the number of pending messages of each topic.
    """
    for i in range(12):
        for topic, own in (
            ("T", {props.TIMER_DELAY_MS: str(500 if i < 3 else 200_000)}),
            ("L", {props.DELAY: "1" if i < 4 else "8"}),
            ("B", {props.DELAY_IN_SECONDS: "1" if i < 5 else str(200 + i)}),
            ("T", {props.DELAY_IN_SECONDS: "300", props.UNIQ_KEY: f"K{i}"}),
        ):
            assert harness.send(topic, b"%d" % i, queue_id=i % 3, properties=own).code == 0
    for key in ("K1", "K2"):
        harness.send("T", deliver_ms=harness.now_ms + 9000, properties={props.TIMER_DEL_UNIQKEY: f"T+{key}"})
    harness.advance(25_000, PipelineModel(harness).work, 1000)
    waiting = {"T": 9 + 10, "L": 8, "B": 7}
    assert counts(harness) == waiting
    return waiting


def known(harness: BrokerHarness) -> dict[str, int]:
    """Return the timer's number of pending messages of each topic."""
    return harness.broker.parts.store.queues.by_topic(harness.broker.parts.timer.pending.counts.by_queue)


def falsify(harness: BrokerHarness) -> None:
    """Make the counts wrong: too high, too low and below 0."""
    pending = harness.broker.parts.timer.pending.counts.by_queue
    for row in range(len(harness.broker.parts.store.queues)):
        pending[row] += {"T": 100, "L": -50, "B": -1}.get(harness.broker.parts.store.queues.key(row)[0], 0)


class TestRecount:
    @pytest.fixture(autouse=True)
    def at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(count_audit, "APART_MS", 0)

    @pytest.fixture
    def reading(self) -> HeldWorker:
        return HeldWorker()

    @pytest.fixture
    def harness(self, tmp_path: Path, reading: HeldWorker) -> Iterator[BrokerHarness]:
        with BrokerHarness(tmp_path, reading=reading, timer_check_metrics_when=ALL_DAY) as running:
            yield running

    def finish(self, harness: BrokerHarness, reading: HeldWorker) -> int:
        """Run all steps of the recount. Returns the number of steps."""
        steps = 0
        while reading.run():
            steps += 1
            assert harness.broker.next_tick_ms() == 0
            harness.tick()
        return steps

    def test_a_recount_corrects_wrong_counts(
        self, harness: BrokerHarness, reading: HeldWorker, caplog: pytest.LogCaptureFixture
    ) -> None:
        waiting = fill(harness)
        falsify(harness)
        assert known(harness) == {"T": 319, "L": -142, "B": 4}
        with caplog.at_level(logging.INFO):
            harness.advance(60_000)
            assert self.finish(harness, reading) >= 3
        assert counts(harness) == waiting == known(harness)
        assert "the count of topic L, which was wrong by -" in caplog.text and "the count found" in caplog.text
        caplog.clear()
        harness.advance(60_000)
        self.finish(harness, reading)
        assert "wrong" not in caplog.text and counts(harness) == waiting

    def test_a_recount_includes_messages_sent_and_cancelled_meanwhile(
        self, harness: BrokerHarness, reading: HeldWorker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(recount, "STEP_UNITS", 3)
        monkeypatch.setattr(recount, "STEP_UNITS_PLAIN", 3)
        waiting = fill(harness)
        falsify(harness)
        harness.advance(60_000)
        steps = 0
        while reading.run():
            harness.tick()
            steps += 1
            if steps in (2, 5):
                key = "K3" if steps == 2 else "K11"
                for topic, own in (("T", {props.DELAY_IN_SECONDS: "250"}), ("L", {props.DELAY: "9"})):
                    assert harness.send(topic, properties=own).code == 0
                harness.send("T", deliver_ms=harness.now_ms + 9000, properties={props.TIMER_DEL_UNIQKEY: f"T+{key}"})
        assert steps > 8
        assert counts(harness) == {"T": waiting["T"], "L": waiting["L"] + 2, "B": waiting["B"]}

    def test_a_block_deleted_during_a_recount_changes_no_count(
        self, harness: BrokerHarness, reading: HeldWorker, caplog: pytest.LogCaptureFixture
    ) -> None:
        fill(harness)
        harness.advance(60_000)
        before = known(harness)
        [block] = [block for block in harness.broker.parts.blocks if block.queue.end == 12]
        del harness.broker.parts.blocks._by_number[block.number]
        self.finish(harness, reading)
        assert known(harness) == before and "the count of pending messages failed" in caplog.text

    def test_the_recount_can_be_switched_off(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path, timer_check_metrics_when=ALL_DAY, timer_enable_check_metrics=False) as harness:
            fill(harness)
            falsify(harness)
            wrong = known(harness)
            harness.advance(61_000)
            assert known(harness) == wrong


def test_the_recount_runs_at_its_hours_and_not_soon_after_a_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hour = time.localtime(START_MS // 1000 + 5 * 3600).tm_hour
    caplog.set_level(logging.INFO)
    with BrokerHarness(tmp_path / "1", timer_check_metrics_when=f"{hour:02d}") as harness:
        counted = []
        for _ in range(30):  # the clock steps forward by an hour, and a minute passes
            harness.clock.step(HOUR_MS)
            caplog.clear()
            harness.advance(61_000)
            if "the count found" in caplog.text:
                counted.append(time.localtime(harness.now_ms // 1000).tm_hour)
        assert counted == [hour, hour]
    with BrokerHarness(tmp_path / "2", timer_check_metrics_when=ALL_DAY) as harness:
        caplog.clear()
        harness.advance(69 * 60_000)
        assert "the count found" not in caplog.text
        harness.advance(3 * 60_000)
        assert caplog.text.count("the count found") == 1
