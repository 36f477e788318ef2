"""The broker's own lanes with pipelines that crash, damaged files and unexpected errors."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tests.unit.broker.test_fallback import WIDE, index, lateness, send
from wheelmq.broker.overdue import overdue, pipeline_problem
from wheelmq.broker.turns import fallback
from wheelmq.delay import notes
from wheelmq.delay.timer import skipped, staging, wheel_lane
from wheelmq.delay.timer.mark import load_check
from wheelmq.delay.timer.view import StoreUnreadable
from wheelmq.formats.disk.timer import TIMER_UNIT
from wheelmq.formats.units import QueueOffset
from wheelmq.testing import invariants
from wheelmq.testing.clock import ManualClock
from wheelmq.testing.disk import SimulatedDisk
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel


@pytest.fixture
def harness(tmp_path: Path, clock: ManualClock, disk: SimulatedDisk) -> Iterator[BrokerHarness]:
    with BrokerHarness(tmp_path / "store", clock=clock, disk=disk, **WIDE) as running:
        yield running


def crash(harness: BrokerHarness) -> None:
    """Let a pipeline open a lease, ask for a plan, and die."""
    model = PipelineModel(harness, holder_id="supervisor")
    model.open()
    model.plan()


class TestCrashLoop:
    @pytest.mark.parametrize("period_ms", [4000, 8000, 15_000, 64_000, 90_000])
    def test_no_message_waits_longer_than_for_a_hung_pipeline(self, harness: BrokerHarness, period_ms: int) -> None:
        send(harness, [30_000 + 5000 * i for i in range(30)], "indexed")  # the wheel lane begins the fallback
        index(harness, PipelineModel(harness, holder_id="supervisor"))
        timer, oldest_ms, waited_ms = harness.broker.parts.timer, harness.now_ms, 0
        for i in range(720_000 // period_ms):
            if timer.indexed_to == timer.queue.end:
                oldest_ms = harness.now_ms
            send(harness, [250_000], f"{i}-")
            crash(harness)
            harness.advance(period_ms)
            waited_ms = max(waited_ms, harness.now_ms - oldest_ms if timer.indexed_to < timer.queue.end else 0)
        assert harness.broker.parts.pipeline.fallback.indexed > 0
        assert waited_ms <= fallback.HUNG_MS + 2 * period_ms
        invariants.check(harness.broker)

    def test_messages_without_notes_leave_on_time_during_a_crash_loop(
        self, harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A message without a note reaches its slot only through an index step."""
        monkeypatch.setattr(notes, "NOTES_MAX", 30)
        monkeypatch.setattr(fallback, "CROWDED", 22)
        due = send(harness, [40_000 + 1000 * i for i in range(200)], "indexed")  # the wheel lane always has work
        index(harness, PipelineModel(harness, holder_id="supervisor"))
        for i in range(85):
            due |= send(harness, [200_000, 210_000], f"{i}-") if i < 50 else {}
            crash(harness)
            harness.advance(8000)
        assert harness.broker.parts.timer.pending.notes.passed_over > 0
        assert set(lateness(harness, due).values()) == {0}

    def test_a_step_without_messages_on_disk_does_not_end_a_takeover(
        self, harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The broker takes the lease back for its step, and not for a step that could not begin."""
        lane = harness.broker.parts.pipeline.fallback.index_lane
        start, left = lane.start, [3]

        def start_late(now_ms: int, durable: int) -> bool:
            left[0] -= 1
            return left[0] < 0 and start(now_ms, durable)  # type: ignore[arg-type]

        monkeypatch.setattr(lane, "start", start_late)
        model = PipelineModel(harness)
        model.open()
        send(harness, [300_000] * 3)
        harness.advance(fallback.HUNG_MS - 3000, model.renew, 1000)
        harness.advance(12_000)
        assert harness.broker.parts.pipeline.fallback.indexed == 3

    def test_a_new_pipeline_has_time_for_its_first_turn(self, harness: BrokerHarness) -> None:
        """A crash long ago does not shorten the time of a pipeline that starts later."""
        crash(harness)
        harness.advance(10 * fallback.HUNG_MS)
        model = PipelineModel(harness, holder_id="supervisor")
        send(harness, [300_000])
        model.open()
        epoch = model.epoch
        harness.advance(fallback.HUNG_MS - 10_000, model.renew, 1000)
        assert harness.broker.parts.timer.turns.epoch == epoch


def write_link(harness: BrokerHarness, position: int, target: int) -> None:
    """Overwrite the link of the timer log unit at `position`."""
    files = harness.broker.parts.timer.log.files
    at = position % files.file_bytes + TIMER_UNIT.position_of("previous_position")
    files.file_at(position).view[at : at + 8] = target.to_bytes(8, "big", signed=True)


class TestDamagedSlots:
    def test_a_link_into_a_missing_file_does_not_delay_other_slots(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path, timer_log_file_bytes=52 * 5 + 16, **WIDE) as harness:
            due = send(harness, [80_000] * 6, "other")  # more than the first file of the timer log
            due |= send(harness, [40_500, 40_600, 45_500, 50_500])
            index(harness, PipelineModel(harness))
            slot_ms = harness.broker.parts.timer.wheel.floor_slot(due[b"m0"])
            write_link(harness, harness.broker.parts.timer.wheel.last_position(slot_ms), 0)
            harness.advance(120_000)
            released = {
                record.message.body: record.store_ms - due[record.message.body] for record in harness.read_queue("T")
            }
            assert {body for body, late_ms in released.items() if late_ms == 0} == set(due) - {b"m0", b"m1"}

    @pytest.mark.parametrize("error", [ZeroDivisionError(), OSError(5, "cannot be read")])
    def test_an_unexpected_error_in_a_slot_does_not_block_later_slots(
        self, harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch, error: Exception
    ) -> None:
        """The error delays later slots for some tries only."""
        due = send(harness, [40_500, 60_500])
        index(harness, PipelineModel(harness))
        fail_in_slot(harness, monkeypatch, due[b"m0"], error)
        harness.advance(70_000)
        assert [record.store_ms for record in harness.read_queue("T")] == [due[b"m1"]]

    def test_a_skipped_slot_is_overdue_until_it_can_be_read(
        self, harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch, disk: SimulatedDisk
    ) -> None:
        model = PipelineModel(harness)
        due = send(harness, [40_500, 45_500])
        index(harness, model)
        fail_in_slot(harness, monkeypatch, due[b"m0"], StoreUnreadable("damaged"))
        harness.advance(60_000)
        harness.advance(5000, model.work, 500)  # turns do not read the slot either: it is not later than A
        timer, broker = harness.broker.parts.timer, harness.broker
        slot_ms = timer.wheel.floor_slot(due[b"m0"])
        assert overdue(broker.parts.metric_sources) == (1, harness.now_ms - slot_ms - 1000)
        assert "1 slot cannot be read" in pipeline_problem(broker.parts)
        check = load_check(disk, broker.parts.paths)
        assert check is not None and check.last_read_ms == slot_ms == timer.timercheck(None).last_read_ms
        invariants.check(broker)
        monkeypatch.undo()
        harness.advance(skipped.RETRY_MS)
        assert lateness(harness, due)[b"m1"] == 0
        assert (
            not timer.scans.skipped
            and "slots" not in pipeline_problem(broker.parts)
            and overdue(broker.parts.metric_sources).messages == 0
        )
        assert timer.timercheck(None).last_read_ms > due[b"m1"]

    def test_timercheck_after_a_stop_is_before_a_skipped_slot(
        self, harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch, disk: SimulatedDisk
    ) -> None:
        due = send(harness, [40_500, 45_500])
        index(harness, PipelineModel(harness))
        fail_in_slot(harness, monkeypatch, due[b"m0"], StoreUnreadable("damaged"))
        harness.advance(60_000)
        slot_ms, paths = harness.broker.parts.timer.wheel.floor_slot(due[b"m0"]), harness.broker.parts.paths
        harness.stop()
        check = load_check(disk, paths)
        assert check is not None and check.last_read_ms == slot_ms

    def test_many_skipped_slots_do_not_delay_other_slots(
        self, harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        due = send(harness, [40_000 + 1000 * i for i in range(20)])
        index(harness, PipelineModel(harness))
        add = harness.broker.parts.timer.scans.skipped
        for i in range(0, 20, 2):
            slot_ms = harness.broker.parts.timer.wheel.floor_slot(due[f"m{i}".encode()])
            fail_in_slot(harness, monkeypatch, slot_ms, StoreUnreadable("damaged"))
        monkeypatch.setattr(wheel_lane, "TRIES", 1)
        monkeypatch.setattr(wheel_lane, "RETRY_MS", 10)
        harness.advance(90_000)
        assert len(add) == 10
        found = {record.message.body: record.store_ms - due[record.message.body] for record in harness.read_queue("T")}
        assert found == {f"m{i}".encode(): 0 for i in range(1, 20, 2)}
        monkeypatch.undo()
        harness.advance(2 * skipped.RETRY_MS)
        assert len(lateness(harness, due)) == 20 and not add

    def test_a_slot_whose_chain_is_cut_short_is_skipped_and_retried(self, harness: BrokerHarness) -> None:
        """A damaged link that ends the chain early loses no message silently."""
        due = send(harness, [40_100, 40_200, 40_300, 45_500])
        index(harness, PipelineModel(harness))
        slot_ms = harness.broker.parts.timer.wheel.floor_slot(due[b"m0"])
        newest = harness.broker.parts.timer.wheel.last_position(slot_ms)
        write_link(harness, newest, -1)
        harness.advance(60_000)
        assert (
            slot_ms in harness.broker.parts.timer.scans.skipped
            and overdue(harness.broker.parts.metric_sources).messages == 3
        )
        write_link(harness, newest, newest - TIMER_UNIT.size)
        harness.advance(skipped.RETRY_MS)
        assert len(lateness(harness, due)) == 4

    @pytest.mark.kernels
    def test_one_damaged_record_does_not_delay_other_messages(
        self, harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Units of Apache and of older versions have no details, so the lane reads the records."""
        monkeypatch.setattr(staging, "_take_details", lambda rows, units: np.zeros(len(rows), np.bool_))
        due = send(harness, [40_100, 40_200, 40_300, 40_400, 40_500, 45_500])
        index(harness, PipelineModel(harness))
        position = int(harness.broker.parts.timer.queue.read(QueueOffset(2), 1)["position"][0])
        harness.broker.parts.store.log.files.file_at(position).view[position + 4 : position + 8] = bytes(4)
        harness.advance(60_000)
        released = {r.message.body: r.store_ms - due[r.message.body] for r in harness.read_queue("T")}
        assert released == {body: 0 for body in due if body != b"m2"}
        assert f"positions [{position}]" in caplog.text and not harness.broker.parts.timer.scans.skipped

    def test_the_timer_log_keeps_the_units_of_a_skipped_slot(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with BrokerHarness(tmp_path, timer_log_file_bytes=52 * 5 + 16, **WIDE) as harness:
            due = send(harness, [40_500] + [45_500 + i for i in range(30)])
            index(harness, PipelineModel(harness))
            fail_in_slot(harness, monkeypatch, due[b"m0"], StoreUnreadable("damaged"))
            harness.advance(60_000)
            timer = harness.broker.parts.timer
            drop = timer.drop_log()
            if drop is not None:
                drop()
            assert timer.log.files.start <= timer.wheel.last_position(timer.wheel.floor_slot(due[b"m0"]))


def fail_in_slot(harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch, due_ms: int, error: Exception) -> None:
    """Let each scan of the slot of `due_ms` raise `error`."""
    slot_ms = harness.broker.parts.timer.wheel.floor_slot(due_ms)
    read_walk = staging.read_walk

    def read(view: object, after_ms: int, through_ms: int, **options: int) -> object:
        if after_ms < slot_ms <= through_ms:
            raise error
        return read_walk(view, after_ms, through_ms, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(staging, "read_walk", read)


class TestEnd:
    def test_a_plan_without_a_commit_does_not_end_the_fallback(
        self, harness: BrokerHarness, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("INFO")
        send(harness, [40_000 + 1000 * i for i in range(120)])
        index(harness, PipelineModel(harness))
        harness.advance(40_000)
        model = PipelineModel(harness)
        model.open()
        assert harness.broker.parts.pipeline.fallback.is_active
        assert model.plan() is not None
        harness.advance(30_000, model.renew, 1000)
        assert harness.broker.parts.pipeline.fallback.is_active
        assert "turns run again" not in caplog.text

    def test_a_pipeline_without_work_ends_the_fallback_after_a_lead(
        self, harness: BrokerHarness, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("INFO")
        due = send(harness, [40_000])
        index(harness, PipelineModel(harness))
        harness.advance(60_000)
        assert set(lateness(harness, due).values()) == {0}
        model = PipelineModel(harness)
        harness.advance(25_000, model.work, 1000)
        assert harness.broker.parts.pipeline.fallback.is_active
        harness.advance(10_000, model.work, 1000)
        assert not harness.broker.parts.pipeline.fallback.is_active
        assert caplog.text.count("turns run again") == 1


class TestErrorsOfIndexSteps:
    def test_a_failed_index_step_waits_and_does_not_delay_other_work(
        self, harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        tries = []

        def read(*_: object, **__: object) -> None:
            tries.append(harness.now_ms)
            raise ZeroDivisionError("a defect")

        due = send(harness, [200_000])
        monkeypatch.setattr(staging, "read_index", read)
        harness.advance(fallback.AWAY_MS + 5000)
        assert tries and min(b - a for a, b in pairwise(tries)) >= fallback.STEP_MS
        assert "failed to index messages itself" in caplog.text and "ZeroDivisionError" in caplog.text
        assert not harness.broker.parts.steps.failures
        monkeypatch.undo()
        harness.advance(5000)
        assert harness.broker.parts.timer.indexed_to == 1
        harness.advance(140_000)
        assert set(lateness(harness, due).values()) == {0}

    def test_a_failed_fallback_does_not_fail_the_pipeline_step(
        self, harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object, **__: object) -> None:
            raise ZeroDivisionError("a defect")

        harness.allows_failed_steps = True
        monkeypatch.setattr(harness.broker.parts.pipeline.fallback, "poll", fail)
        model = PipelineModel(harness)
        send(harness, [40_000])
        index(harness, model)  # plans are made in the same tick
        assert harness.broker.parts.steps.failures["fallback"] and not harness.broker.parts.steps.failures["pipeline"]
