"""The pipeline's requests at the broker: lease, long poll, upload, commit, and the time of a turn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from wheelmq.broker.turns import pace
from wheelmq.broker.turns.coordinator import LOOK_MS
from wheelmq.broker.turns.lease_watch import LOOP_OPENINGS
from wheelmq.broker.turns.pace import AGE_MS, BURST_PACES, ROWS_AT_ONCE
from wheelmq.delay.levels.table import DEFAULT_LEVELS, parse_levels
from wheelmq.delay.ring import BURST
from wheelmq.delay.timer.turns import LEASE_MS
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.errors import CallError, Refused
from wheelmq.testing import invariants
from wheelmq.testing.disk import SimulatedDisk
from wheelmq.testing.harness import Ask, BrokerHarness
from wheelmq.testing.pipeline_model import Done, Fault, PipelineModel
from wheelmq.testing.workers import HeldWorker

PACE_MS = 1000
"""The default of the setting pipeline_pace_ms."""


def poll(harness: BrokerHarness, epoch: int, timeout_ms: int = 1000) -> Ask:
    ext = headers.texts(epoch=epoch, timeoutMs=timeout_ms)
    asked = harness.submit(Command(code=RequestCode.WMQ_PIPELINE_PLAN, ext=ext), harness.connect())
    harness.tick()
    return asked


class TestLease:
    def test_the_terms_of_a_lease_describe_the_store(self, harness: BrokerHarness, model: PipelineModel) -> None:
        model.open()
        assert model.terms == {
            "epoch": harness.broker.parts.timer.turns.epoch,
            "broker": "broker-a",
            "store_path": str(harness._folder.resolve()),
            "store_identity": harness.disk.identity(harness.broker.parts.paths.lock),
            "log_file_bytes": 1 << 20,
            "queue_file_bytes": 6000,
            "block_queue_file_bytes": 1200,
            "timer_log_file_bytes": 5216,
            "timer_slots": 60,
            "precision_ms": 1000,
            "roll_window_slots": 20,
            "levels_ms": list(parse_levels(DEFAULT_LEVELS)),
        }

    def test_a_second_pipeline_waits_until_the_lease_lapses(self, harness: BrokerHarness, model: PipelineModel) -> None:
        other = PipelineModel(harness, "other")
        model.open()
        with pytest.raises(Refused, match=r"LEASE_HELD: pipeline 'model' at 10.0.0.1:\d+ holds the lease") as refused:
            other.open()
        assert refused.value.code == ResponseCode.NO_PERMISSION
        assert other.work() is Done.WAITING
        harness.advance(LEASE_MS - 1)
        assert other.work() is Done.WAITING
        harness.advance(1)
        assert other.work() is Done.IDLE
        with pytest.raises(Refused, match="STALE"):
            model.plan()

    def test_two_pipelines_with_one_name_do_not_share_a_lease(
        self, harness: BrokerHarness, model: PipelineModel, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The second one waits, although both have the same host name and process id."""
        twin = PipelineModel(harness, model.name, holder_id="another process")
        epoch = model.open()
        for _ in range(60):
            harness.advance(500)
            model.renew()
            assert twin.work() is Done.WAITING
        assert model.epoch == epoch == harness.broker.parts.timer.turns.epoch
        refused = [record for record in caplog.records if "rejects a lease" in record.message]
        assert 1 <= len(refused) <= 4, "one line in ten seconds"
        assert "pipeline 'model' at 10.0.0.1:" in refused[0].message

    def test_the_process_of_the_holder_opens_the_lease_again_at_once(
        self, harness: BrokerHarness, model: PipelineModel
    ) -> None:
        epoch = model.open()
        assert PipelineModel(harness, model.name).open() == epoch + 1
        assert PipelineModel(harness, "renamed", holder_id=model.holder_id).open() == epoch + 2

    def test_no_answer_reveals_the_id_of_the_holder(self, harness: BrokerHarness) -> None:
        model = PipelineModel(harness, "p", holder_id="THE-SECRET")
        model.open()
        answer = harness.ask_code(RequestCode.WMQ_METRICS, topics=5)
        assert b'"holder":"p"' in bytes(answer.body) and b"THE-SECRET" not in bytes(answer.body)
        for code in (RequestCode.WMQ_PIPELINE_OPEN, RequestCode.WMQ_PIPELINE_RENEW):
            answer = harness.ask_code(code, name="p", epoch=1)
            assert answer.code and "THE-SECRET" not in f"{answer.remark}{answer.ext}"

    def test_a_loop_of_openings_is_logged(
        self, harness: BrokerHarness, model: PipelineModel, caplog: pytest.LogCaptureFixture
    ) -> None:
        for _ in range(LOOP_OPENINGS):
            assert "opened the lease within" not in caplog.text
            model.open()
            harness.advance(1000)
        assert "is the last of 4 that opened the lease within 60 s without a turn" in caplog.text

    def test_openings_with_turns_between_them_are_no_loop(
        self, harness: BrokerHarness, model: PipelineModel, caplog: pytest.LogCaptureFixture
    ) -> None:
        for _ in range(2 * LOOP_OPENINGS):
            model.open()
            harness.send("T", delay_ms=3000)
            harness.advance(1200)
            assert model.work() is Done.COMMITTED
        assert "opened the lease within" not in caplog.text

    def test_a_lease_that_lapses_is_logged_once(
        self, harness: BrokerHarness, model: PipelineModel, caplog: pytest.LogCaptureFixture
    ) -> None:
        model.open()
        harness.advance(LEASE_MS - 100)
        assert "has not renewed" not in caplog.text
        harness.advance(60_000)
        assert caplog.text.count("pipeline 'model' has not renewed its lease for") == 1

    def test_two_stores_share_no_epoch(self, tmp_path: Path) -> None:
        """A task of a turn at one broker is STALE at another one that has taken its address."""
        epochs = set()
        for seed in range(5):
            with BrokerHarness(tmp_path / str(seed), seed=seed) as harness:
                epochs.add(PipelineModel(harness).open())
        assert len(epochs) == 5

    def test_a_renewed_lease_does_not_lapse(self, harness: BrokerHarness, model: PipelineModel) -> None:
        other = PipelineModel(harness, "other")
        model.open()
        for _ in range(10):
            harness.advance(LEASE_MS // 2)
            model.renew()
        assert other.work() is Done.WAITING

    def test_long_polls_renew_the_lease(self, harness: BrokerHarness, model: PipelineModel) -> None:
        epoch = model.open()
        for _ in range(12):
            poll(harness, epoch)
            harness.advance(1000)
        assert PipelineModel(harness, "other").work() is Done.WAITING

    def test_an_opening_is_answered_once_the_epoch_is_on_disk(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path, worker=HeldWorker()) as harness:
            asked = harness.submit(Command(code=RequestCode.WMQ_PIPELINE_OPEN, ext={"name": "p", "holderId": "1"}))
            harness.advance(500)
            assert asked.answer is None
            harness.run_jobs()
            assert asked.answer is not None and asked.answer.code == 0
            late = harness.submit(Command(code=RequestCode.WMQ_PIPELINE_OPEN, ext={"name": "p", "holderId": "1"}))
            harness.advance(harness.broker.parts.settings.requests.response_timeout_ms)
            assert late.answer is not None and late.answer.code == ResponseCode.SYSTEM_ERROR

    @pytest.mark.parametrize("code", [RequestCode.WMQ_PIPELINE_RENEW, RequestCode.WMQ_PIPELINE_PLAN])
    def test_a_restart_ends_the_lease(self, harness: BrokerHarness, model: PipelineModel, code: RequestCode) -> None:
        epoch = model.open()
        harness.restart()
        answer = harness.ask_code(code, epoch=epoch)
        assert (answer.code, (answer.remark or "")[:6]) == (ResponseCode.INVALID_PARAMETER, "STALE:")

    @pytest.mark.parametrize("code", [9100, 9101, 9102, 9103, 9104, 9105])
    def test_a_request_without_its_required_fields_is_rejected(self, harness: BrokerHarness, code: int) -> None:
        assert harness.ask(Command(code=code)).code == ResponseCode.SYSTEM_ERROR


class TestSilence:
    """The answer to a renewal has the time since the last work for a turn."""

    def quiet_ms(self, harness: BrokerHarness, model: PipelineModel) -> int:
        answer = harness.ask_code(RequestCode.WMQ_PIPELINE_RENEW, epoch=model.epoch)
        return int(answer.ext["quietMs"])

    def test_the_quiet_time_grows_until_a_turn_makes_progress(
        self, harness: BrokerHarness, model: PipelineModel
    ) -> None:
        model.over_the_wire = True
        model.open()
        harness.send("T", delay_ms=3000)
        harness.advance(1200)
        assert self.quiet_ms(harness, model) == 1200
        plan = model.plan()
        assert plan is not None and self.quiet_ms(harness, model) == 0
        harness.advance(300)
        (task,) = model.read(plan)
        assert self.quiet_ms(harness, model) == 0
        harness.advance(300)
        winner = model.hand_over(plan, task)
        assert self.quiet_ms(harness, model) == 0
        harness.advance(300)
        assert self.quiet_ms(harness, model) == 300
        model.commit(plan, [winner])
        assert self.quiet_ms(harness, model) == 0

    def test_requests_of_a_former_lease_do_not_end_the_quiet_time(
        self, harness: BrokerHarness, model: PipelineModel
    ) -> None:
        model.open()
        harness.send("T", delay_ms=3000)
        harness.advance(1000)
        plan = model.plan()
        assert plan is not None
        (task,) = model.read(plan)
        model.open()
        harness.advance(700)
        with pytest.raises(Refused, match="STALE"):
            model.upload(plan, task)
        with pytest.raises(Refused, match="STALE"):
            model.commit(plan, [])
        assert poll(harness, plan.epoch).answer is not None
        assert self.quiet_ms(harness, model) == 700


def test_a_commit_of_a_former_lease_changes_nothing(harness: BrokerHarness, model: PipelineModel) -> None:
    """The application did all of its turn except the commit. Another one then took the lease and did the turn."""
    model.open()
    harness.send("T", b"once", delay_ms=3000)
    harness.advance(1000)
    plan = model.plan()
    assert plan is not None
    winners = [model.hand_over(plan, task) for task in model.read(plan)]
    harness.advance(6000)
    other = PipelineModel(harness, "other")
    assert other.work() in (Done.COMMITTED, Done.IDLE)
    timer = harness.broker.parts.timer
    before = (
        timer.indexed_to,
        timer.log.end,
        timer.scans.walked_through_ms,
        timer.turns.turn,
        timer.pending.armed.count,
    )
    with pytest.raises(Refused, match="STALE"):
        model.commit(plan, winners)
    assert (
        timer.indexed_to,
        timer.log.end,
        timer.scans.walked_through_ms,
        timer.turns.turn,
        timer.pending.armed.count,
    ) == before
    harness.advance(3000, other.work, 500)
    assert harness.bodies("T") == [b"once"]
    invariants.check(harness.broker)


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
        answer = harness.ask_code(RequestCode.WMQ_PIPELINE_COMMIT, b"[]", epoch=model.epoch, turn=turn)
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
        answer = harness.ask_code(RequestCode.WMQ_PIPELINE_COMMIT, body, epoch=model.epoch, turn=1)
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


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[PipelineModel, PipelineModel]]:
    with BrokerHarness(tmp_path) as harness:
        yield PipelineModel(harness, "one"), PipelineModel(harness, "two")


def test_two_pipelines_take_turns_by_their_leases(two: tuple[PipelineModel, PipelineModel]) -> None:
    """The first one dies, and the second one takes over. The first one comes back and waits."""
    one, other = two
    harness = one.harness
    sent = []
    for i in range(30):
        sent.append(b"%d" % i)
        harness.send("T", sent[-1], delay_ms=12_000)
        harness.advance(1000, one.work if i < 10 else other.work, 500)
    assert one.committed and other.committed
    assert one.work() in (Done.BROKEN, Done.WAITING)
    assert one.work() is Done.WAITING
    harness.advance(13_000, other.work, 500)
    assert harness.bodies("T") == sent
    invariants.check(harness.broker)
