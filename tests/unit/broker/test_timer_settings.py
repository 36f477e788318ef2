"""The timer's settings by Apache's names, and the effects of those without another test."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import msgspec
import pytest

from tests.unit.broker.chosen import chosen
from wheelmq.broker.schema import BROKER
from wheelmq.broker.settings import BrokerSettings
from wheelmq.config.errors import ConfigError
from wheelmq.formats.disk import properties as props
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.testing import invariants
from wheelmq.testing.disk import SimulatedDisk
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel


class TestValues:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("timerPrecisionMs", "0"),
            ("timerPrecisionMs", "50"),
            ("timerPrecisionMs", "250"),
            ("timerPrecisionMs", "2000"),
            ("timerPrecisionMs", "-1000"),
            ("timerRollWindowSlot", "1"),
            ("timerRollWindowSlot", "604801"),
            ("timer_slots", "1"),
            ("timerMaxDelaySec", "-1"),
            ("timer_max_delay_seconds", "2147483648"),
            ("timerCongestNumEachSlot", "-1"),
            ("timer_congest_num_each_slot", "2147483648"),
        ],
    )
    def test_a_value_out_of_range_is_rejected(self, name: str, value: str) -> None:
        reason = f"(found '{value}'; allowed: |{BROKER.field_of(name)} is {value}: it must be )"
        with pytest.raises(ConfigError, match=f"--set {name}: {reason}"):
            chosen(**{name: value})

    @pytest.mark.parametrize("value", ["5", "24", "05,17", "", "-1"])
    def test_invalid_hours_are_rejected(self, value: str) -> None:
        with pytest.raises(ConfigError, match=r"timer_check_metrics_when is .*: write hours from 00 to 23"):
            chosen(timerCheckMetricsWhen=value)

    @pytest.mark.parametrize("value", ["a second", "1.5", ""])
    def test_a_value_that_is_no_number_is_rejected(self, value: str) -> None:
        with pytest.raises(ConfigError, match=f"--set timerPrecisionMs: found '{value}'; allowed: a whole number"):
            chosen(timerPrecisionMs=value)

    def test_an_invalid_value_is_rejected_by_each_constructor(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="it must be one of 100, 200, 500, 1000"):
            BrokerSettings.of(store_path=tmp_path, timer_precision_ms=300)
        with pytest.raises(msgspec.ValidationError, match="it must be one of 100, 200, 500, 1000"):
            BrokerHarness(tmp_path, timer_precision_ms=300)


def test_new_messages_wait_while_enqueue_is_stopped(tmp_path: Path) -> None:
    """New messages wait, and indexed ones leave. After the stop, no message is lost or early."""
    with BrokerHarness(tmp_path) as harness:
        model = PipelineModel(harness)
        assert harness.send("T", b"before", delay_ms=9000).code == 0
        harness.advance(4000, model.work, 500)
        harness.restart(timer_stop_enqueue=True)
        for body, delay_ms in ((b"near", 200), (b"far", 8000)):
            assert harness.send("T", body, delay_ms=delay_ms).code == 0
        harness.advance(10_000, model.work, 500)
        assert harness.bodies("T") == [b"before"]
        assert harness.broker.parts.timer.indexed_to == 1
        harness.restart(clean=False, timer_stop_enqueue=False)
        harness.advance(100)
        assert harness.bodies("T") == [b"before", b"near", b"far"]
        invariants.check(harness.broker)


def test_armed_messages_wait_while_dequeue_is_stopped(tmp_path: Path) -> None:
    with BrokerHarness(tmp_path, timer_stop_dequeue=True) as harness:
        model = PipelineModel(harness)
        for body, delay_ms in ((b"near", 200), (b"far", 8000)):
            assert harness.send("T", body, delay_ms=delay_ms).code == 0
        harness.advance(9000, model.work, 500)
        assert harness.bodies("T") == []
        assert harness.broker.parts.timer.pending.armed.count == 2
        assert harness.broker.next_tick_ms() > 0  # the loop does not spin over due messages
        harness.restart(timer_stop_dequeue=False)
        harness.advance(1)
        assert harness.bodies("T") == [b"near", b"far"]


OTHERS = {b"level": {props.DELAY: "1"}, b"block": {props.DELAY_IN_SECONDS: "1"}}


@pytest.mark.parametrize("setting", ["timer_stop_enqueue", "timer_stop_dequeue", "disappear_time_after_start"])
def test_settings_that_stop_the_timer_stop_no_levels_or_blocks(tmp_path: Path, setting: str) -> None:
    """As in Apache RocketMQ, levels and blocks do not depend on the timer.

    A message due before an earlier message of its queue leaves on time, too. A level message due later than its level
    allows leaves at once, as in Apache's broker. The steps of the clock make each level message such a message.
    """
    with BrokerHarness(tmp_path, **{setting: 3_600_000 if setting.startswith("dis") else True}) as harness:
        model = PipelineModel(harness)
        assert harness.send("T", b"timer", delay_ms=500).code == 0
        due: dict[bytes, int] = {}
        for n in range(3):
            for body, properties in OTHERS.items():
                assert harness.send("T", body + b"%d" % n, properties=properties).code == 0
                due[body + b"%d" % n] = harness.now_ms + 1000
            harness.clock.step(-300)  # the next message is due before this one
            due[b"level%d" % n] = harness.now_ms
        assert harness.broker.parts.timer.pending.notes.count >= 2 or harness.broker.parts.timer.pending.armed.count
        harness.advance(5000, model.work, 100)
        found = {one.message.body: one.store_ms for one in harness.read_queue("T")}
        assert found.keys() == due.keys()
        assert all(found[body] >= due[body] for body in due)
        harness.restart(clean=False)
        for body, properties in OTHERS.items():
            assert harness.send("T", body, properties=properties).code == 0
        harness.advance(3000, PipelineModel(harness).work, 100)
        assert {b"level", b"block"} <= set(harness.bodies("T")) and b"timer" not in harness.bodies("T")
        assert (
            harness.broker.parts.timer.timercheck(None).last_read_ms < harness.now_ms - 3000
        )  # Apache would find the timer
        harness.restart(**{setting: -1 if setting.startswith("dis") else False})
        harness.advance(100)
        assert harness.bodies("T").count(b"timer") == 1
        invariants.check(harness.broker)


def test_timers_wait_for_the_set_time_after_a_start(tmp_path: Path) -> None:
    with BrokerHarness(tmp_path, disappear_time_after_start=5000) as harness:
        assert harness.send("T", b"a", delay_ms=200).code == 0
        harness.advance(4990)
        assert harness.bodies("T") == []
        harness.advance(10)
        assert harness.bodies("T") == [b"a"]


def test_progress_is_logged_only_when_figures_change(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), BrokerHarness(tmp_path, timer_progress_log_interval_ms=1000) as harness:
        harness.send("T", delay_ms=90_000)
        harness.advance(10_000)
        lines = [record.getMessage() for record in caplog.records if record.name.endswith("timer_progress")]
    assert len(lines) == 1
    assert lines[0].startswith("timer: 1 pending messages, 1 of them not indexed, 0 armed; 0 released since the start;")


class TestMetricsFile:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "store" / "config" / "timermetrics"

    def test_the_metrics_file_has_apaches_format(self, harness: BrokerHarness, path: Path) -> None:
        for topic, delay_ms in (("T", 5000), ("T", 90_000), ("U", 90_000)):
            harness.send(topic, delay_ms=delay_ms)
        parked_ms = harness.now_ms
        harness.advance(11_000)
        found = json.loads(path.read_text())
        assert found["dataVersion"]["counter"] == 4  # three sends and one release
        assert found["timingCount"]["T"]["count"] == 1
        harness.send("U", delay_ms=90_000)
        sent_ms = harness.now_ms
        harness.stop()
        found = json.loads(path.read_text())
        assert found["dataVersion"] == {"stateVersion": 0, "timestamp": sent_ms, "counter": 5}
        assert found["timingCount"]["U"] == {"count": 2, "timeStamp": sent_ms}
        assert found["timingCount"]["T"]["count"] == 1 and found["timingCount"]["T"]["timeStamp"] > parked_ms
        assert json.loads(path.with_name("timermetrics.bak").read_text())["dataVersion"]["counter"] == 4

    @pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
    def test_a_start_corrects_the_counts_of_the_file(self, harness: BrokerHarness, path: Path, clean: bool) -> None:
        for i in range(3):
            harness.send("T", delay_ms=90_000, properties={"UNIQ_KEY": f"K{i}"})
        harness.stop() if clean else harness.crash()
        path.unlink(missing_ok=True)
        path.write_text('{"dataVersion":{"counter":70},"timingCount":{"T":{"count":-9},"gone":{"count":4}}}')
        harness.start()
        found = json.loads(harness.ask_code(RequestCode.GET_TIMER_METRICS).body)
        assert {topic: one["count"] for topic, one in found["timingCount"].items()} == {"T": 3}
        assert found["dataVersion"]["counter"] == 70

    @pytest.mark.parametrize("raw", ["", "{", "[]", '{"timingCount":7}'])
    def test_an_unreadable_metrics_file_is_replaced(self, harness: BrokerHarness, path: Path, raw: str) -> None:
        harness.send("T", delay_ms=90_000)
        harness.stop()
        path.write_text(raw)
        harness.start()
        found = json.loads(harness.ask_code(RequestCode.GET_TIMER_METRICS).body)
        assert found["timingCount"]["T"]["count"] == 1
        harness.stop()
        assert json.loads(path.read_text())["timingCount"]["T"]["count"] == 1

    def test_cancels_without_a_message_change_no_count(self, harness: BrokerHarness) -> None:
        """Apache's broker subtracts a cancel before it finds the message, and adds it back if there is none."""
        model = PipelineModel(harness)

        def counts() -> dict[str, int]:
            found = json.loads(harness.ask_code(RequestCode.GET_TIMER_METRICS).body)["timingCount"]
            return {topic: one["count"] for topic, one in found.items()}

        harness.send("T", delay_ms=9000, properties={"UNIQ_KEY": "K"})
        for i in range(5):
            harness.send("T", b"x", delay_ms=4000, properties={"TIMER_DEL_UNIQKEY": f"T+nobody{i}"})
            harness.send("U", b"x", delay_ms=4000, properties={"TIMER_DEL_UNIQKEY": "U+K"})
        assert counts() == {"T": 1}
        harness.advance(6000, model.work, 500)
        assert counts() == {"T": 1}
        for _ in range(2):
            harness.send("T", b"x", delay_ms=2000, properties={"TIMER_DEL_UNIQKEY": "T+K"})
        assert counts() == {"T": 0}
        harness.advance(9000, model.work, 500)
        harness.restart(clean=False)
        harness.advance(9000, model.work, 500)
        assert counts() == {} and harness.bodies("T") == []

    def test_a_write_to_a_full_disk_is_retried(self, harness: BrokerHarness, path: Path, disk: SimulatedDisk) -> None:
        harness.send("T", delay_ms=90_000)
        calls: list[Path] = []
        replace = disk.replace

        def failing(to: Path, data: bytes, *, keep_previous: bool = False) -> None:
            if to == path and not calls:
                calls.append(to)
                raise OSError(28, "No space left on device", str(to))
            replace(to, data, keep_previous=keep_previous)

        disk.replace = failing  # type: ignore[method-assign]
        harness.advance(30_000)
        assert calls and json.loads(path.read_text())["timingCount"]["T"]["count"] == 1
