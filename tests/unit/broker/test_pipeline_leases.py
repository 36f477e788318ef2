"""Leases of pipelines at the broker: one holder at a time, renewals, lapses, and the quiet time of a holder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.broker.polls import poll
from wheelmq.broker.turns.lease_watch import LOOP_OPENINGS
from wheelmq.delay.levels.table import DEFAULT_LEVELS, parse_levels
from wheelmq.delay.timer.turns import LEASE_MS
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.errors import Refused
from wheelmq.testing import invariants
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import Done, PipelineModel, lease_token, open_lease
from wheelmq.testing.workers import HeldWorker


class TestLease:
    def test_the_terms_of_a_lease_describe_the_store(self, harness: BrokerHarness, model: PipelineModel) -> None:
        model.open()
        assert model.terms == {
            "epoch": harness.broker.parts.timer.turns.epoch,
            "token": lease_token(harness),
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
            asked = harness.submit(open_lease(harness, "p", "1"))
            harness.advance(500)
            assert asked.answer is None
            harness.run_jobs()
            assert asked.answer is not None and asked.answer.code == 0
            late = harness.submit(open_lease(harness, "p", "1"))
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
        command = Command(code=code)
        harness.broker.parts.pipeline_key.sign(command)
        assert harness.ask(command).code == ResponseCode.SYSTEM_ERROR


class TestSilence:
    """The answer to a renewal has the time since the last work for a turn."""

    def quiet_ms(self, harness: BrokerHarness, model: PipelineModel) -> int:
        answer = harness.ask_code(RequestCode.WMQ_PIPELINE_RENEW, epoch=model.epoch, token=lease_token(harness))
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
