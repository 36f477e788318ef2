"""The broker does the pipeline's work while the pipeline is away: no message is late, lost or released twice."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from wheelmq.broker.turns import fallback
from wheelmq.delay.timer import index_lane, staging, wheel_lane
from wheelmq.delay.timer.mark import MarkFile, load_check
from wheelmq.delay.timer.view import StoreUnreadable
from wheelmq.formats.disk import properties as props
from wheelmq.net.errors import Refused
from wheelmq.testing import invariants
from wheelmq.testing.clock import ManualClock
from wheelmq.testing.disk import SimulatedDisk
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import Done, PipelineModel
from wheelmq.testing.stops import Died, Stops
from wheelmq.testing.workers import HeldWorker

LEAD_MS = 30_000
GUARD_MS = wheel_lane.GUARD_MS
WIDE = {"timer_lead_ms": LEAD_MS, "timer_slots": 600, "timer_roll_window_slots": 400}
"""A lead as in production, and a wheel in which no message of these tests rolls."""


@pytest.fixture
def harness(tmp_path: Path, clock: ManualClock, disk: SimulatedDisk) -> Iterator[BrokerHarness]:
    with BrokerHarness(tmp_path / "store", clock=clock, disk=disk, **WIDE) as running:
        yield running


@pytest.fixture
def held() -> HeldWorker:
    return HeldWorker()


@pytest.fixture
def waiting(tmp_path: Path, held: HeldWorker) -> Iterator[BrokerHarness]:
    """Yield a broker whose jobs off the loop wait for the test."""
    with BrokerHarness(tmp_path / "store", background=held, **WIDE) as running:
        yield running


def send(harness: BrokerHarness, delays_ms: list[int], name: str = "m") -> dict[bytes, int]:
    """Send a message for each delay. Returns the due times by body."""
    due = {}
    for i, delay_ms in enumerate(delays_ms):
        body = f"{name}{i}".encode()
        due[body] = harness.now_ms + delay_ms
        assert harness.send("T", body, deliver_ms=due[body]).code == 0
    return due


def index(harness: BrokerHarness, model: PipelineModel) -> None:
    """Run the pipeline until it has indexed all messages."""
    harness.advance(4000, model.work, 500)
    assert harness.broker.parts.timer.indexed_to == harness.broker.parts.timer.queue.end


def lateness(harness: BrokerHarness, due: dict[bytes, int]) -> dict[bytes, int]:
    """Return how late each message was released. Each message must be there once."""
    records = harness.read_queue("T")
    found = {record.message.body: record.store_ms - due[record.message.body] for record in records}
    assert len(found) == len(records) == len(due), (len(found), len(records), len(due))
    return found


def armed_by_lane(harness: BrokerHarness) -> int:
    return harness.broker.parts.timer.pending.armed_by["wheel_lane"]


class TestWheelLane:
    @pytest.mark.parametrize("stop", ["stays up", "killed", "stopped"])
    def test_each_message_leaves_at_its_millisecond(self, harness: BrokerHarness, stop: str) -> None:
        due = send(harness, [35_000 + 977 * i for i in range(150)])
        index(harness, PipelineModel(harness))
        for _ in range(6):
            harness.advance(31_000)
            invariants.check(harness.broker)
            if stop != "stays up":
                harness.restart(clean=stop == "stopped")
        assert set(lateness(harness, due).values()) == {0}
        assert stop != "stays up" or armed_by_lane(harness) > 140

    @pytest.mark.kernels
    def test_each_message_leaves_at_its_millisecond_with_kernels(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path, **WIDE) as harness:
            due = send(harness, [40_000 + 331 * i for i in range(100)])
            index(harness, PipelineModel(harness))
            harness.advance(90_000)
            assert set(lateness(harness, due).values()) == {0}
            assert armed_by_lane(harness) == len(due)

    def test_the_lane_is_idle_while_a_pipeline_turns(self, harness: BrokerHarness) -> None:
        model = PipelineModel(harness)
        due = send(harness, [1000 + 1777 * i for i in range(60)])
        harness.advance(120_000, model.work, 500)
        assert set(lateness(harness, due).values()) == {0}
        assert armed_by_lane(harness) == 0 and harness.broker.parts.pipeline.fallback.wheel_lane.slots_walked == 0
        assert not harness.broker.parts.pipeline.fallback.is_active

    def test_overdue_messages_leave_at_once(self, harness: BrokerHarness) -> None:
        due = send(harness, [40_000 + 1000 * i for i in range(100)])
        index(harness, PipelineModel(harness))
        harness.clock.advance(90_000)  # the process did not run
        harness.settle()
        out = [due_ms for due_ms in due.values() if due_ms <= harness.now_ms]
        assert len(harness.read_queue("T")) == len(out) > 50
        harness.advance(60_000)
        assert all(late_ms == 0 for body, late_ms in lateness(harness, due).items() if due[body] > max(out))

    def test_a_late_turn_releases_no_message_twice(self, harness: BrokerHarness) -> None:
        model = PipelineModel(harness)
        due = send(harness, [40_000 + 500 * i for i in range(40)])
        index(harness, model)
        harness.advance(17_000)
        plan = model.plan()
        assert plan is not None and plan.walk_rows > 10
        winners = [model.hand_over(plan, task) for task in model.read(plan)]
        harness.advance(21_000)  # the broker has scanned the same slots, and has released some of the messages
        assert harness.read_queue("T") and armed_by_lane(harness) > 0
        model.commit(plan, winners)
        invariants.check(harness.broker)
        harness.advance(60_000)
        assert set(lateness(harness, due).values()) == {0}

    def test_a_message_indexed_during_the_scan_of_its_slot_leaves_on_time(
        self, waiting: BrokerHarness, held: HeldWorker
    ) -> None:
        model = PipelineModel(waiting)
        due = send(waiting, [40_000, 40_500])
        index(waiting, model)
        waiting.advance(32_500)
        assert len(held) and armed_by_lane(waiting) == 0
        due |= send(waiting, [3200, 3700], "late")  # for slots of the job, which runs
        assert model.work() is Done.COMMITTED
        assert waiting.broker.parts.timer.indexed_to == 4
        waiting.run_jobs()
        invariants.check(waiting.broker)
        waiting.advance(20_000, waiting.run_jobs, 500)
        assert set(lateness(waiting, due).values()) == {0}

    def test_a_message_indexed_after_the_scan_of_its_slot_leaves_on_time(self, harness: BrokerHarness) -> None:
        model = PipelineModel(harness)
        due = send(harness, [40_000])
        index(harness, model)
        harness.advance(32_000)
        assert harness.broker.parts.timer.scans.scanned_through_ms > harness.broker.parts.timer.scans.walked_through_ms
        assert armed_by_lane(harness) == 1
        due |= send(harness, [4200, 4700], "late")
        plan = model.plan()
        if plan is None:
            model.open()
            plan = model.plan()
        assert plan is not None and plan.index_to == 3
        model.commit(plan, [model.hand_over(plan, task) for task in model.read(plan)])
        invariants.check(harness.broker)
        harness.advance(10_000)
        assert set(lateness(harness, due).values()) == {0}

    def test_a_message_due_during_a_job_leaves_when_the_job_ends(
        self, waiting: BrokerHarness, held: HeldWorker
    ) -> None:
        due = send(waiting, [40_000])
        index(waiting, PipelineModel(waiting))
        waiting.advance(37_000)
        held.work()
        waiting.advance(5000)
        assert not waiting.read_queue("T")
        held.report()
        waiting.settle()
        assert lateness(waiting, due) == {b"m0": 6000}

    def test_a_message_cancelled_during_a_scan_is_not_released(self, waiting: BrokerHarness, held: HeldWorker) -> None:
        due = send(waiting, [40_100], "other")
        due_ms = waiting.now_ms + 40_000
        assert waiting.send("T", b"m0", deliver_ms=due_ms, properties={props.UNIQ_KEY: "K"}).code == 0
        index(waiting, PipelineModel(waiting))
        waiting.advance(32_500)
        held.work()
        cancel = {props.TIMER_DEL_UNIQKEY: "T+K"}
        assert waiting.send("T", b"-", deliver_ms=due_ms, properties=cancel).code == 0
        held.report()
        waiting.advance(10_000, waiting.run_jobs, 500)
        assert lateness(waiting, due) == {b"other0": 0}

    def test_the_pipeline_continues_after_the_slots_of_the_broker(self, harness: BrokerHarness) -> None:
        model = PipelineModel(harness)
        due = send(harness, [40_000 + 1000 * i for i in range(150)])
        index(harness, model)
        harness.advance(100_000)
        scanned_ms = harness.broker.parts.timer.scans.scanned_through_ms
        model.open()
        plan = model.plan()
        assert plan is not None and plan.walk_after_ms >= scanned_ms
        model.commit(plan, [model.hand_over(plan, task) for task in model.read(plan)])
        before = armed_by_lane(harness)
        harness.advance(100_000, model.work, 500)
        assert set(lateness(harness, due).values()) == {0} and armed_by_lane(harness) == before

    def test_an_unreadable_slot_does_not_delay_other_slots(
        self, harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        due = send(harness, [40_500, 45_500])
        index(harness, PipelineModel(harness))
        bad_ms = harness.broker.parts.timer.wheel.floor_slot(due[b"m0"])
        read_walk = staging.read_walk

        def read(view: object, after_ms: int, through_ms: int, **options: int) -> object:
            if after_ms < bad_ms <= through_ms:
                raise StoreUnreadable("damaged")
            return read_walk(view, after_ms, through_ms, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(staging, "read_walk", read)
        harness.advance(50_000)
        assert [record.message.body for record in harness.read_queue("T")] == [b"m1"]
        assert harness.read_queue("T")[0].store_ms == due[b"m1"]
        assert f"slot {bad_ms} is damaged" in caplog.text
        monkeypatch.undo()
        harness.restart(clean=False)
        assert lateness(harness, due)[b"m0"] > 0

    def test_more_messages_than_one_job_takes_leave_on_time(
        self, harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(wheel_lane, "ROWS_MAX", 5)
        due = send(harness, [40_000 + 100 * i for i in range(60)])
        index(harness, PipelineModel(harness))
        harness.advance(60_000)
        assert set(lateness(harness, due).values()) == {0}


class TestIndexLane:
    def test_the_broker_indexes_messages_without_a_pipeline(self, harness: BrokerHarness, disk: SimulatedDisk) -> None:
        due = send(harness, [10_000 + 1000 * i for i in range(200)])
        timer = harness.broker.parts.timer
        harness.advance(fallback.AWAY_MS - 2000)
        assert timer.indexed_to == 0
        harness.advance(4000)
        assert timer.indexed_to == timer.queue.end == 200
        mark = MarkFile(disk, harness.broker.parts.paths).load()
        assert mark is not None and mark.queue_offset == 200
        invariants.check(harness.broker)
        harness.advance(40_000)
        harness.restart(clean=False)
        assert harness.broker.parts.timer.indexed_to == 200
        harness.advance(120_000)
        assert set(lateness(harness, due).values()) == {0}
        assert harness.broker.parts.timer.pending.armed_by["near_lane"] == 0

    def test_messages_that_roll_leave_on_time(self, tmp_path: Path) -> None:
        """The wheel and the roll window have 20 s: messages roll, and slots of the wheel are used again."""
        with BrokerHarness(tmp_path) as harness:
            due: dict[bytes, int] = {}
            for i in range(30):
                due |= send(harness, [7000, 33_000 + 100 * i, 95_500], f"{i}-")
                harness.advance(10_000)
            harness.advance(100_000)
            invariants.check(harness.broker)
            assert set(lateness(harness, due).values()) == {0}
            assert harness.broker.parts.timer.indexed_to > 0 and armed_by_lane(harness) > 0

    def test_the_broker_indexes_in_several_steps(self, harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(index_lane, "ROWS_MAX", 7)
        monkeypatch.setattr(fallback, "ROWS_MAX", 7)
        due = send(harness, [100_000 + 10 * i for i in range(50)])
        turns = harness.broker.parts.timer.turns.turn
        harness.advance(fallback.AWAY_MS + 3000)
        timer = harness.broker.parts.timer
        assert timer.indexed_to == 50 and timer.turns.turn >= turns + 8
        assert harness.broker.parts.pipeline.fallback.indexed == 50
        harness.advance(60_000)
        assert set(lateness(harness, due).values()) == {0}

    def test_the_broker_indexes_sooner_when_the_notes_fill_up(
        self, harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(fallback, "CROWDED", 20)
        send(harness, [90_000] * 25)
        harness.advance(fallback.CROWDED_AWAY_MS + 1000)
        assert harness.broker.parts.timer.indexed_to == 25 and harness.broker.parts.timer.pending.notes.count == 0

    def test_the_broker_indexes_only_messages_on_disk(self, tmp_path: Path) -> None:
        flushes = HeldWorker()
        with BrokerHarness(tmp_path, worker=flushes, background=HeldWorker(), **WIDE) as harness:
            send(harness, [90_000] * 3)
            harness.advance(fallback.AWAY_MS + 5000)
            assert harness.broker.parts.timer.indexed_to == 0
            for _ in range(4):
                harness.run_jobs()
                harness.advance(2000)
            assert harness.broker.parts.timer.indexed_to == 3
            invariants.check(harness.broker)

    def test_a_plan_of_a_pipeline_replaces_a_step_of_the_broker(self, waiting: BrokerHarness, held: HeldWorker) -> None:
        due = send(waiting, [100_000] * 3)
        waiting.advance(fallback.AWAY_MS + 1000)
        assert len(held) > 0 and waiting.broker.parts.timer.indexed_to == 0
        held.work()
        model = PipelineModel(waiting)
        model.is_patient = False
        model.open()
        plan = model.plan()
        assert plan is not None and plan.index_to == 3
        held.report()  # the broker discards its own rows
        waiting.tick()
        assert waiting.broker.parts.timer.indexed_to == 0 and waiting.broker.parts.timer.turns.plan == plan
        model.commit(plan, [model.hand_over(plan, task) for task in model.read(plan)])
        assert waiting.broker.parts.timer.indexed_to == 3
        waiting.advance(60_000, waiting.run_jobs, 500)
        assert set(lateness(waiting, due).values()) == {0}

    def test_a_pipeline_that_never_commits_loses_its_lease(
        self, harness: BrokerHarness, caplog: pytest.LogCaptureFixture
    ) -> None:
        model = PipelineModel(harness)
        model.open()
        due = send(harness, [200_000 + 1000 * i for i in range(10)])
        harness.advance(5000, model.renew, 1000)
        plan = model.plan()
        assert plan is not None
        winners = [model.hand_over(plan, task) for task in model.read(plan)]
        harness.advance(fallback.HUNG_MS - 10_000, model.renew, 1000)
        assert harness.broker.parts.timer.indexed_to == 0
        with pytest.raises(Refused, match="STALE"):
            harness.advance(15_000, model.renew, 1000)
        assert "has not committed a turn" in caplog.text
        harness.advance(1000)
        assert harness.broker.parts.timer.indexed_to == 10
        with pytest.raises(Refused, match="STALE"):
            model.commit(plan, winners)
        invariants.check(harness.broker)
        harness.advance(120_000)
        assert set(lateness(harness, due).values()) == {0}

    def test_a_returning_pipeline_has_time_for_its_first_turn(self, harness: BrokerHarness) -> None:
        harness.advance(10 * fallback.HUNG_MS)
        model = PipelineModel(harness)
        send(harness, [300_000])
        harness.advance(2000)
        model.open()
        epoch = model.epoch
        harness.advance(60_000, model.renew, 1000)
        assert harness.broker.parts.timer.turns.epoch == epoch

    def test_an_index_step_on_a_full_disk_is_repeated_later(self, harness: BrokerHarness, disk: SimulatedDisk) -> None:
        """A step without room for its units changes nothing. The broker repeats it when there is room."""
        due = send(harness, [150_000 + 10 * i for i in range(150)])  # more than one file of units
        disk.is_full = lambda path: True
        harness.advance(fallback.AWAY_MS + 5000)
        assert harness.broker.parts.timer.indexed_to == 0 and harness.broker.parts.timer.turns.plan is None
        disk.is_full = lambda path: False
        harness.advance(3000)
        assert harness.broker.parts.timer.indexed_to == 150
        invariants.check(harness.broker)
        harness.advance(100_000)
        assert set(lateness(harness, due).values()) == {0}


POINTS = ("lane.scan", "lane.armed", "commit.units", "mark.before")
"""Failpoints of the wheel lane and of an index step."""


class TestKills:
    def live(self, folder: Path, die_at: int | None) -> tuple[list[str], int]:
        """Let a pipeline index messages and stop. Then kill the broker at failpoint `die_at`.

        Returns the failpoints that the broker passed since the pipeline stopped, and the greatest lateness.
        """
        with Stops() as stops, BrokerHarness(folder, **WIDE) as harness:
            due = send(harness, [35_000 + 4000 * i for i in range(6)])
            index(harness, PipelineModel(harness))
            first = len(stops.passed)
            due |= send(harness, [70_000 + 1000 * i for i in range(3)], "parked")
            if die_at is not None:
                stops.arm(die_at)
            end_ms = harness.now_ms + 75_000
            try:
                harness.advance(75_000)
            except Died:
                stops.disarm()
                harness.restart(clean=False)
                harness.advance(end_ms - harness.now_ms)
            invariants.check(harness.broker)
            assert harness.broker.parts.timer.indexed_to == len(due)
            return stops.passed[first:], max(lateness(harness, due).values())

    def test_a_kill_at_a_failpoint_of_either_lane_delays_no_message(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(fallback, "AWAY_MS", 20_000)
        passed, late_ms = self.live(tmp_path / "whole", None)
        assert late_ms == 0 and set(POINTS) <= set(passed)
        for point in POINTS:
            _, late_ms = self.live(tmp_path / point, passed.index(point))
            assert late_ms == 0, point
        last = len(passed) - 1 - passed[::-1].index("lane.armed")
        assert self.live(tmp_path / "last", last)[1] == 0


class TestTimercheck:
    @pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
    def test_timercheck_names_the_last_released_slot(
        self, harness: BrokerHarness, disk: SimulatedDisk, clean: bool
    ) -> None:
        """Apache RocketMQ would read each slot from there on, and deliver its messages again."""
        due = send(harness, [40_000 + 1000 * i for i in range(60)])
        index(harness, PipelineModel(harness))
        harness.advance(70_000)
        assert set(lateness(harness, {body: due[body] for body in harness.bodies("T")}).values()) == {0}
        paths, now_ms = harness.broker.parts.paths, harness.now_ms
        harness.stop() if clean else harness.crash()
        check = load_check(disk, paths)
        assert check is not None and now_ms - 3000 <= check.last_read_ms <= now_ms
        assert check.queue_offset == len(due)


class TestLog:
    def test_the_start_and_the_end_of_a_fallback_are_logged_once(
        self, harness: BrokerHarness, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        model = PipelineModel(harness)
        send(harness, [40_000 + 1000 * i for i in range(60)])
        index(harness, model)
        assert "no turn came in time" not in caplog.text
        harness.advance(60_000)
        warned = [record for record in caplog.records if "no turn came in time" in record.message]
        assert [record.levelno for record in warned] == [logging.WARNING]
        assert "turns run again" not in caplog.text
        harness.advance(5000, model.work, 500)
        ended = [record for record in caplog.records if "turns run again" in record.message]
        assert [record.levelno for record in ended] == [logging.INFO] and "messages armed" in ended[0].message

    def test_a_start_logs_that_no_pipeline_has_the_lease(
        self, harness: BrokerHarness, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        send(harness, [100_000] * 3)
        index(harness, PipelineModel(harness))
        assert "no pipeline has the lease yet" not in caplog.text
        harness.restart()
        assert "the wheel has 3 units and no pipeline has the lease yet" in caplog.text
        harness.advance(fallback.AWAY_MS + 1000)
        assert "no turn came in time (no pipeline has the lease)" in caplog.text
