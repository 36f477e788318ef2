"""Messages with delayInSeconds, from the send to the release."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.unit.broker.test_send import inner
from wheelmq.delay.blocks.blocks import Blocks
from wheelmq.delay.blocks.park import BOTH
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.block import BLOCK_TOPIC
from wheelmq.formats.disk.message_id import parse_offset_message_id
from wheelmq.formats.disk.origin import block_stream, origin_of, origin_text
from wheelmq.formats.disk.parked import delete_key
from wheelmq.formats.disk.turn_row import KIND_BLOCKS
from wheelmq.formats.names import DEAD_LETTER_TOPIC
from wheelmq.formats.wire.codes import ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.testing.clock import START_MS
from wheelmq.testing.harness import Ask, BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel, Task
from wheelmq.testing.workers import HeldWorker


def command(harness: BrokerHarness, seconds: object, body: bytes = b"body", **properties: str) -> Command:
    return harness.send_command("T", body, properties={props.DELAY_IN_SECONDS: str(seconds), **properties})


def send(harness: BrokerHarness, seconds: object, body: bytes = b"body", **properties: str) -> Command:
    return harness.ask(command(harness, seconds, body, **properties))


def released(harness: BrokerHarness) -> list[tuple[bytes, int]]:
    """Return the bodies in the topic with the release time of each."""
    return [
        (one.message.body, int(one.message.properties[props.TIMER_DEQUEUE_MS]) - START_MS)
        for one in harness.read_queue("T")
    ]


def blocks(harness: BrokerHarness) -> Blocks:
    return harness.broker.parts.blocks


class TestSend:
    @pytest.mark.parametrize(
        ("properties", "code", "remark"),
        [
            ({}, ResponseCode.SUCCESS, None),
            ({props.DELAY: "0"}, ResponseCode.SUCCESS, None),
            ({props.DELAY: "3"}, ResponseCode.MESSAGE_ILLEGAL, BOTH),
            ({props.DELAY: "-1"}, ResponseCode.MESSAGE_ILLEGAL, BOTH),
            ({props.DELAY: "x"}, ResponseCode.SYSTEM_ERROR, "DELAY is 'x', not a 32-bit number"),
            (
                {props.TIMER_DELAY_SEC: "5"},
                ResponseCode.MESSAGE_ILLEGAL,
                "delayInSeconds and TIMER_DELAY_SEC should not be specified at the same time.",
            ),
            (
                {props.TIMER_DEL_UNIQKEY: "T+k"},
                ResponseCode.MESSAGE_ILLEGAL,
                "delayInSeconds and TIMER_DEL_UNIQKEY should not be specified at the same time.",
            ),
            (
                {props.TRAN_MSG: "true"},
                ResponseCode.MESSAGE_ILLEGAL,
                "a transactional message cannot have delayInSeconds",
            ),
        ],
    )
    def test_a_second_delay_property_is_rejected_unless_it_is_zero(
        self, harness: BrokerHarness, properties: dict[str, str], code: ResponseCode, remark: str | None
    ) -> None:
        answer = send(harness, 5, **properties)
        assert answer.code == code and (remark is None or answer.remark == remark)
        assert sum(block.queue.end for block in blocks(harness)) == (1 if code == ResponseCode.SUCCESS else 0)

    @pytest.mark.parametrize(
        ("seconds", "remark"),
        [
            ("x", "delayInSeconds is 'x', not a 32-bit number"),
            ("1.5", "delayInSeconds is '1.5', not a 32-bit number"),
            ("2147483648", "delayInSeconds is '2147483648', not a 32-bit number"),
            ("-1", "delayInSeconds is -1: it must be 0 or more"),
            ("31622401", "delayInSeconds is 31622401: the delay must not exceed 31622400s"),
        ],
    )
    def test_an_invalid_delay_is_rejected(self, harness: BrokerHarness, seconds: str, remark: str) -> None:
        answer = send(harness, seconds)
        assert (answer.code, answer.remark) == (ResponseCode.MESSAGE_ILLEGAL, remark)
        assert len(blocks(harness)) == 0 and harness.read_queue("T") == []

    def test_the_longest_delay_is_accepted(self, harness: BrokerHarness) -> None:
        assert send(harness, 366 * 24 * 3600).code == ResponseCode.SUCCESS

    def test_a_message_with_a_delay_of_zero_is_stored_at_once(self, harness: BrokerHarness) -> None:
        assert send(harness, 0, b"now").code == ResponseCode.SUCCESS
        [record] = harness.read_queue("T")
        assert record.message.body == b"now" and len(blocks(harness)) == 0

    def test_a_delay_level_overrides_a_timer_delay(self, harness: BrokerHarness) -> None:
        answer = harness.send("T", properties={props.TIMER_DELAY_SEC: "60", props.DELAY: "1"})
        assert answer.code == ResponseCode.SUCCESS
        harness.advance(1500)
        assert len(harness.read_queue("T")) == 1

    def test_a_batch_is_never_delayed(self, harness: BrokerHarness) -> None:
        batch = harness.send_command("T", inner(b"b0"), properties={props.DELAY_IN_SECONDS: "9"}, m=True)
        assert harness.ask(batch).code == ResponseCode.SUCCESS
        assert [one.message.body for one in harness.read_queue("T")] == [b"b0"] and len(blocks(harness)) == 0

    def test_delay_in_seconds_is_an_ordinary_property_without_blocks(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path, block_enable=False) as harness:
            assert send(harness, "soon").code == ResponseCode.SUCCESS
            [record] = harness.read_queue("T")
            assert record.message.properties[props.DELAY_IN_SECONDS] == "soon"

    def test_a_message_too_large_for_a_block_is_rejected(self, harness: BrokerHarness) -> None:
        answer = send(harness, 5, LONG="x" * 32_400)
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL and "leave no room" in (answer.remark or "")
        answer = send(harness, 5, bytes(17 << 10))
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL and "block_log_file_bytes is 16384" in (answer.remark or "")

    def test_sends_to_the_block_topic_are_rejected(self, harness: BrokerHarness) -> None:
        assert harness.send(BLOCK_TOPIC).code == ResponseCode.NO_PERMISSION

    def test_a_full_disk_rejects_sends_until_it_has_room(self, harness: BrokerHarness) -> None:
        assert send(harness, 4).code == ResponseCode.SUCCESS
        harness.advance(10_000)
        harness.disk.is_full = lambda path: "scheduledtempdata" in path.parts
        answer = send(harness, 5)
        assert answer.code == ResponseCode.SYSTEM_ERROR and (answer.remark or "").startswith(
            "create mapped file failed"
        )
        harness.disk.heal()
        harness.advance(200)
        assert send(harness, 5).code == ResponseCode.SUCCESS
        harness.advance(6000)
        assert len(released(harness)) == 2

    def test_the_answer_names_the_origin_and_no_recall_handle(self, harness: BrokerHarness) -> None:
        send(harness, 5)
        ext = send(harness, 5, UNIQ_KEY="U").ext
        assert (ext["queueId"], ext["queueOffset"], ext["transactionId"]) == ("0", "1", "U")
        assert parse_offset_message_id(ext["msgId"])[1] == origin_of(block_stream(1), 1)
        assert "recallHandle" not in ext


class TestRelease:
    def test_each_message_is_released_once_at_its_due_millisecond(self, harness: BrokerHarness) -> None:
        model = PipelineModel(harness)
        for i, seconds in enumerate((1, 2, 9, 9, 17, 31)):
            harness.advance(1)
            send(harness, seconds, b"%d" % i, KEYS="k", TAGS="t", UNIQ_KEY=f"U{i}")
        harness.advance(40_000, model.work)
        assert released(harness) == [
            (b"0", 1001), (b"1", 2002), (b"2", 9003), (b"3", 9004), (b"4", 17_005), (b"5", 31_006)
        ]  # fmt: skip
        first = harness.read_queue("T")[0].message
        assert list(first.properties.items())[-1] == (props.WMQ_ORIGIN, origin_text(origin_of(block_stream(1), 0)))
        assert first.properties[props.KEYS] == "k" and props.DELAY_IN_SECONDS not in first.properties
        assert harness.broker.parts.timer.pending.armed_by["pipeline"] >= 3

    def test_the_commit_log_does_not_grow_before_the_release(self, harness: BrokerHarness) -> None:
        harness.send("T")
        end = harness.broker.parts.store.log.end
        send(harness, 5)
        assert harness.broker.parts.store.log.end == end

    @pytest.mark.parametrize("clean", [True, False])
    def test_a_start_finds_the_pending_messages(self, harness: BrokerHarness, clean: bool) -> None:
        for seconds in (1, 3, 8, 12, 25):
            send(harness, seconds, b"%d" % seconds, UNIQ_KEY=f"U{seconds}")
        harness.advance(1500)
        harness.restart(clean=clean)
        model = PipelineModel(harness)
        harness.advance(2000, model.work)
        harness.restart(clean=clean)
        assert int(harness.broker.parts.timer.pending.counts.by_queue.sum()) == 3
        model = PipelineModel(harness)
        harness.advance(30_000, model.work)
        assert released(harness) == [(b"%d" % seconds, 1000 * seconds) for seconds in (1, 3, 8, 12, 25)]
        assert int(harness.broker.parts.timer.pending.counts.by_queue.sum()) == 0

    def test_no_message_is_late_without_a_pipeline(self, harness: BrokerHarness) -> None:
        for seconds in range(1, 60, 4):
            send(harness, seconds, b"%d" % seconds)
        harness.advance(60_000)
        assert released(harness) == [(b"%d" % seconds, 1000 * seconds) for seconds in range(1, 60, 4)]

    def test_a_burst_does_not_delay_a_later_message(self, harness: BrokerHarness) -> None:
        model = PipelineModel(harness)
        for i in range(700):
            send(harness, 7, b"%d" % i)
        harness.advance(30)
        send(harness, 7, b"bystander")
        harness.advance(8000, model.work)
        assert [left for _, left in released(harness)] == [7000] * 700 + [7030]
        assert [body for body, _ in released(harness)][:700] == [b"%d" % i for i in range(700)]

    def test_a_cancelled_message_is_not_released(self, harness: BrokerHarness) -> None:
        for seconds in (3, 20):
            send(harness, seconds, UNIQ_KEY=f"U{seconds}")
        for key, expected in (("U20", "cancelled"), ("U20", "already delivered or cancelled"), ("U9", "not found")):
            cancel = {props.TIMER_DEL_UNIQKEY: delete_key("T", key)}
            assert harness.send("T", b"x", delay_ms=5000, properties=cancel).ext["cancelResult"] == expected
        harness.restart(clean=False)
        harness.advance(25_000, PipelineModel(harness).work)
        assert [left for _, left in released(harness)] == [3000]

    def test_an_undeliverable_message_becomes_a_dead_letter(self, harness: BrokerHarness) -> None:
        send(harness, 3)
        [block] = blocks(harness)
        name = block.log.files.file_at(0).array
        at = bytes(name[:400]).index(b"REAL_QID\x01")
        name[at + 9] = ord("x")
        harness.advance(4000)
        assert released(harness) == [] and len(harness.read_queue(DEAD_LETTER_TOPIC)) == 1

    def test_a_message_with_a_damaged_body_is_not_released(self, harness: BrokerHarness, tmp_path: Path) -> None:
        send(harness, 8, b"damaged")
        send(harness, 8, b"whole")
        harness.stop()
        [path] = (tmp_path / "store" / "scheduledtempdata").glob("*/log/*")
        raw = bytearray(path.read_bytes())
        raw[raw.index(b"damaged")] ^= 1
        path.write_bytes(raw)
        harness.start()
        harness.advance(10_000)
        assert [body for body, _ in released(harness)] == [b"whole"]


class TestTurns:
    @pytest.fixture
    def harness(self, tmp_path: Path) -> Iterator[BrokerHarness]:
        """A broker with a lead of 10 s. It needs a turn when S is less than two thirds of the lead ahead."""
        with BrokerHarness(tmp_path, timer_lead_ms=10_000) as running:
            yield running

    def test_turns_arm_every_message_that_the_wheel_counts(self, harness: BrokerHarness) -> None:
        model = PipelineModel(harness)
        model.open()
        for seconds in (11, 12, 24):
            send(harness, seconds)
        plans = []
        for _ in range(30):
            plan = model.plan()
            if plan is not None:
                plans.append(plan)
                model.commit(plan, [model.hand_over(plan, task) for task in model.read(plan)])
            harness.advance(1000)
        windows = [plan.blocks for plan in plans if plan.blocks is not None]
        assert sum(window.rows for window in windows) == 3
        assert all(before.through_ms <= after.after_ms for before, after in pairwise(windows))
        assert harness.broker.parts.timer.pending.armed_by["pipeline"] == 3

    @pytest.mark.parametrize("how", ["one less", "one twice", "another second", "another block", "none"])
    def test_a_turn_with_wrong_rows_is_rejected(self, harness: BrokerHarness, how: str) -> None:
        for seconds in (13, 13, 14):
            send(harness, seconds)
        model = PipelineModel(harness)

        tried: list[Task] = []

        def bend(task: Task) -> Task:
            rows = task.rows.copy()
            if task.kind != KIND_BLOCKS:
                return task
            tried.append(task)
            match how:
                case "one less":
                    rows = rows[1:]
                case "one twice":
                    rows[1] = rows[0]
                case "another second":
                    rows["fire_ms"][0] += 1000
                case "another block":
                    rows["origin"] += 1 << 40
                case "none":
                    rows = rows[:0]
            return task._replace(rows=rows)

        model.bend = bend
        harness.advance(9000, model.work)
        assert harness.broker.parts.timer.pending.armed_by["pipeline"] == 0 and model.committed == 0 and tried
        model.bend = lambda task: task
        harness.advance(8000, model.work)
        assert [left for _, left in released(harness)] == [13_000, 13_000, 14_000]

    def test_messages_sent_during_a_turn_are_released(self, harness: BrokerHarness) -> None:
        harness.advance(100)
        send(harness, 20, b"planned")
        model = PipelineModel(harness)
        model.open()
        harness.advance(15_900)
        plan = model.plan()
        assert plan is not None and plan.blocks is not None and plan.blocks.through_ms - START_MS == 25_750
        send(harness, 6, b"meanwhile")
        send(harness, 11, b"later")
        model.commit(plan, [model.hand_over(plan, task) for task in model.read(plan)])
        harness.advance(12_000, model.work)
        assert released(harness) == [(b"planned", 20_100), (b"meanwhile", 22_000), (b"later", 27_000)]

    def test_a_pipeline_that_dies_during_a_turn_delays_no_message(self, harness: BrokerHarness) -> None:
        for seconds in range(11, 30):
            send(harness, seconds, b"%d" % seconds)
        model = PipelineModel(harness)
        model.open()
        harness.advance(7000)
        plan = model.plan()
        assert plan is not None and plan.blocks is not None
        harness.advance(25_000)
        assert released(harness) == [(b"%d" % seconds, 1000 * seconds) for seconds in range(11, 30)]


class TestDisk:
    @pytest.fixture
    def worker(self) -> HeldWorker:
        return HeldWorker()

    @pytest.fixture
    def block_worker(self) -> HeldWorker:
        return HeldWorker()

    @pytest.fixture
    def harness(self, tmp_path: Path, worker: HeldWorker, block_worker: HeldWorker) -> Iterator[BrokerHarness]:
        """A broker with SYNC_FLUSH. The test decides when an fsync runs."""
        with BrokerHarness(tmp_path, worker=worker, block_worker=block_worker, flush_mode="SYNC_FLUSH") as running:
            running.run_jobs()
            yield running

    def test_an_answer_waits_for_the_disk(self, harness: BrokerHarness) -> None:
        asked = harness.submit(command(harness, 8))
        harness.advance(1000)
        assert asked.answer is None
        harness.run_jobs()
        assert asked.answer is not None and asked.answer.code == ResponseCode.SUCCESS
        harness.cut_power(keep=0)
        harness.start()
        assert sum(block.queue.end for block in blocks(harness)) == 1

    def test_a_send_with_wait_false_does_not_wait_for_the_disk(self, harness: BrokerHarness) -> None:
        asked = harness.submit(command(harness, 8, WAIT="false"))
        harness.tick()
        assert asked.answer is not None

    def test_one_flush_answers_the_sends_of_all_blocks(self, harness: BrokerHarness, block_worker: HeldWorker) -> None:
        asks = [harness.submit(command(harness, seconds)) for seconds in (3, 13, 23, 33)]
        harness.tick()
        assert all(asked.answer is None for asked in asks) and len(block_worker) == 1
        harness.run_jobs()
        assert all(asked.answer is not None and asked.answer.code == 0 for asked in asks)

    def test_sends_to_the_log_and_to_blocks_do_not_wait_for_each_other(
        self, harness: BrokerHarness, worker: HeldWorker, block_worker: HeldWorker
    ) -> None:
        for slow, quick in ((block_worker, worker), (worker, block_worker)):
            asks = [harness.submit(command(harness, 8)), harness.submit(harness.send_command("T"))]
            waits, goes = asks if slow is block_worker else asks[::-1]
            harness.tick()
            for _ in range(3):
                quick.run()
                harness.tick()
                assert goes.answer is not None and goes.answer.code == 0 and waits.answer is None
                goes = harness.submit(harness.send_command("T") if slow is block_worker else command(harness, 8))
                harness.tick()
            assert len(slow) >= 1
            harness.run_jobs()
            assert waits.answer is not None and waits.answer.code == 0

    def test_a_failed_sync_of_blocks_acknowledges_no_send(
        self, harness: BrokerHarness, worker: HeldWorker, block_worker: HeldWorker
    ) -> None:
        asks = [harness.submit(command(harness, 8)), harness.submit(harness.send_command("T"))]
        harness.tick()
        worker.work()
        block_worker.fail_next(OSError(errno.EIO, "gone"))
        block_worker.run()
        worker.report()
        harness.tick()
        assert [asked.answer.code for asked in asks if asked.answer] == [ResponseCode.FLUSH_DISK_TIMEOUT] * 2
        assert harness.broker.parts.health.failure is not None and harness.broker.parts.flush.next_ms() is None

    def test_a_send_whose_flush_is_late_gets_a_timeout(self, harness: BrokerHarness) -> None:
        asked = harness.submit(command(harness, 8))
        harness.advance(5001)
        assert asked.answer is not None and asked.answer.code == ResponseCode.FLUSH_DISK_TIMEOUT

    def test_after_a_failed_sync_the_broker_rejects_sends(self, harness: BrokerHarness, worker: HeldWorker) -> None:
        asked = harness.submit(command(harness, 8))
        harness.tick()
        harness.disk.sync_error = OSError(errno.EIO, "gone")
        harness.run_jobs()
        assert asked.answer is not None and asked.answer.code == ResponseCode.FLUSH_DISK_TIMEOUT
        assert harness.broker.parts.health.failure is not None
        assert send_and_see(harness, 8).code == ResponseCode.SERVICE_NOT_AVAILABLE

    def test_asynchronous_flushes_keep_their_interval(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path / "async") as harness:
            for _ in range(2):
                assert send(harness, 9).code == ResponseCode.SUCCESS
            assert blocks(harness).synced == 1  # the first flush was overdue
            harness.advance(600)
            assert blocks(harness).synced == 2


def send_and_see(harness: BrokerHarness, seconds: int) -> Command:
    asked: Ask = harness.submit(command(harness, seconds))
    harness.tick()
    assert asked.answer is not None
    return asked.answer


def test_a_start_does_not_reuse_a_block_number_that_the_log_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Block numbers start again at 1 after NUMBER_MAX.

    A start from a snapshot does not see the numbers that the log names before the snapshot. A start without one
    does, and it would take the new block's messages for the released messages of the old block.
    """
    monkeypatch.setattr("wheelmq.delay.blocks.numbers.NUMBER_MAX", 5)
    settings = {"block_length_seconds": 2, "clean_resource_interval_ms": 500}
    with BrokerHarness(tmp_path, **settings) as harness:
        for _ in range(4):
            harness.send("T", b"old", properties={props.DELAY_IN_SECONDS: "1"})
            harness.advance(6000)
        assert len(harness.broker.parts.blocks) == 0
        harness.restart(clean=True)
        for delay_s in (30, 40):
            answer = harness.send("T", b"new", properties={props.DELAY_IN_SECONDS: str(delay_s)})
        assert answer.code != 0, "1 to 4 are named, and 5 is in use"
        snapshot = harness.broker.parts.paths.snapshot
        harness.crash()
        snapshot.unlink()
        harness.start()
        harness.advance(31_000)
        assert [record.message.body for record in harness.read_queue("T")] == [b"old"] * 4 + [b"new"]
