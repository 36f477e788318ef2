"""Durations of puts: the warnings for slow puts, and the figures of brokerStatus."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.broker.test_send import inner
from wheelmq.broker import puts as put_module
from wheelmq.broker.handlers import pull as pull_module
from wheelmq.formats.disk import properties as props
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.testing.harness import BrokerHarness

SLOW_MS = 600


@pytest.fixture(autouse=True)
def warnings_are_seen(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)


def slow(harness: BrokerHarness, step: Callable[..., Any], ms: int = SLOW_MS) -> Callable[..., Any]:
    """Return `step` with a duration of `ms` milliseconds."""

    def run(*arguments: Any, **named: Any) -> Any:
        harness.clock.advance(ms)
        return step(*arguments, **named)

    return run


def plain(harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch, ms: int = SLOW_MS) -> None:
    """Serve sends by the plain code, and make each append slow."""
    harness.broker.parts.fast_send = None
    monkeypatch.setattr(harness.broker.parts.store, "append", slow(harness, harness.broker.parts.store.append, ms))


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "putMessage" in record.getMessage()]


def status(harness: BrokerHarness) -> dict[str, str]:
    answer = harness.ask_code(RequestCode.GET_BROKER_RUNTIME_INFO)
    table: dict[str, str] = json.loads(answer.body)["table"]
    return table


def batch(harness: BrokerHarness) -> Command:
    command = harness.send_command("T", inner(b"12345") + inner(b"67890"), m=True)
    command.code = RequestCode.SEND_BATCH_MESSAGE
    return command


class TestWarnings:
    @pytest.mark.parametrize("kind", ["plain", "timer", "half", "send back"])
    def test_a_slow_append_logs_two_warnings(
        self, harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str
    ) -> None:
        harness.send("T", b"12345")
        record = harness.read_queue("T")[0]
        plain(harness, monkeypatch)
        back = Command(code=RequestCode.CONSUMER_SEND_MSG_BACK, version=479)
        back.ext = {"offset": str(record.position), "group": "g", "delayLevel": "3"}
        command = {
            "plain": harness.send_command("T", b"12345"),
            "timer": harness.send_command("T", b"12345", delay_ms=5000),
            "half": harness.send_command("T", b"12345", properties={props.TRAN_MSG: "true", "PGROUP": "g"}),
            "send back": back,
        }[kind]
        assert harness.ask(command).code == 0
        assert lines(caplog) == [
            "[NOTIFYME]putMessage in lock cost time(ms)=600, bodyLength=5 AppendMessageResult=PUT_OK",
            "putMessage not in lock eclipse time(ms)=600, bodyLength=5",
        ]

    def test_a_slow_batch_names_all_bodies(
        self, harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        plain(harness, monkeypatch, 300)  # for each of two messages
        assert harness.ask(batch(harness)).code == 0
        assert [line.split(" Append")[0] for line in lines(caplog)] == [
            "[NOTIFYME]putMessage in lock cost time(ms)=600, bodyLength=10",
            "putMessage not in lock eclipse time(ms)=600, bodyLength=10",
        ]

    def test_a_slow_put_in_a_block_logs_two_warnings(
        self, harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        intake = harness.broker.parts.block_parts.intake
        monkeypatch.setattr(intake, "put", slow(harness, intake.put))
        assert harness.send("T", b"12345", properties={"delayInSeconds": "60"}).code == 0
        assert len(lines(caplog)) == 2

    def test_a_put_that_is_slow_outside_the_append_logs_one_warning(
        self, harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        harness.broker.parts.fast_send = None
        monkeypatch.setattr(put_module, "park", slow(harness, put_module.park))
        assert harness.send("T", b"12345").code == 0
        assert lines(caplog) == ["putMessage not in lock eclipse time(ms)=600, bodyLength=5"]

    def test_a_slow_put_that_fails_is_logged_with_its_result(
        self, harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fail(*arguments: Any) -> None:
            raise ValueError

        harness.broker.parts.fast_send = None
        monkeypatch.setattr(harness.broker.parts.store, "append", slow(harness, fail))
        assert harness.send("T", b"12345").remark == "UNKNOWN_ERROR"
        assert lines(caplog)[0].endswith("AppendMessageResult=UNKNOWN_ERROR")

    def test_a_put_of_500_ms_logs_no_warning(
        self, harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        plain(harness, monkeypatch, 500)
        harness.send("T")
        assert lines(caplog) == []

    @pytest.mark.kernels
    def test_a_slow_kernel_call_logs_one_warning(
        self, harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """One call serves many sends, so the line has the time of the call."""
        harness.send("T")
        fast, connection = harness.broker.parts.fast_send, harness.connect()
        assert fast is not None
        monkeypatch.setattr(fast, "_call", slow(harness, fast._call))
        end = harness.broker.parts.store.log.end
        harness.submit(harness.send_command("T", properties={"UNIQ_KEY": "K"}), connection)
        harness.tick()
        size = harness.broker.parts.store.log.end - end
        assert lines(caplog) == [
            f"[NOTIFYME]putMessage in lock cost time(ms)=600, sends=1, appended bytes={size} in one kernel call"
        ]

    def test_a_slow_tick_logs_a_warning(self, harness: BrokerHarness, caplog: pytest.LogCaptureFixture) -> None:
        """A release is not the put of a client, so the broker logs the slow tick."""
        releaser = harness.broker.parts.releaser
        releaser.release = slow(harness, releaser.release)  # type: ignore[method-assign]
        harness.send("T")
        harness.broker.tick()
        assert "a tick took 600 ms: its sends, pulls and releases waited" in caplog.messages


class TestBrokerStatus:
    def test_the_longest_put_does_not_count_other_slow_ticks(
        self, harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        harness.send("T")
        harness.broker.parts.ticks.begin()
        harness.clock.advance(700)  # a tick that is slow for another reason
        harness.settle()
        assert status(harness)["putMessageEntireTimeMax"] == "0"
        plain(harness, monkeypatch, 30)
        harness.send("T")
        found = status(harness)
        assert (found["putMessageEntireTimeMax"], found["getMessageEntireTimeMax"]) == ("30", "0")
        assert "[10~50ms]:1 " in found["putMessageDistributeTime"]
        assert float(found["putLatency999"]) == pytest.approx(30)

    @pytest.mark.kernels
    def test_each_send_of_a_kernel_call_counts(self, harness: BrokerHarness) -> None:
        harness.send("T")
        for name in ("A", "B"):
            harness.send("T", properties={"UNIQ_KEY": name})
        assert harness.broker.parts.fast_send is not None and harness.broker.parts.fast_send.served == 2
        assert harness.broker.parts.stats.put_times.puts.count == 3

    def test_a_rejected_put_is_not_counted(self, harness: BrokerHarness) -> None:
        harness.broker.parts.health.reject_sends("the disk is full")
        harness.send("T")
        assert harness.broker.parts.stats.put_times.puts.count == 0

    def test_the_status_shows_the_longest_read(self, harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
        harness.send("T")
        monkeypatch.setattr(pull_module, "read_queue", slow(harness, pull_module.read_queue, 40))
        harness.pull("T")
        found = status(harness)
        assert (found["putMessageEntireTimeMax"], found["getMessageEntireTimeMax"]) == ("0", "40")

    def test_the_status_shows_the_capacities_in_force(self, tmp_path: Path) -> None:
        chosen = {
            "send_thread_pool_queue_capacity": 11,
            "pull_thread_pool_queue_capacity": 12,
            "lite_pull_thread_pool_queue_capacity": 13,
            "query_thread_pool_queue_capacity": 14,
            "end_transaction_pool_queue_capacity": 15,
        }
        with BrokerHarness(tmp_path, **chosen) as harness:
            found = status(harness)
        pools = ("send", "pull", "litePull", "query", "ack")
        assert [found[f"{pool}ThreadPoolQueueCapacity"] for pool in pools] == ["11", "12", "13", "14", "0"]
        assert found["EndTransactionThreadPoolQueueCapacity"] == "15"

    def test_the_status_shows_the_queue_sizes_of_the_round(self, harness: BrokerHarness) -> None:
        connection = harness.connect()
        for _ in range(3):
            harness.submit(harness.send_command("T"), connection)
        harness.clock.advance(20)
        asked = harness.submit(Command(code=RequestCode.GET_BROKER_RUNTIME_INFO), connection)
        harness.tick()
        assert asked.answer is not None
        found = json.loads(asked.answer.body)["table"]
        assert (found["sendThreadPoolQueueSize"], found["sendThreadPoolQueueHeadWaitTimeMills"]) == ("3", "20")
        assert (found["pullThreadPoolQueueSize"], found["pullThreadPoolQueueHeadWaitTimeMills"]) == ("0", "0")
        assert status(harness)["sendThreadPoolQueueSize"] == "0"
