"""When answers wait for the disk, and what they say when it fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

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
    """SYNC_FLUSH, with an fsync that the test lets happen."""
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

    def test_one_flush_frees_many(self, harness: BrokerHarness, worker: HeldWorker) -> None:
        asks = [harness.submit(harness.send_command("T"), harness.connect()) for _ in range(10)]
        harness.tick()
        syncs = len(harness.disk.syncs)
        worker.work()
        worker.tell()
        harness.tick()
        assert all(asked.answer is not None and asked.answer.code == 0 for asked in asks)
        assert len(harness.disk.syncs) == syncs + 1

    def test_what_comes_during_a_flush_waits_for_the_next(self, harness: BrokerHarness, worker: HeldWorker) -> None:
        first = harness.submit(harness.send_command("T"))
        harness.tick()
        second = harness.submit(harness.send_command("T"))
        harness.tick()
        worker.run(1)
        harness.tick()
        assert first.answer is not None and second.answer is None
        harness.run_jobs()
        assert second.answer is not None and second.answer.code == 0

    def test_in_the_order_of_the_log(self, harness: BrokerHarness, worker: HeldWorker) -> None:
        connection = harness.connect()
        asks = [harness.submit(harness.send_command("T"), connection) for _ in range(5)]
        harness.tick()
        harness.run_jobs()
        assert list(connection.answers) == [asked.opaque for asked in asks]

    @pytest.mark.parametrize(("wait", "waits"), [("true", True), ("false", False), ("x", False), (None, True)])
    def test_wait_false_does_not_wait(self, harness: BrokerHarness, wait: str | None, waits: bool) -> None:
        asked = harness.submit(harness.send_command("T", properties={} if wait is None else {props.WAIT: wait}))
        harness.tick()
        assert (asked.answer is None) is waits

    def test_a_delayed_message_waits_too(self, harness: BrokerHarness) -> None:
        asked = harness.submit(harness.send_command("T", delay_ms=5000))
        harness.tick()
        assert asked.answer is None
        harness.run_jobs()
        assert asked.answer is not None and asked.answer.ext["recallHandle"]

    def test_a_burst_puts_nothing_off(self, harness: BrokerHarness) -> None:
        """Who comes next would wait for all of it."""
        harness.submit(harness.send_command("T", properties={props.WAIT: "false"}))
        harness.tick()
        harness.run_jobs()
        harness.submit(harness.send_command("T", properties={props.WAIT: "false"}))
        harness.tick()
        harness.broker.flush.tick(harness.broker.now_monotonic_ms() + 500, is_burst=True)
        harness.run_jobs()
        assert harness.broker.store.log.synced == harness.broker.store.log.end

    def test_pulls_do_not_wait(self, harness: BrokerHarness) -> None:
        harness.submit(harness.send_command("T", b"x"))
        harness.tick()
        assert harness.bodies("T") == [b"x"]

    def test_a_message_sent_back_waits_too(self, harness: BrokerHarness) -> None:
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
    def test_it_is_answered_when_the_time_is_over(self, harness: BrokerHarness) -> None:
        asked = harness.submit(harness.send_command("T"))
        harness.advance(4900)
        assert asked.answer is None
        harness.advance(5200)
        assert asked.answer is not None
        assert asked.answer.code == ResponseCode.FLUSH_DISK_TIMEOUT
        assert asked.answer.ext["queueOffset"] == "0" and asked.answer.ext["msgId"]
        harness.run_jobs()  # and the late flush answers nobody twice
        assert harness.bodies("T") == [b"body"]

    def test_at_the_time(self, harness: BrokerHarness) -> None:
        harness.restart(sync_flush_timeout_ms=1234)
        due_ms = harness.now_ms + 1234
        asked = harness.submit(harness.send_command("T"))
        while asked.answer is None:
            harness.advance_to_next()
        assert harness.now_ms == due_ms

    def test_after_an_idle_spell(self, harness: BrokerHarness, worker: HeldWorker) -> None:
        harness.tick()
        harness.clock.advance(5000)
        asked = harness.submit(harness.send_command("T"))
        harness.tick()
        worker.work()
        worker.tell()
        harness.tick()
        assert asked.answer is not None and asked.answer.code == 0


class TestFailure:
    ERROR = OSError(5, "Input/output error")

    def test_the_broker_has_failed(self, harness: BrokerHarness, worker: HeldWorker) -> None:
        asked = harness.submit(harness.send_command("T"))
        harness.tick()
        worker.fail_next(self.ERROR)
        worker.run()
        harness.tick()
        assert harness.broker.failure is self.ERROR
        assert asked.answer is None or asked.answer.code != 0
        assert harness.send("T", properties={props.WAIT: "false"}).code == ResponseCode.SERVICE_NOT_AVAILABLE
        harness.advance(500)
        assert harness.send("T", properties={props.WAIT: "false"}).code == ResponseCode.SERVICE_NOT_AVAILABLE

    def test_nothing_is_acknowledged_after_it(self, harness: BrokerHarness, worker: HeldWorker) -> None:
        asked = harness.submit(harness.send_command("T"))
        harness.tick()
        worker.fail_next(self.ERROR)
        worker.run(1)
        for _ in range(20):
            harness.run_jobs()
            harness.advance(500)
        assert asked.answer is None or asked.answer.code != 0

    def test_who_waits_is_told(self, harness: BrokerHarness, worker: HeldWorker) -> None:
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
        assert harness.broker.flush.next_ms() is None
        assert harness.broker.next_tick_ms() > 0

    def test_a_flush_that_ends_well_after_another_failure_frees_nobody(
        self, harness: BrokerHarness, worker: HeldWorker
    ) -> None:
        asked = harness.submit(harness.send_command("T"))
        harness.tick()
        synced = harness.broker.store.log.synced
        harness.broker.fail(self.ERROR)
        worker.run()
        harness.tick()
        assert asked.answer is not None and asked.answer.code == ResponseCode.FLUSH_DISK_TIMEOUT
        assert harness.broker.store.log.synced == synced

    def test_nothing_is_released_after_it(self, harness: BrokerHarness, worker: HeldWorker) -> None:
        harness.submit(harness.send_command("T", delay_ms=2000))
        harness.tick()
        worker.fail_next(self.ERROR)
        worker.run(1)
        end = harness.broker.store.log.end
        harness.clock.advance(3000)
        harness.tick()
        harness.tick()
        assert harness.broker.store.log.end == end

    def test_a_mark_that_cannot_be_written_is_a_failure(self, harness: BrokerHarness, worker: HeldWorker) -> None:
        model = PipelineModel(harness)
        model.is_patient = False
        model.work()
        worker.fail_next(self.ERROR)
        worker.run()
        assert harness.broker.failure is self.ERROR

    def test_no_turn_is_committed_after_it(self, harness: BrokerHarness) -> None:
        model = PipelineModel(harness)
        harness.submit(harness.send_command("T", delay_ms=20_000))
        harness.run_jobs()
        model.open()
        harness.advance(4000)
        plan = model.plan()
        assert plan is not None
        winners = [model.hand_over(plan, task) for task in model.read(plan)]
        harness.broker.fail(self.ERROR)
        for step in (lambda: model.commit(plan, winners), model.plan, model.open):
            with pytest.raises(Refused, match="STALE: the broker stops"):
                step()
        assert harness.broker.timer.turns.turn == plan.turn - 1

    def test_offsets_that_cannot_be_saved_are_not(self, harness: BrokerHarness, worker: HeldWorker) -> None:
        harness.broker.consumer_offsets.commit("g", "T", 0, 5)
        harness.advance(6000)
        worker.fail_next(self.ERROR)
        worker.run()
        assert harness.broker.failure is None


class TestAsync:
    @pytest.fixture
    def harness(self, tmp_path: Path, worker: HeldWorker) -> Iterator[BrokerHarness]:
        with BrokerHarness(tmp_path, worker=worker) as running:
            running.run_jobs()
            yield running

    def test_answers_do_not_wait(self, harness: BrokerHarness) -> None:
        assert harness.send("T").code == 0

    def test_a_flush_follows_within_the_interval(self, harness: BrokerHarness) -> None:
        harness.advance(1000)
        harness.send("T")
        harness.advance(500)
        harness.run_jobs()
        assert harness.broker.store.log.synced == harness.broker.store.log.end

    def test_few_pages_wait_for_more_and_not_for_ever(self, harness: BrokerHarness) -> None:
        harness.restart(flush_commit_log_least_pages=4, flush_commit_log_thorough_interval=3000)
        log = harness.broker.store.log
        harness.send("T", bytes(20_000))
        harness.advance(600)
        harness.run_jobs()
        assert log.synced == log.end  # pages enough
        harness.send("T")
        assert harness.broker.next_tick_ms() > 0
        harness.advance(2000)
        harness.run_jobs()
        assert log.synced < log.end
        harness.advance(1000)
        harness.run_jobs()
        assert log.synced == log.end

    def test_while_a_burst_leaves_it_takes_some_intervals(self, harness: BrokerHarness) -> None:
        flush, log = harness.broker.flush, harness.broker.store.log
        harness.advance(1000)
        harness.send("T")
        harness.run_jobs()
        assert log.synced == log.end, "the last flush was long ago"
        harness.send("T")
        now_ms = harness.broker.now_monotonic_ms()
        flush.tick(now_ms + 500 * BURST_INTERVALS - 1, is_burst=True)
        harness.run_jobs()
        assert log.synced < log.end
        flush.tick(now_ms + 500 * BURST_INTERVALS, is_burst=True)
        harness.run_jobs()
        assert log.synced == log.end

    def test_a_long_interval_is_no_longer_in_a_burst(self, harness: BrokerHarness) -> None:
        harness.restart(flush_interval_ms=BURST_MS_MAX)
        flush, log = harness.broker.flush, harness.broker.store.log
        harness.send("T")
        harness.run_jobs()
        harness.send("T")
        flush.tick(harness.broker.now_monotonic_ms() + BURST_MS_MAX, is_burst=True)
        harness.run_jobs()
        assert log.synced == log.end

    def test_much_is_flushed_in_a_burst_too(self, harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(flush_module, "BURST_BYTES_MAX", 10_000)
        harness.send("T")
        harness.run_jobs()
        harness.send("T", bytes(10_000))
        harness.broker.flush.tick(harness.broker.now_monotonic_ms() + 500, is_burst=True)
        harness.run_jobs()
        assert harness.broker.store.log.synced == harness.broker.store.log.end

    def test_what_is_ahead_of_the_end_is_left_alone(self, harness: BrokerHarness) -> None:
        """It was stored to so that a store costs no fault, which a flush of it would bring back."""
        harness.send("T")
        log = harness.broker.store.log
        file = log.files.file_at(0)
        ahead = 64 * PAGE_BYTES
        file.array[ahead] = 1
        harness.advance(1000)
        harness.run_jobs()
        assert log.synced == log.end < ahead
        assert harness.disk.holds(file.path, 0, log.end)
        assert not harness.disk.holds(file.path, ahead, ahead + 1)
        file.array[ahead] = 0

    def test_nothing_is_flushed_when_nothing_is_new(self, harness: BrokerHarness) -> None:
        harness.send("T")
        harness.advance(500)
        harness.run_jobs()
        harness.disk.syncs.clear()
        harness.advance(2000)
        harness.run_jobs()
        assert not [path for path in harness.disk.syncs if path.parent.name == "commitlog"]
