"""The requests of a pipeline for its turns: long poll, plan, upload and commit, and the time of a turn."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.broker.polls import poll
from wheelmq.broker.turns import pace
from wheelmq.broker.turns.coordinator import LOOK_MS
from wheelmq.broker.turns.pace import AGE_MS, BURST_PACES, ROWS_AT_ONCE
from wheelmq.delay.ring import BURST
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.errors import CallError, Refused
from wheelmq.testing import invariants
from wheelmq.testing.disk import SimulatedDisk
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import Done, Fault, PipelineModel, lease_token
from wheelmq.testing.workers import HeldWorker

PACE_MS = 1000
"""The default of the setting pipeline_pace_ms."""


class TestWhenATurnIsDue:
    def plan_after(self, harness: BrokerHarness, model: PipelineModel, ms: int) -> bool:
        self.wait(harness, ms)
        return model.plan() is not None

    @staticmethod
    def wait(harness: BrokerHarness, ms: int) -> None:
        """Advance the clock. The broker ticks as often as a broker that gets polls."""
        harness.advance(ms, harness.tick, every_ms=LOOK_MS // 2)

    @pytest.fixture(autouse=True)
    def opened(self, harness: BrokerHarness, model: PipelineModel) -> None:
        model.open()
        harness.advance(PACE_MS)

    def test_no_turn_is_due_without_messages(self, harness: BrokerHarness, model: PipelineModel) -> None:
        assert not any(self.plan_after(harness, model, 1000) for _ in range(60))

    def test_no_turn_is_due_for_plain_messages(self, harness: BrokerHarness, model: PipelineModel) -> None:
        for _ in range(10):
            harness.send("T")
        assert not any(self.plan_after(harness, model, 1000) for _ in range(20))

    def test_a_turn_is_due_when_a_message_has_waited_long_enough(
        self, harness: BrokerHarness, model: PipelineModel
    ) -> None:
        harness.send("T", delay_ms=60_000)
        assert not self.plan_after(harness, model, AGE_MS - 1)
        assert self.plan_after(harness, model, 1 + LOOK_MS)

    def test_a_turn_is_due_for_a_message_due_soon(self, harness: BrokerHarness, model: PipelineModel) -> None:
        harness.send("T", delay_ms=4000)
        assert self.plan_after(harness, model, 1)

    def test_a_turn_is_due_for_many_messages(self, harness: BrokerHarness, model: PipelineModel) -> None:
        for _ in range(999):
            harness.submit(harness.send_command("T", delay_ms=60_000))
        assert not self.plan_after(harness, model, 1)
        harness.send("T", delay_ms=60_000)
        assert self.plan_after(harness, model, 1)

    def test_turns_keep_their_pace_unless_very_many_messages_wait(
        self, harness: BrokerHarness, model: PipelineModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert ROWS_AT_ONCE == 50_000
        monkeypatch.setattr(pace, "ROWS_AT_ONCE", 20)
        harness.send("T", delay_ms=3000)
        assert model.turn()
        harness.send("T", delay_ms=3000)
        harness.advance(PACE_MS - 1)
        assert not model.turn()
        for _ in range(20):
            harness.send("T", delay_ms=3000)
        assert model.turn()

    def test_turns_are_less_frequent_while_a_burst_is_released(
        self, harness: BrokerHarness, model: PipelineModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        harness.send("T", delay_ms=4000)
        assert model.turn()
        harness.send("T", delay_ms=5000)
        monkeypatch.setattr(harness.broker.parts.releaser._ring, "count", BURST)
        assert not self.plan_after(harness, model, BURST_PACES * PACE_MS - 1)
        assert self.plan_after(harness, model, 1)

    def test_a_turn_is_due_before_the_messages_of_a_slot_are_due(
        self, harness: BrokerHarness, model: PipelineModel
    ) -> None:
        harness.send("T", delay_ms=15_000)
        self.wait(harness, AGE_MS + LOOK_MS)
        assert model.turn()
        turns = 0
        while not turns and harness.now_ms < 1_800_000_000_250 + 30_000:
            self.wait(harness, 100)
            turns += model.turn()
        left_ms = 1_800_000_000_250 + PACE_MS + 15_000 - harness.now_ms
        assert 1000 < left_ms <= 5000  # about half the lead before the due time

    def test_a_poll_is_held_until_a_turn_is_due(self, harness: BrokerHarness, model: PipelineModel) -> None:
        asked = poll(harness, model.epoch)
        harness.advance(500)
        assert asked.answer is None
        harness.send("T", delay_ms=3000)
        harness.advance(LOOK_MS)
        assert asked.answer is not None and asked.answer.code == 0

    @pytest.mark.parametrize(("asked_ms", "held_ms"), [(100, 100), (1000, 1000), (60_000, 1000), (-5, 0)])
    def test_a_poll_is_held_for_a_second_at_most(
        self, harness: BrokerHarness, model: PipelineModel, asked_ms: int, held_ms: int
    ) -> None:
        asked = poll(harness, model.epoch, asked_ms)
        if held_ms:
            harness.advance(held_ms - 1)
            assert asked.answer is None
            harness.advance(1)
        assert asked.answer is not None and asked.answer.code == ResponseCode.PULL_NOT_FOUND


class TestPlan:
    def test_a_repeated_poll_gets_the_same_plan(self, harness: BrokerHarness, model: PipelineModel) -> None:
        model.open()
        harness.send("T", delay_ms=3000)
        harness.advance(1000)
        first = model.plan()
        harness.send("T", delay_ms=3000)
        harness.advance(5000)
        assert first is not None and model.plan() == first

    def test_a_plan_covers_only_messages_on_disk(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path, worker=HeldWorker()) as harness:
            model = PipelineModel(harness)
            model.open()
            harness.advance(PACE_MS)
            harness.run_jobs()
            model.is_patient = False
            harness.send("T", delay_ms=3000)
            assert model.plan() is None
            harness.send("T", delay_ms=3000)  # after the flush began
            harness.run_jobs(1)
            plan = model.plan()
            assert plan is not None and plan.index_to == 1
            invariants.check(harness.broker)

    def test_no_plan_exists_before_the_last_turn_is_on_disk(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path, worker=HeldWorker()) as harness:
            model = PipelineModel(harness)
            harness.send("T", delay_ms=3000)
            harness.advance(PACE_MS)
            assert model.work() is Done.COMMITTED
            model.is_patient = False
            harness.send("T", delay_ms=3000)
            harness.clock.advance(PACE_MS)
            assert model.plan() is None
            invariants.check(harness.broker)

    def test_a_new_lease_repeats_the_turn(self, harness: BrokerHarness, model: PipelineModel) -> None:
        model.open()
        harness.send("T", delay_ms=3000)
        harness.advance(1000)
        first = model.plan()
        model.open()
        second = model.plan()
        assert first is not None and second is not None
        assert (second.turn, second.epoch, second.index_to) == (first.turn, first.epoch + 1, first.index_to)


class TestCommit:
    @pytest.fixture(autouse=True)
    def due(self, harness: BrokerHarness, model: PipelineModel) -> None:
        model.open()
        for i in range(10):
            harness.send("T", b"%d" % i, delay_ms=3000 + 1000 * i)
        harness.advance(1000)

    def finish(self, harness: BrokerHarness, model: PipelineModel) -> None:
        harness.advance(15_000, model.work, 500)
        assert sorted(harness.bodies("T")) == [b"%d" % i for i in range(10)]
        invariants.check(harness.broker)

    def test_a_repeated_commit_takes_effect_once(self, harness: BrokerHarness, model: PipelineModel) -> None:
        model.fault = lambda code, command: Fault.REPEAT
        assert model.turn()
        assert harness.broker.parts.timer.turns.turn == 1
        invariants.check(harness.broker)
        model.fault = lambda code, command: Fault.DELIVER
        self.finish(harness, model)

    def test_a_commit_whose_answer_is_lost_takes_effect(self, harness: BrokerHarness, model: PipelineModel) -> None:
        model.fault = lambda code, command: (
            Fault.LOSE_ANSWER if code == RequestCode.WMQ_PIPELINE_COMMIT else Fault.DELIVER
        )
        with pytest.raises(CallError):
            model.turn()
        assert harness.broker.parts.timer.turns.turn == 1
        model.fault = lambda code, command: Fault.DELIVER
        self.finish(harness, model)

    @pytest.mark.parametrize("turn", [-1, 0, 2])
    def test_a_commit_of_another_turn_is_rejected(
        self, harness: BrokerHarness, model: PipelineModel, turn: int
    ) -> None:
        plan = model.plan()
        assert plan is not None
        winners = [model.hand_over(plan, task) for task in model.read(plan)]
        answer = harness.ask_code(
            RequestCode.WMQ_PIPELINE_COMMIT, b"[]", epoch=model.epoch, turn=turn, token=lease_token(harness)
        )
        assert answer.code == ResponseCode.INVALID_PARAMETER
        model.commit(plan, winners)
        self.finish(harness, model)

    def test_a_commit_of_another_lease_is_rejected(self, harness: BrokerHarness, model: PipelineModel) -> None:
        plan = model.plan()
        assert plan is not None
        winners = [model.hand_over(plan, task) for task in model.read(plan)]
        model.open()
        with pytest.raises(Refused, match="STALE"):
            model.commit(plan, winners)
        self.finish(harness, model)

    def test_a_commit_without_all_parts_changes_nothing(self, harness: BrokerHarness, model: PipelineModel) -> None:
        model.index_parts = 3
        plan = model.plan()
        assert plan is not None
        winners = [model.hand_over(plan, task) for task in model.read(plan)]
        before = (
            harness.broker.parts.timer.indexed_to,
            harness.broker.parts.timer.log.end,
            harness.broker.parts.timer.pending.armed.count,
        )
        with pytest.raises(Refused, match="TURN_REFUSED") as refused:
            model.commit(plan, winners[:-1])
        assert refused.value.code == ResponseCode.ILLEGAL_OPERATION
        assert (
            harness.broker.parts.timer.indexed_to,
            harness.broker.parts.timer.log.end,
            harness.broker.parts.timer.pending.armed.count,
        ) == before
        model.commit(plan, winners)
        self.finish(harness, model)

    @pytest.mark.parametrize("body", [b"", b"{}", b"[{}]", b"[1]"])
    def test_a_commit_with_an_invalid_body_is_rejected(
        self, harness: BrokerHarness, model: PipelineModel, body: bytes
    ) -> None:
        model.plan()
        answer = harness.ask_code(
            RequestCode.WMQ_PIPELINE_COMMIT, body, epoch=model.epoch, turn=1, token=lease_token(harness)
        )
        assert answer.code == ResponseCode.SYSTEM_ERROR

    def test_a_turn_may_have_many_parts_attempts_and_chunks(self, harness: BrokerHarness, model: PipelineModel) -> None:
        model.index_parts, model.walk_parts, model.attempts, model.chunk_rows = 3, 4, 2, 2
        self.finish(harness, model)

    def test_lost_uploads_are_retried(self, harness: BrokerHarness, model: PipelineModel) -> None:
        uploads: list[int] = []

        def every_other(code: RequestCode, command: Command) -> Fault:
            if code != RequestCode.WMQ_PIPELINE_UPLOAD:
                return Fault.DELIVER
            uploads.append(1)
            return Fault.LOSE_REQUEST if len(uploads) % 2 else Fault.LOSE_ANSWER if len(uploads) % 4 else Fault.DELIVER

        model.fault = every_other
        self.finish(harness, model)
        assert len(uploads) > 4

    def test_a_late_upload_is_rejected(self, harness: BrokerHarness, model: PipelineModel) -> None:
        model.fault = lambda code, command: (
            Fault.DELAY if code == RequestCode.WMQ_PIPELINE_UPLOAD and not model.delayed else Fault.DELIVER
        )
        assert model.turn()
        (answer,) = model.deliver_delayed()
        assert answer is not None and answer.code == ResponseCode.INVALID_PARAMETER
        self.finish(harness, model)

    def test_a_commit_on_a_full_disk_changes_nothing(
        self, harness: BrokerHarness, model: PipelineModel, disk: SimulatedDisk
    ) -> None:
        for _ in range(150):  # a file of the timer log holds 100 units
            harness.submit(harness.send_command("T", delay_ms=30_000))
        harness.tick()
        model.index_parts = 2
        plan = model.plan()
        assert plan is not None and plan.index_to == 160
        winners = [model.hand_over(plan, task) for task in model.read(plan)]
        disk.is_full = lambda path: path.parent.name == "timerlog" and path.name != f"{0:020d}"
        with pytest.raises(Refused):
            model.commit(plan, winners)
        disk.is_full = lambda path: False
        assert harness.broker.parts.timer.log.end == 0
