"""Answers that wait for the disk, and failures of the disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from wheelmq.broker import flush as flush_module
from wheelmq.broker.flush import BURST_INTERVALS, BURST_MS_MAX, PAGE_BYTES
from wheelmq.formats.disk import properties as props
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.errors import Refused
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel
from wheelmq.testing.workers import HeldWorker


@pytest.fixture
def worker() -> HeldWorker:
    return HeldWorker()


@pytest.fixture
def harness(tmp_path: Path, worker: HeldWorker) -> Iterator[BrokerHarness]:
    """A broker with SYNC_FLUSH. The test decides when an fsync runs."""
    with BrokerHarness(tmp_path, worker=worker, flush_mode="SYNC_FLUSH") as running:
        running.run_jobs()
        yield running


class TestSync:
    def test_an_answer_waits_for_the_disk(self, harness: BrokerHarness) -> None:
        asked = harness.submit(harness.send_command("T"))
        harness.advance(1000)
        assert asked.answer is None
        harness.run_jobs()
        assert asked.answer is not None and asked.answer.code == 0
        assert asked.answer.ext["queueOffset"] == "0"

    def test_one_flush_answers_many_sends(self, harness: BrokerHarness, worker: HeldWorker) -> None:
        asks = [harness.submit(harness.send_command("T"), harness.connect()) for _ in range(10)]
        harness.tick()
        syncs = len(harness.disk.syncs)
        worker.work()
        worker.report()
        harness.tick()
        assert all(asked.answer is not None and asked.answer.code == 0 for asked in asks)
        assert len(harness.disk.syncs) == syncs + 1

    def test_a_send_during_a_flush_waits_for_the_next_flush(self, harness: BrokerHarness, worker: HeldWorker) -> None:
        first = harness.submit(harness.send_command("T"))
        harness.tick()
        second = harness.submit(harness.send_command("T"))
        harness.tick()
        worker.run(1)
        harness.tick()
        assert first.answer is not None and second.answer is None
        harness.run_jobs()
        assert second.answer is not None and second.answer.code == 0

    def test_answers_follow_the_order_of_the_log(self, harness: BrokerHarness, worker: HeldWorker) -> None:
        connection = harness.connect()
        asks = [harness.submit(harness.send_command("T"), connection) for _ in range(5)]
        harness.tick()
        harness.run_jobs()
        assert list(connection.answers) == [asked.opaque for asked in asks]

    @pytest.mark.parametrize(("wait", "waits"), [("true", True), ("false", False), ("x", False), (None, True)])
    def test_a_send_with_wait_false_does_not_wait_for_the_disk(
        self, harness: BrokerHarness, wait: str | None, waits: bool
    ) -> None:
        asked = harness.submit(harness.send_command("T", properties={} if wait is None else {props.WAIT: wait}))
        harness.tick()
        assert (asked.answer is None) is waits

    def test_a_oneway_send_asks_for_no_flush(self, harness: BrokerHarness) -> None:
        harness.broker.parts.topics.create_for_group("T", 1)
        harness.broker.parts.topics.file.save_now()
        harness.submit(harness.send_command("T"), oneway=True)
        assert not harness.broker.parts.flush.is_asked_for()
        harness.submit(harness.send_command("T"))
        assert harness.broker.parts.flush.is_asked_for()

    def test_a_delayed_send_waits_for_the_disk(self, harness: BrokerHarness) -> None:
        asked = harness.submit(harness.send_command("T", delay_ms=5000))
        harness.tick()
        assert asked.answer is None
        harness.run_jobs()
        assert asked.answer is not None and asked.answer.ext["recallHandle"]

    def test_a_burst_does_not_delay_a_synchronous_flush(self, harness: BrokerHarness) -> None:
        """The next send would wait for all unflushed records."""
        harness.submit(harness.send_command("T", properties={props.WAIT: "false"}))
        harness.tick()
        harness.run_jobs()
        harness.submit(harness.send_command("T", properties={props.WAIT: "false"}))
        harness.tick()
        harness.broker.parts.flush.tick(harness.broker.parts.clock.monotonic_ms() + 500, is_burst=True)
        harness.run_jobs()
        assert harness.broker.parts.store.log.synced == harness.broker.parts.store.log.end

    def test_pulls_do_not_wait_for_the_disk(self, harness: BrokerHarness) -> None:
        harness.submit(harness.send_command("T", b"x"))
        harness.tick()
        assert harness.bodies("T") == [b"x"]

    def test_a_message_sent_back_waits_for_the_disk(self, harness: BrokerHarness) -> None:
        harness.submit(harness.send_command("T", b"x"))
        harness.tick()
        harness.run_jobs()
        (record,) = harness.read_queue("T")
        ext = {"offset": str(record.position), "group": "g", "delayLevel": "3"}
        asked = harness.submit(Command(code=RequestCode.CONSUMER_SEND_MSG_BACK, ext=ext, version=479))
        harness.tick()
        assert asked.answer is None
        harness.run_jobs()
        assert asked.answer is not None and asked.answer.code == 0


class TestTimeout:
    def test_a_send_whose_flush_is_late_gets_a_timeout(self, harness: BrokerHarness) -> None:
        asked = harness.submit(harness.send_command("T"))
        harness.advance(4900)
        assert asked.answer is None
        harness.advance(5200)
        assert asked.answer is not None
        assert asked.answer.code == ResponseCode.FLUSH_DISK_TIMEOUT
        assert asked.answer.ext["queueOffset"] == "0" and asked.answer.ext["msgId"]
        harness.run_jobs()  # the late flush sends no second answer
        assert harness.bodies("T") == [b"body"]

    def test_the_timeout_is_sent_at_the_configured_time(self, harness: BrokerHarness) -> None:
        harness.restart(sync_flush_timeout_ms=1234)
        due_ms = harness.now_ms + 1234
        asked = harness.submit(harness.send_command("T"))
        while asked.answer is None:
            harness.advance_to_next()
        assert harness.now_ms == due_ms

    def test_a_send_after_an_idle_time_does_not_time_out(self, harness: BrokerHarness, worker: HeldWorker) -> None:
        harness.tick()
        harness.clock.advance(5000)
        asked = harness.submit(harness.send_command("T"))
        harness.tick()
        worker.work()
        worker.report()
        harness.tick()
        assert asked.answer is not None and asked.answer.code == 0


class TestFailure:
    ERROR = OSError(5, "Input/output error")

    def test_a_failure_in_a_round_asks_for_the_tick_that_answers_waiting_sends(
        self, harness: BrokerHarness, worker: HeldWorker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = harness.submit(harness.send_command("T"))
        harness.tick()  # its flush is running, so no other can begin
        assert len(worker) and first.answer is None
        pending = harness.broker.parts.timer.pending
        monkeypatch.setattr(pending, "take_journal", mock.Mock(side_effect=OSError(5, "planted")))
        harness.submit(harness.send_command("T"))
        assert harness.end_round()
        assert harness.broker.parts.health.failure is not None
        assert first.answer is not None and first.answer.code == ResponseCode.FLUSH_DISK_TIMEOUT

    def test_a_failure_in_a_tick_answers_waiting_sends_in_that_tick(
        self, harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        harness.allows_failed_steps = True
        timer = harness.submit(harness.send_command("T", b"timer", delay_ms=500))
        harness.end_round()
        pending = harness.broker.parts.timer.pending
        harness.clock.advance(500)
        monkeypatch.setattr(pending, "take_journal", mock.Mock(side_effect=ValueError("planted")))
        harness.broker.tick()  # the release fails the broker, and the process may stop before another tick
        assert harness.broker.parts.health.failure is not None
        timer.connection.flush()
        assert timer.answer is not None and timer.answer.code == ResponseCode.FLUSH_DISK_TIMEOUT

    def test_a_failed_flush_fails_the_broker(self, harness: BrokerHarness, worker: HeldWorker) -> None:
        asked = harness.submit(harness.send_command("T"))
        harness.tick()
        worker.fail_next(self.ERROR)
        worker.run()
        harness.tick()
        assert harness.broker.parts.health.failure is self.ERROR
        assert asked.answer is None or asked.answer.code != 0
        assert harness.send("T", properties={props.WAIT: "false"}).code == ResponseCode.SERVICE_NOT_AVAILABLE
        harness.advance(500)
        assert harness.send("T", properties={props.WAIT: "false"}).code == ResponseCode.SERVICE_NOT_AVAILABLE

    def test_no_send_is_acknowledged_after_a_failed_flush(self, harness: BrokerHarness, worker: HeldWorker) -> None:
        asked = harness.submit(harness.send_command("T"))
        harness.tick()
        worker.fail_next(self.ERROR)
        worker.run(1)
        for _ in range(20):
            harness.run_jobs()
            harness.advance(500)
        assert asked.answer is None or asked.answer.code != 0

    def test_waiting_sends_get_a_timeout_after_a_failed_flush(self, harness: BrokerHarness, worker: HeldWorker) -> None:
        before = harness.submit(harness.send_command("T"))
        harness.tick()
        during = harness.submit(harness.send_command("T"))
        worker.fail_next(self.ERROR)
        worker.run(1)
        harness.tick()
        for asked in (before, during):
            assert asked.answer is not None and asked.answer.code == ResponseCode.FLUSH_DISK_TIMEOUT
        harness.disk.syncs.clear()
        harness.run_jobs()
        assert not harness.disk.syncs
        assert harness.broker.parts.flush.next_ms() is None
        assert harness.broker.next_tick_ms() > 0

    def test_a_flush_that_succeeds_after_a_failure_acknowledges_no_send(
        self, harness: BrokerHarness, worker: HeldWorker
    ) -> None:
        asked = harness.submit(harness.send_command("T"))
        harness.tick()
        synced = harness.broker.parts.store.log.synced
        harness.broker.parts.health.fail(self.ERROR)
        worker.run()
        harness.tick()
        assert asked.answer is not None and asked.answer.code == ResponseCode.FLUSH_DISK_TIMEOUT
        assert harness.broker.parts.store.log.synced == synced

    def test_no_message_is_released_after_a_failed_flush(self, harness: BrokerHarness, worker: HeldWorker) -> None:
        harness.submit(harness.send_command("T", delay_ms=2000))
        harness.tick()
        worker.fail_next(self.ERROR)
        worker.run(1)
        end = harness.broker.parts.store.log.end
        harness.clock.advance(3000)
        harness.tick()
        harness.tick()
        assert harness.broker.parts.store.log.end == end

    def test_a_failed_write_of_the_mark_fails_the_broker(self, harness: BrokerHarness, worker: HeldWorker) -> None:
        model = PipelineModel(harness)
        model.is_patient = False
        model.work()
        worker.fail_next(self.ERROR)
        worker.run()
        assert harness.broker.parts.health.failure is self.ERROR

    def test_no_turn_is_committed_after_a_failure(self, harness: BrokerHarness) -> None:
        model = PipelineModel(harness)
        harness.submit(harness.send_command("T", delay_ms=20_000))
        harness.run_jobs()
        model.open()
        harness.advance(4000)
        plan = model.plan()
        assert plan is not None
        winners = [model.hand_over(plan, task) for task in model.read(plan)]
        harness.broker.parts.health.fail(self.ERROR)
        for step in (lambda: model.commit(plan, winners), model.plan, model.open):
            with pytest.raises(Refused, match="STALE: the broker is stopping"):
                step()
        assert harness.broker.parts.timer.turns.turn == plan.turn - 1

    def test_a_failed_save_of_offsets_does_not_fail_the_broker(
        self, harness: BrokerHarness, worker: HeldWorker
    ) -> None:
        harness.broker.parts.consumer_offsets.commit("g", "T", 0, 5)
        harness.advance(6000)
        worker.fail_next(self.ERROR)
        worker.run()
        assert harness.broker.parts.health.failure is None


class TestAsync:
    @pytest.fixture
    def harness(self, tmp_path: Path, worker: HeldWorker) -> Iterator[BrokerHarness]:
        with BrokerHarness(tmp_path, worker=worker) as running:
            running.run_jobs()
            yield running

    def test_answers_do_not_wait_for_the_disk(self, harness: BrokerHarness) -> None:
        assert harness.send("T").code == 0

    def test_a_flush_follows_within_the_interval(self, harness: BrokerHarness) -> None:
        harness.advance(1000)
        harness.send("T")
        harness.advance(500)
        harness.run_jobs()
        assert harness.broker.parts.store.log.synced == harness.broker.parts.store.log.end

    def test_few_pages_are_flushed_after_the_thorough_interval(self, harness: BrokerHarness) -> None:
        harness.restart(flush_commit_log_least_pages=4, flush_commit_log_thorough_interval=3000)
        log = harness.broker.parts.store.log
        harness.send("T", bytes(20_000))
        harness.advance(600)
        harness.run_jobs()
        assert log.synced == log.end  # enough pages
        harness.send("T")
        assert harness.broker.next_tick_ms() > 0
        harness.advance(2000)
        harness.run_jobs()
        assert log.synced < log.end
        harness.advance(1000)
        harness.run_jobs()
        assert log.synced == log.end

    def test_a_flush_during_a_burst_waits_for_several_intervals(self, harness: BrokerHarness) -> None:
        flush, log = harness.broker.parts.flush, harness.broker.parts.store.log
        harness.advance(1000)
        harness.send("T")
        harness.run_jobs()
        assert log.synced == log.end, "the last flush was long ago"
        harness.send("T")
        now_ms = harness.broker.parts.clock.monotonic_ms()
        flush.tick(now_ms + 500 * BURST_INTERVALS - 1, is_burst=True)
        harness.run_jobs()
        assert log.synced < log.end
        flush.tick(now_ms + 500 * BURST_INTERVALS, is_burst=True)
        harness.run_jobs()
        assert log.synced == log.end

    def test_a_burst_does_not_prolong_a_long_interval(self, harness: BrokerHarness) -> None:
        harness.restart(flush_interval_ms=BURST_MS_MAX)
        flush, log = harness.broker.parts.flush, harness.broker.parts.store.log
        harness.send("T")
        harness.run_jobs()
        harness.send("T")
        flush.tick(harness.broker.parts.clock.monotonic_ms() + BURST_MS_MAX, is_burst=True)
        harness.run_jobs()
        assert log.synced == log.end

    def test_many_bytes_are_flushed_during_a_burst(
        self, harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(flush_module, "BURST_BYTES_MAX", 10_000)
        harness.send("T")
        harness.run_jobs()
        harness.send("T", bytes(10_000))
        harness.broker.parts.flush.tick(harness.broker.parts.clock.monotonic_ms() + 500, is_burst=True)
        harness.run_jobs()
        assert harness.broker.parts.store.log.synced == harness.broker.parts.store.log.end

    def test_pages_after_the_end_of_the_log_are_not_flushed(self, harness: BrokerHarness) -> None:
        """The broker has touched these pages to avoid page faults. A flush would bring the faults back."""
        harness.send("T")
        log = harness.broker.parts.store.log
        file = log.files.file_at(0)
        ahead = 64 * PAGE_BYTES
        file.array[ahead] = 1
        harness.advance(1000)
        harness.run_jobs()
        assert log.synced == log.end < ahead
        assert harness.disk.holds(file.path, 0, log.end)
        assert not harness.disk.holds(file.path, ahead, ahead + 1)
        file.array[ahead] = 0

    def test_no_flush_runs_without_new_records(self, harness: BrokerHarness) -> None:
        harness.send("T")
        harness.advance(500)
        harness.run_jobs()
        harness.disk.syncs.clear()
        harness.advance(2000)
        harness.run_jobs()
        assert not [path for path in harness.disk.syncs if path.parent.name == "commitlog"]
