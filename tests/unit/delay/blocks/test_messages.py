"""Messages of blocks until their release, with jobs that end between ticks and with failing disks."""

from __future__ import annotations

import errno
from pathlib import Path

import msgspec
import pytest

from wheelmq.delay import refs as ref
from wheelmq.delay.timer.turns import TurnPlan
from wheelmq.formats.disk import properties as props
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.system.single_flight import SingleFlight
from wheelmq.system.workers import InlineWorker
from wheelmq.testing.disk import Call
from wheelmq.testing.harness import Ask, BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel
from wheelmq.testing.workers import HeldWorker


def submit(harness: BrokerHarness, seconds: int, body: bytes) -> Ask:
    return harness.submit(harness.send_command("T", body, properties={props.DELAY_IN_SECONDS: str(seconds)}))


def to_middle_of_block(harness: BrokerHarness) -> None:
    """Advance to half a second after the start of a block of 10 s."""
    harness.clock.advance((10_500 - harness.now_ms) % 10_000)
    harness.settle()


def run_all(harness: BrokerHarness) -> None:
    while harness.run_jobs():
        pass


@pytest.mark.parametrize("seconds", [54, 58])
def test_messages_flushed_while_a_turn_is_planned_are_delivered(tmp_path: Path, seconds: int) -> None:
    """The second message is in a block that the wheel has counted (54), or in a block of its own (58)."""
    worker, background = HeldWorker(), HeldWorker()
    with BrokerHarness(
        tmp_path, worker=worker, background=background, flush_mode="SYNC_FLUSH", timer_lead_ms=30_000
    ) as harness:
        to_middle_of_block(harness)
        run_all(harness)
        model = PipelineModel(harness)
        model.open()
        model.is_patient = False
        submit(harness, seconds, b"A")
        harness.tick()
        run_all(harness)
        for _ in range(2 * (seconds - 12)):
            harness.clock.advance(500)
            harness.tick()
            run_all(harness)
        submit(harness, 14, b"B")
        harness.tick()
        worker.work()
        worker.report()
        assert model.terms is not None
        fields = headers.texts(epoch=model.terms["epoch"], timeoutMs=0, token=model.terms["token"])
        asked = harness.submit(Command(code=RequestCode.WMQ_PIPELINE_PLAN, ext=fields))
        harness.tick()
        assert asked.answer is not None
        plan = msgspec.json.decode(asked.answer.body, type=TurnPlan)
        assert plan.blocks is not None and plan.blocks.rows == 2
        model.commit(plan, [model.hand_over(plan, task) for task in model.read(plan)])
        assert harness.broker.parts.timer.pending.armed.count == 2
        model.is_patient = True
        for _ in range(40):
            harness.clock.advance(500)
            harness.tick()
            run_all(harness)
        assert harness.bodies("T") == [b"A", b"B"]


def test_a_block_stays_while_the_record_that_settles_it_may_be_lost(tmp_path: Path) -> None:
    worker, background = HeldWorker(), HeldWorker()
    with BrokerHarness(tmp_path, worker=worker, background=background, clean_resource_interval_ms=100) as harness:
        to_middle_of_block(harness)
        submit(harness, 3, b"A")
        harness.tick()
        harness.stop()
        harness.clock.advance(60_000)
        harness.disk.is_full = lambda path: "consumequeue" in path.parts
        harness.start()
        assert harness.broker.parts.releaser.counts["released"] == 1 and harness.broker.parts.store.journal.count == 1
        assert harness.broker.parts.block_parts.checkpoints.needed_from() < harness.broker.parts.store.log.end
        harness.clock.advance(150)
        harness.tick()
        background.run()
        harness.tick()
        assert len(harness.broker.parts.blocks) == 1
        harness.cut_power(keep=0.0)
        harness.disk.heal()
        harness.start()
        harness.advance(1000)
        assert harness.bodies("T") == [b"A"]
        for _ in range(3):
            run_all(harness)
            harness.advance(1000)
        assert len(harness.broker.parts.blocks) == 0


def test_flags_do_not_pass_the_end_of_the_dispatched_log(tmp_path: Path) -> None:
    with BrokerHarness(tmp_path, clean_resource_interval_ms=1 << 30) as harness:
        to_middle_of_block(harness)
        submit(harness, 3, b"A")
        harness.advance(2000)
        harness.disk.is_full = lambda path: "consumequeue" in path.parts
        end = harness.broker.parts.store.log.end
        for _ in range(60):
            harness.clock.advance(100)
            harness.tick()
        assert harness.broker.parts.store.log.synced > end == harness.broker.parts.store.dispatched_to
        assert harness.broker.parts.block_parts.checkpoints.flagged_to <= end
        harness.disk.heal()
        harness.advance(4000)
        assert harness.broker.parts.block_parts.checkpoints.flagged_to == harness.broker.parts.store.log.end > end


def test_unsynced_flags_keep_the_settling_records_in_the_log(tmp_path: Path) -> None:
    with BrokerHarness(tmp_path, clean_resource_interval_ms=1 << 30, checkpoint_ms=1 << 30) as harness:
        checkpoints, log = harness.broker.parts.block_parts.checkpoints, harness.broker.parts.store.log
        flight = SingleFlight(InlineWorker())
        to_middle_of_block(harness)
        for seconds in (3, 8, 15):  # two in one block, the third in the next
            submit(harness, seconds, b"%d" % seconds)
        harness.advance(2500)
        checkpoints.write(flight)
        block, other = harness.broker.parts.blocks
        released_from = log.end
        harness.advance(2500)
        harness.disk.fail_call(1, OSError(errno.EIO, "gone"), {Call.SYNC})
        checkpoints.write(flight)
        assert block.has_failed and not other.has_failed
        checkpoints.write(flight)
        submit(harness, 14, b"of the other block")
        harness.advance(2500)
        assert other.checkpoint_job() is not None
        checkpoints.write(flight)
        assert checkpoints.needed_from() <= released_from < log.synced


def test_a_partly_removed_block_rejects_messages(tmp_path: Path) -> None:
    with BrokerHarness(tmp_path, flush_mode="SYNC_FLUSH", clean_resource_interval_ms=1000) as harness:
        to_middle_of_block(harness)
        submit(harness, 3, b"A")
        harness.advance(9000)
        harness.disk.fail_call(1, OSError(errno.EIO, "gone"), {Call.REMOVE})
        harness.advance(900)
        assert len(harness.broker.parts.blocks) == 1
        harness.clock.step(-9000)
        refused = submit(harness, 2, b"B")
        harness.tick()
        assert refused.answer is not None and refused.answer.code == ResponseCode.SYSTEM_ERROR
        assert "is deleting the block" in (refused.answer.remark or "")
        harness.advance(1500)
        assert len(harness.broker.parts.blocks) == 0
        taken = submit(harness, 2, b"C")
        harness.advance(100)
        assert taken.answer is not None and taken.answer.code == ResponseCode.SUCCESS
        harness.restart(clean=False)
        harness.advance(3000)
        assert harness.bodies("T") == [b"A", b"C"]


@pytest.mark.parametrize("ends", [None, "clean", "killed"])
def test_a_block_number_is_free_once_the_log_no_longer_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str | None
) -> None:
    """Restarts make no difference: the messages sent meanwhile name no block."""
    monkeypatch.setattr("wheelmq.delay.blocks.numbers.NUMBER_MAX", 5)
    hours = ";".join(f"{hour:02d}" for hour in range(24))
    with BrokerHarness(
        tmp_path,
        block_length_seconds=1,
        clean_resource_interval_ms=500,
        log_file_bytes=1 << 14,
        file_reserved_time=1,
        delete_when=hours,
    ) as harness:
        found: list[ref.Refs] = []

        def send_one(body: bytes) -> Command:
            asked = submit(harness, 2, body)
            harness.advance(900)
            found.extend(
                part.copy() for part in harness.broker.parts.timer.pending.armed.firing(0, harness.now_ms + 5000)
            )
            harness.advance(4100)
            assert asked.answer is not None
            return asked.answer

        taken = [b"%d" % i for i in range(5)]
        assert {send_one(body).code for body in taken} == {ResponseCode.SUCCESS}
        refused = send_one(b"refused")
        assert refused.code == ResponseCode.SYSTEM_ERROR and "is in use, or in the log" in (refused.remark or "")
        assert harness.bodies("T") == taken and len(harness.broker.parts.blocks) == 0
        for _ in range(5):
            harness.send("U", b"x" * 4000)
        if ends is not None:
            harness.restart(clean=ends == "clean")
            harness.restart(clean=ends == "clean")
        harness.clock.advance(2 * 3_600_000)
        harness.advance(1000)
        assert harness.broker.parts.store.log.start > 0
        harness.broker.parts.timer.pending.arm(found[0], enqueue_ms=0, by="pipeline")  # from a turn planned earlier
        harness.advance(100)
        assert send_one(b"again").code == ResponseCode.SUCCESS
        assert harness.bodies("T")[-1] == b"again"
        harness.restart(clean=False)
        harness.advance(1000)
        assert harness.bodies("T")[-1] == b"again" and harness.broker.parts.blocks.numbers.last == 1


def test_a_removed_block_leaves_nothing_of_its_stream(tmp_path: Path) -> None:
    with BrokerHarness(tmp_path, clean_resource_interval_ms=500) as harness:
        to_middle_of_block(harness)
        timer = harness.broker.parts.timer
        submit(harness, 3, b"A")
        harness.advance(2000)
        stale = timer.pending.armed.firing(0, harness.now_ms + 5000)[0].copy()
        harness.advance(15_000)
        assert len(harness.broker.parts.blocks) == 0
        assert not timer.pending.armed.was_armed(stale[:, ref.ORIGIN]).any()
        timer.pending.arm(stale, enqueue_ms=0, by="pipeline")  # from a turn planned earlier
        harness.advance(1000)
        assert harness.broker.parts.releaser.counts["unreadable"] == 0 and harness.bodies("T") == [b"A"]
        harness.restart()
        assert harness.broker.parts.blocks.numbers.last == 1
