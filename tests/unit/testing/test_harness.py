"""The test tools keep their promises, and their checks can fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import Message
from wheelmq.formats.disk.origin import timer_origin
from wheelmq.formats.wire import frame
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.system.disk import StoreLocked
from wheelmq.testing import invariants
from wheelmq.testing.clock import START_MS, ManualClock
from wheelmq.testing.disk import SimulatedDisk
from wheelmq.testing.harness import BrokerHarness, NoAnswer
from wheelmq.testing.pipeline_model import PipelineModel
from wheelmq.testing.stops import Died, Stops
from wheelmq.testing.workers import HeldWorker


class TestClock:
    def test_time_changes_only_by_advance_and_step(self) -> None:
        clock = ManualClock()
        before = clock.monotonic()
        assert clock.now_ms() == clock.now_ms() == START_MS
        clock.advance(7)
        assert clock.now_ms() == START_MS + 7
        assert round((clock.monotonic() - before) * 1000) == 7
        clock.step(-100)
        assert clock.now_ms() == START_MS - 93
        assert round((clock.monotonic() - before) * 1000) == 7

    def test_monotonic_time_counts_the_advanced_milliseconds(self) -> None:
        clock = ManualClock()
        first = clock.monotonic_ms()
        for ms in range(3000):
            assert clock.monotonic_ms() == first + ms
            clock.advance(1)

    def test_advance_rejects_a_negative_duration(self) -> None:
        with pytest.raises(AssertionError):
            ManualClock().advance(-1)

    def test_creep_advances_the_monotonic_clock_at_each_read(self) -> None:
        clock = ManualClock()
        clock.creep_ms = 5
        assert round((clock.monotonic() - clock.monotonic()) * 1000) == -5
        assert clock.now_ms() == START_MS


class TestConnection:
    def test_an_answer_appears_at_the_end_of_a_tick(self, harness: BrokerHarness) -> None:
        asked = harness.submit(Command(code=RequestCode.GET_BROKER_RUNTIME_INFO))
        assert asked.answer is None
        harness.tick()
        assert asked.answer is not None

    def test_a_second_answer_is_an_error(self, harness: BrokerHarness) -> None:
        asked = harness.submit(Command(code=13))
        harness.tick()
        asked.connection.send(frame.encode(Command(code=0, opaque=asked.opaque, flag=frame.FLAG_RESPONSE)))
        with pytest.raises(AssertionError, match="is not waiting for one"):
            harness.tick()

    def test_an_answer_to_a_oneway_request_is_an_error(self, harness: BrokerHarness) -> None:
        asked = harness.submit(Command(code=13), oneway=True)
        asked.connection.send(frame.encode(Command(code=0, opaque=asked.opaque, flag=frame.FLAG_RESPONSE)))
        with pytest.raises(AssertionError, match="is not waiting for one"):
            harness.tick()

    def test_half_a_frame_is_an_error(self, harness: BrokerHarness) -> None:
        harness.client.send(frame.encode(Command(code=0))[:-1])
        with pytest.raises(AssertionError, match="not a whole frame"):
            harness.tick()


class TestHarness:
    def test_a_held_request_raises_no_answer(self, harness: BrokerHarness) -> None:
        harness.send("T")
        with pytest.raises(NoAnswer):
            harness.ask(harness.pull_command("T", 0, 1, hold_ms=1000))

    def test_time_passes_in_the_steps_that_the_broker_asks_for(self, harness: BrokerHarness) -> None:
        moments: list[int] = []
        harness.advance(1000, lambda: moments.append(harness.now_ms - START_MS), 300)
        assert moments == [0, 300, 600, 900]
        assert harness.now_ms == START_MS + 1000

    def test_a_broker_that_never_settles_is_an_error(
        self, harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(harness.broker, "next_tick_ms", lambda: 0)
        monkeypatch.setattr("wheelmq.testing.harness.TICKS_MAX", 50)
        with pytest.raises(AssertionError, match="always has more work"):
            harness.settle()

    def test_a_second_broker_cannot_start_in_the_same_folder(self, harness: BrokerHarness) -> None:
        with pytest.raises(AssertionError):
            harness.start()
        with pytest.raises(StoreLocked):
            BrokerHarness(harness._folder, disk=harness.disk)

    @pytest.mark.parametrize("clean", [True, False])
    def test_stops_release_the_lock_and_drop_connections(self, harness: BrokerHarness, clean: bool) -> None:
        client = harness.client
        harness.restart(clean=clean)
        assert not client.is_open and harness.client is not client
        assert (harness._folder / "abort").exists()

    def test_a_crash_keeps_written_messages_and_sends_no_answer(self, harness: BrokerHarness) -> None:
        harness.send("T", b"w", queue_id=0)
        asked = harness.submit(harness.send_command("T", b"x"))
        harness.crash()
        assert asked.answer is None and not harness.is_running
        harness.start()
        assert harness.bodies("T") == [b"w", b"x"]

    def test_a_crash_discards_the_jobs_of_the_worker(self, tmp_path: Path) -> None:
        worker = HeldWorker()
        with BrokerHarness(tmp_path, worker=worker) as harness:
            harness.send("T")
            harness.advance(1000)
            assert len(worker)
            harness.crash()
            assert len(worker) == 0

    def test_a_power_cut_loses_unsynced_messages(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path, worker=HeldWorker()) as harness:
            harness.send("T", b"synced")
            harness.advance(600)
            harness.run_jobs()
            harness.send("T", b"not synced")
            harness.cut_power(keep=0.0)
            harness.start()
            assert harness.bodies("T") == [b"synced"]

    def test_a_failed_start_does_not_prevent_the_next_start(self, harness: BrokerHarness) -> None:
        harness.stop()
        with pytest.raises(OSError, match="another number of slots"):
            harness.start(timer_slots=61)
        harness.start(timer_slots=60)

    def test_the_same_inputs_write_the_same_log(self, tmp_path: Path) -> None:
        logs = []
        for run in range(2):
            with BrokerHarness(tmp_path / str(run)) as harness:
                for i in range(20):
                    unique = {props.UNIQ_KEY: f"K{i}"}
                    harness.send("T", b"%d" % i, queue_id=-1, delay_ms=100 * i or None, properties=unique)
                harness.advance(3000)
                log = harness.broker.parts.store.log
                logs.append(bytes(log.read(log.start, log.end)))
        assert logs[0] == logs[1]


class TestStops:
    def test_a_stop_is_reached_again_by_its_number(self, harness: BrokerHarness) -> None:
        with Stops() as stops:
            harness.send("T", delay_ms=10)
            harness.advance(10)
        assert "release.before" in stops.passed
        last = stops.passed[-1]
        harness.restart(clean=False)
        with Stops() as whole:
            harness.send("T", delay_ms=10)
            harness.advance(10)
        harness.restart(clean=False)
        with Stops(len(whole.passed) - 1) as again, pytest.raises(Died, match=last.replace(".", r"\.")):
            harness.send("T", delay_ms=10)
            harness.advance(10)
        assert again.passed == whole.passed

    def test_a_stop_ends_only_the_code_within_its_block(self, harness: BrokerHarness) -> None:
        with Stops(0), pytest.raises(Died):
            harness.send("T")
        harness.restart(clean=False)
        harness.send("T")


class TestInvariants:
    """Each invariant fails when it is violated."""

    @pytest.fixture
    def busy(self, harness: BrokerHarness) -> BrokerHarness:
        model = PipelineModel(harness)
        for delay_ms in (500, 9000, 15_000):
            harness.send("T", delay_ms=delay_ms)
        harness.advance(4000, model.work, 500)
        harness.send("T", delay_ms=9000)
        invariants.check(harness.broker)
        return harness

    def test_a_message_settled_twice_is_found(self, busy: BrokerHarness) -> None:
        busy.broker.parts.store.append(Message("T", 0, b"x", {"a": "b"}), settles=timer_origin(0))
        with pytest.raises(AssertionError, match="settled twice"):
            invariants.check(busy.broker)

    def test_a_message_settled_before_it_is_parked_is_found(self, busy: BrokerHarness) -> None:
        busy.broker.parts.store.append(Message("T", 0, b"x", {"a": "b"}), settles=timer_origin(9))
        with pytest.raises(AssertionError, match="before it is parked"):
            invariants.check(busy.broker)

    def test_a_done_bit_without_a_record_is_found(self, busy: BrokerHarness) -> None:
        busy.broker.parts.timer.pending.done.add(timer_origin(1))
        with pytest.raises(AssertionError, match="done bit of queue offset 1 is True"):
            invariants.check(busy.broker)

    def test_e_beyond_the_data_on_disk_is_found(self, busy: BrokerHarness) -> None:
        busy.send("T", delay_ms=9000)
        busy.broker.parts.timer.indexed_to = 5
        with pytest.raises(AssertionError, match="E covers a record that is not on disk"):
            invariants.check(busy.broker)

    def test_missing_timer_log_units_are_found(self, busy: BrokerHarness) -> None:
        busy.broker.parts.timer.log.files.file_at(0).array[:] = 0
        with pytest.raises(AssertionError, match="before E, but has no unit before T"):
            invariants.check(busy.broker)

    def test_a_message_that_no_scan_will_reach_is_found(self, busy: BrokerHarness) -> None:
        busy.broker.parts.timer.scans.walked_through_ms += 60_000
        with pytest.raises(AssertionError, match="stays parked"):
            invariants.check(busy.broker)

    def test_a_missing_consume_queue_unit_is_found(self, busy: BrokerHarness) -> None:
        queue = busy.broker.parts.store.queues.find("T", 0)
        assert queue is not None
        queue.cut(0)  # type: ignore[arg-type]
        with pytest.raises(AssertionError):
            invariants.check(busy.broker)

    def test_a_wrong_end_of_the_log_is_found(self, busy: BrokerHarness, disk: SimulatedDisk) -> None:
        busy.broker.parts.store.log.end -= 1  # type: ignore[assignment]
        with pytest.raises((AssertionError, ValueError)):
            invariants.check(busy.broker)
