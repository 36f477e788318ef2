"""Every status of a put, with Apache's code and text (docs/operations/put-statuses.md)."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.broker.test_send import inner
from wheelmq.broker.admission.put_status import PutFailed, PutStatus
from wheelmq.broker.handler_table import BoundHandler
from wheelmq.formats.disk import properties as props
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.system.mapped_file import MappedFile
from wheelmq.testing.disk import SimulatedDisk
from wheelmq.testing.harness import Ask, BrokerHarness
from wheelmq.testing.workers import HeldWorker

UNAVAILABLE = (
    "service not available now. It may be caused by one of the following reasons: the broker's disk is full "
    "[CL: {0} CQ: {0} INDEX: {0}], messages are put to the slave, message store has been shut down, etc."
)
ILLEGAL = (
    "the message is illegal, maybe msg body or properties length not matched. "
    "msg body length limit {0}B, msg properties length limit 32KB."
)
TIMER_ILLEGAL = (
    "timer message illegal, the delay time should not be bigger than the max delay {0}ms; "
    "or if set del msg, the delay time should be bigger than the current time"
)


def batch(harness: BrokerHarness, body: bytes, **letters: Any) -> Command:
    command = harness.send_command("T", body, m=True, **letters)
    command.code = RequestCode.SEND_BATCH_MESSAGE
    return harness.ask(command)


def send_back(harness: BrokerHarness) -> Ask:
    """Send the first message of T back, without a tick."""
    record = harness.read_queue("T")[0]
    ext = {"offset": str(record.position), "group": "g", "delayLevel": "3"}
    return harness.submit(Command(code=RequestCode.CONSUMER_SEND_MSG_BACK, ext=ext, version=479))


def fill(harness: BrokerHarness, left: int = 500) -> None:
    """Fill the first log file until about `left` bytes are left."""
    log = harness.broker.parts.store.log
    assert harness.send("filler").code == 0
    while log.files.file_bytes - log.end > left + 1000:
        assert harness.send("filler", bytes(min(200_000, log.files.file_bytes - log.end - left - 600))).code == 0


def is_further_log_file(path: Path) -> bool:
    return path.parent.name == "commitlog" and int(path.name) > 0


def nothing_new(harness: BrokerHarness, end: int) -> bool:
    return harness.broker.parts.store.log.end == end


class TestOk:
    def test_a_stored_message_gets_success(self, harness: BrokerHarness) -> None:
        answer = harness.send("T")
        assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, None)

    @pytest.mark.parametrize("flush_mode", ["ASYNC_FLUSH", "SYNC_FLUSH"])
    def test_a_send_does_not_wait_for_slaves(self, tmp_path: Path, flush_mode: str) -> None:
        with BrokerHarness(tmp_path, flush_mode=flush_mode) as harness:
            for wait in ("true", "false"):
                assert harness.send("T", properties={props.WAIT: wait}).code == ResponseCode.SUCCESS


class TestFlushDiskTimeout:
    @pytest.fixture
    def harness(self, tmp_path: Path) -> Any:
        with BrokerHarness(tmp_path, worker=HeldWorker(), flush_mode="SYNC_FLUSH") as running:
            running.run_jobs()
            yield running

    @pytest.mark.parametrize("properties", [{}, {"PGROUP": "left to the plain code", props.DELAY: "1"}])
    def test_a_send_whose_flush_is_late_gets_a_timeout(
        self, harness: BrokerHarness, properties: dict[str, str]
    ) -> None:
        asked = harness.submit(harness.send_command("T", properties=properties))
        harness.advance(5100)
        assert asked.answer is not None
        assert (asked.answer.code, asked.answer.remark) == (ResponseCode.FLUSH_DISK_TIMEOUT, None)
        assert asked.answer.ext["msgId"] and asked.answer.ext["queueOffset"] == "0"  # it counts as sent

    def test_a_batch_whose_flush_is_late_gets_a_timeout(self, harness: BrokerHarness) -> None:
        command = harness.send_command("T", inner(b"a") + inner(b"b"), m=True)
        command.code = RequestCode.SEND_BATCH_MESSAGE
        asked = harness.submit(command)
        harness.advance(5100)
        assert asked.answer is not None
        assert asked.answer.code == ResponseCode.FLUSH_DISK_TIMEOUT and "," in asked.answer.ext["msgId"]

    def test_a_message_sent_back_whose_flush_is_late_gets_an_error(self, harness: BrokerHarness) -> None:
        harness.submit(harness.send_command("T"))
        harness.run_jobs()
        asked = send_back(harness)
        harness.advance(5100)
        assert asked.answer is not None
        assert (asked.answer.code, asked.answer.remark) == (ResponseCode.SYSTEM_ERROR, "FLUSH_DISK_TIMEOUT")

    def test_a_send_with_wait_false_gets_success(self, harness: BrokerHarness) -> None:
        assert harness.send("T", properties={props.WAIT: "false"}).code == ResponseCode.SUCCESS


class TestServiceNotAvailable:
    def refused(self, answer: Command, used: str, why: str) -> bool:
        assert answer.ext.keys() == {props.MSG_REGION, props.TRACE_ON}
        return (answer.code, answer.remark) == (
            ResponseCode.SERVICE_NOT_AVAILABLE,
            f"{UNAVAILABLE.format(used)} ({why})",
        )

    def test_a_nearly_full_disk_rejects_sends(self, harness: BrokerHarness, disk: SimulatedDisk) -> None:
        harness.send("T", b"soon", delay_ms=15_000)
        disk.used = 0.901
        harness.advance(10_000)
        end = harness.broker.parts.store.log.end
        assert self.refused(harness.send("T"), " 0.90", "the disk is 90 % full")
        assert nothing_new(harness, end)
        harness.advance(6_000)
        assert harness.bodies("T") == [b"soon"]  # the broker still releases due messages
        disk.used = 0.9
        harness.advance(10_000)
        assert harness.send("T").code == 0

    def test_a_disk_nearly_full_at_the_start_rejects_sends(self, harness: BrokerHarness, disk: SimulatedDisk) -> None:
        disk.used = 0.95
        harness.restart(disk_space_warning_level_ratio=94)
        assert self.refused(harness.send("T"), " 0.95", "the disk is 95 % full")

    def test_a_stopping_broker_rejects_sends(self, harness: BrokerHarness) -> None:
        harness.broker.parts.admission.stop()
        assert self.refused(harness.send("T"), " 0.00", "the broker is stopping")
        assert batch(harness, inner(b"x")).code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert harness.send("T", delay_ms=1000).code == ResponseCode.SERVICE_NOT_AVAILABLE

    def test_a_failed_disk_rejects_sends(self, harness: BrokerHarness) -> None:
        harness.broker.parts.health.fail(OSError(errno.EIO, os.strerror(errno.EIO)))
        why = "a flush to the disk failed: [Errno 5] Input/output error"
        assert self.refused(harness.send("T"), " 0.00", why)

    def test_a_stopping_broker_rejects_a_message_sent_back(self, harness: BrokerHarness) -> None:
        harness.send("T")
        harness.broker.parts.admission.stop()
        asked = send_back(harness)
        harness.tick()
        assert asked.answer is not None
        assert (asked.answer.code, asked.answer.remark) == (ResponseCode.SYSTEM_ERROR, "SERVICE_NOT_AVAILABLE")


class TestCreateMappedFileFailed:
    FAILED = "create mapped file failed, server is busy or broken."

    @pytest.mark.parametrize("has_file", [False, True])
    def test_a_full_disk_rejects_sends_until_it_has_room(
        self, harness: BrokerHarness, disk: SimulatedDisk, has_file: bool
    ) -> None:
        disk.is_full = is_further_log_file if has_file else lambda path: "commitlog" in str(path)
        if has_file:
            fill(harness)
        end = harness.broker.parts.store.log.end
        first, second = harness.send("T", bytes(2000)), harness.send("T", bytes(2000))
        assert first.code == ResponseCode.SYSTEM_ERROR
        assert re.fullmatch(re.escape(self.FAILED) + r" \(the disk is full: no room.*\)", first.remark or "")
        assert second.code == ResponseCode.SERVICE_NOT_AVAILABLE  # for a moment, so that not each send tries
        assert nothing_new(harness, end)
        disk.is_full = lambda path: False
        harness.advance(200)
        assert harness.send("T", bytes(2000)).code == 0

    @pytest.mark.parametrize("code", [errno.EMFILE, errno.EROFS, errno.EIO])
    def test_another_error_of_the_disk_is_named_in_the_remark(
        self, harness: BrokerHarness, disk: SimulatedDisk, code: int
    ) -> None:
        def broken(path: Path) -> bool:
            if is_further_log_file(path):
                raise OSError(code, os.strerror(code), str(path))
            return False

        disk.is_full = broken
        fill(harness)
        answer = harness.send("T", bytes(2000))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert (answer.remark or "").startswith(self.FAILED) and os.strerror(code) in (answer.remark or "")
        assert harness.broker.parts.health.rejection is not None

    def test_a_full_disk_rejects_a_message_sent_back(self, harness: BrokerHarness, disk: SimulatedDisk) -> None:
        disk.is_full = is_further_log_file
        harness.send("T", bytes(2000))
        fill(harness)
        asked = send_back(harness)
        harness.tick()
        assert asked.answer is not None
        assert (asked.answer.code, asked.answer.remark) == (ResponseCode.SYSTEM_ERROR, "CREATE_MAPPED_FILE_FAILED")


class TestMessageIllegal:
    def test_a_body_that_is_too_long_is_rejected(self, harness: BrokerHarness) -> None:
        harness.restart(body_bytes_max=1000)
        answer = harness.send("T", bytes(1001))
        assert (answer.code, answer.remark) == (ResponseCode.MESSAGE_ILLEGAL, ILLEGAL.format(1000))
        assert harness.send("T", bytes(1000)).code == 0

    def test_a_batch_for_a_retry_topic_is_rejected(self, harness: BrokerHarness) -> None:
        answer = batch(harness, inner(b"x"), b="%RETRY%g")
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert answer.remark == "batch request does not support retry group %RETRY%g"

    def test_a_batch_that_fits_no_log_file_is_rejected(self, harness: BrokerHarness) -> None:
        answer = batch(harness, inner(bytes(600_000)) * 2)
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert (answer.remark or "").startswith(ILLEGAL.format(4 << 20))

    @pytest.mark.parametrize("as_batch", [False, True])
    def test_a_topic_name_that_is_too_long_is_rejected(self, harness: BrokerHarness, as_batch: bool) -> None:
        """As in Apache's broker, the check of the name comes first."""
        topic = "t" * 128
        answer = batch(harness, inner(b"x"), b=topic) if as_batch else harness.send(topic)
        assert answer.code == ResponseCode.INVALID_PARAMETER

    def test_properties_that_are_too_long_are_rejected(self, harness: BrokerHarness) -> None:
        end = harness.broker.parts.store.log.end
        answer = harness.send("T", properties={"k": "v" * 32_767})
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert (answer.remark or "").startswith(ILLEGAL.format(4 << 20) + " (")
        assert nothing_new(harness, end)

    @pytest.mark.parametrize("delay_ms", ["x", str(4 * 24 * 3600 * 1000)])
    def test_an_invalid_timer_delay_is_rejected(self, harness: BrokerHarness, delay_ms: str) -> None:
        answer = harness.send("T", properties={props.TIMER_DELAY_MS: delay_ms})
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert (answer.remark or "").startswith(TIMER_ILLEGAL.format(3 * 24 * 3600 * 1000) + " (")


class TestOsPageCacheBusy:
    """The broker rejects a send before it parses it, and END_TRANSACTION before its put (test_transactions)."""

    BUSY = "[REJECTREQUEST]system busy, start flow control for a while"

    @pytest.fixture
    def hang(self, harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Ask]:
        """Submit a send whose append takes `takes_ms` milliseconds, without a tick."""

        def send(takes_ms: int) -> Ask:
            log = harness.broker.parts.store.log
            really = log.reserve

            def slow(size: int) -> MappedFile:
                harness.clock.advance(takes_ms)
                return really(size)

            with monkeypatch.context() as patch:
                patch.setattr(log, "reserve", slow)
                return harness.submit(harness.send_command("T", delay_ms=60_000))  # by the plain code

        return send

    @pytest.mark.parametrize(("takes_ms", "is_busy"), [(1000, False), (1001, True)])
    def test_sends_after_a_hanging_send_are_rejected(
        self, harness: BrokerHarness, hang: Callable[[int], Ask], takes_ms: int, is_busy: bool
    ) -> None:
        harness.restart(broker_fast_failure_enable=False)  # otherwise the broker rejects sends that waited 200 ms
        harness.send("T")
        hangs = hang(takes_ms)
        later = [harness.submit(harness.send_command("T"), harness.connect()) for _ in range(3)]
        harness.tick()
        assert hangs.answer is not None and hangs.answer.code == 0
        found = {(one.answer.code, one.answer.remark) for one in later if one.answer is not None}
        assert found == ({(ResponseCode.SYSTEM_BUSY, self.BUSY)} if is_busy else {(ResponseCode.SUCCESS, None)})
        assert harness.send("T").code == 0  # the next tick measures again

    def test_the_limit_of_a_hanging_send_is_a_setting(self, harness: BrokerHarness, hang: Callable[[int], Ask]) -> None:
        harness.restart(os_page_cache_busy_time_out_mills=5000, wait_time_mills_in_send_queue=4001)
        hang(4000)
        assert harness.send("T").code == 0

    def test_a_message_sent_back_after_a_hanging_send_is_rejected(
        self, harness: BrokerHarness, hang: Callable[[int], Ask]
    ) -> None:
        harness.send("T")
        (record,) = harness.read_queue("T")
        hang(2000)
        ext = {"offset": str(record.position), "group": "g", "delayLevel": "3"}
        answer = harness.ask(Command(code=RequestCode.CONSUMER_SEND_MSG_BACK, ext=ext, version=479))
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_BUSY, self.BUSY)


class TestUnknownError:
    def test_an_unexpected_error_is_answered_and_logged(
        self, harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        harness.send("T")

        def broken(size: int) -> MappedFile:
            raise RuntimeError("a defect")

        monkeypatch.setattr(harness.broker.parts.store.log, "reserve", broken)
        answer = harness.send("T", delay_ms=1500)  # by the plain code
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "UNKNOWN_ERROR")
        assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [
            "the broker could not store a message",
            "the failed put: topic=T queueId=0 messages=1 bodyLength=4",
        ]
        monkeypatch.undo()
        assert harness.send("T").code == 0


FLOW_CONTROL = (
    "timer message is under flow control, max num limit is {1} or the current value is greater than {0} and less than "
    "{1}, trigger random flow control"
)


class TestWheelTimerFlowControl:
    LIMIT = 20

    @pytest.fixture
    def harness(self, tmp_path: Path) -> Any:
        with BrokerHarness(tmp_path, timer_congest_num_each_slot=self.LIMIT) as running:
            assert running.send("T").code == 0
            yield running

    @pytest.mark.parametrize("plain", [{}, {"PGROUP": "p", "TIMER_ROLL_TIMES": "x\\y"}], ids=["kernel", "plain"])
    def test_a_full_slot_rejects_sends(self, harness: BrokerHarness, plain: dict[str, str]) -> None:
        """The broker accepts all sends up to the limit, some above it, and none at twice the limit."""
        due_ms = harness.now_ms + 9000
        codes = [harness.send("T", deliver_ms=due_ms, properties=plain).code for _ in range(self.LIMIT + 1)]
        assert set(codes) == {0}
        answers = [harness.send("T", deliver_ms=due_ms, properties=plain) for _ in range(500)]
        refused = [answer for answer in answers if answer.code]
        assert len(refused) == 500 - (self.LIMIT - 1)  # twice the limit are pending
        text = FLOW_CONTROL.format(self.LIMIT, 2 * self.LIMIT)
        assert {(answer.code, answer.remark) for answer in refused} == {(ResponseCode.SYSTEM_ERROR, text)}
        assert answers.index(refused[0]) < 20 < max(i for i, answer in enumerate(answers) if not answer.code)
        assert harness.broker.parts.timer.congestion.refused == len(refused)

    def test_a_rejected_send_stores_no_record(self, harness: BrokerHarness) -> None:
        due_ms = harness.now_ms + 9000
        while harness.send("T", deliver_ms=due_ms).code == 0:
            pass
        end = harness.broker.parts.store.log.end
        while (answer := harness.send("T", deliver_ms=due_ms)).code == 0:
            end = harness.broker.parts.store.log.end
        assert "recallHandle" not in answer.ext and nothing_new(harness, end)

    def test_a_full_slot_does_not_reject_other_messages(self, harness: BrokerHarness) -> None:
        due_ms = harness.now_ms + 9000
        for _ in range(300):
            harness.send("T", deliver_ms=due_ms, properties={props.UNIQ_KEY: "U"})
        assert harness.broker.parts.timer.congestion.waiting(due_ms) == 2 * self.LIMIT
        assert harness.send("T").code == 0
        assert harness.send("T", deliver_ms=due_ms + 1000).code == 0
        assert harness.send("T", properties={props.DELAY: "2"}).code == 0
        cancel = {props.TIMER_DEL_UNIQKEY: "T+U"}
        assert harness.send("T", b"x", deliver_ms=due_ms, properties=cancel).ext["cancelResult"] == "cancelled"
        assert harness.send("T", deliver_ms=due_ms).code == 0  # there is room again

    def test_a_full_slot_is_still_full_after_a_restart(self, harness: BrokerHarness) -> None:
        due_ms = harness.now_ms + 9000
        for _ in range(300):
            harness.send("T", deliver_ms=due_ms)
        harness.restart(clean=False)
        assert harness.send("T", deliver_ms=due_ms).code == ResponseCode.SYSTEM_ERROR


class TestBeforeThePut:
    def test_sends_before_the_start_accept_time_are_rejected(self, harness: BrokerHarness) -> None:
        opens_ms = harness.now_ms + 60_000
        harness.restart(start_accept_send_request_time_stamp=opens_ms)
        answer = harness.send("T")
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(opens_ms // 1000))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark == f"broker unable to service, until {when},{opens_ms % 1000:03d}"
        harness.advance(60_000)
        assert harness.send("T").code == 0

    def test_a_timer_is_rejected_when_the_wheel_is_off(self, harness: BrokerHarness) -> None:
        harness.restart(timer_wheel_enable=False)
        answer = harness.send("T", delay_ms=5000)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark == "accurate timer message is not enabled, timerWheelEnable is false"


class TestCount:
    """A failed put counts once, when it becomes an answer."""

    def count(self, harness: BrokerHarness) -> int:
        return harness.broker.parts.stats.failed_puts

    def test_a_check_of_admission_counts_nothing(self, harness: BrokerHarness) -> None:
        admission = harness.broker.parts.admission
        admission.stop()
        for _ in range(100):
            assert admission.rejection() == "the broker is stopping" and not admission.takes_sends
            with pytest.raises(PutFailed, match="SERVICE_NOT_AVAILABLE"):
                admission.check_put()
        assert self.count(harness) == 0

    @pytest.mark.parametrize(
        "send",
        [
            lambda harness: harness.send("T"),
            lambda harness: harness.send("New"),
            lambda harness: harness.send("T", delay_ms=5000),
            lambda harness: harness.send("T", properties={props.TRAN_MSG: "true"}),
            lambda harness: harness.send("T", properties={props.DELAY_IN_SECONDS: "5"}),
            lambda harness: batch(harness, inner(b"a") + inner(b"b")),
        ],
        ids=["send", "new topic", "timer", "half", "block", "batch"],
    )
    def test_a_rejected_send_counts_once(
        self, harness: BrokerHarness, send: Callable[[BrokerHarness], Command]
    ) -> None:
        harness.send("T")
        harness.broker.parts.admission.stop()
        answer = send(harness)
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert answer.ext.keys() == {props.MSG_REGION, props.TRACE_ON}
        assert self.count(harness) == 1

    def test_a_rejected_recall_counts_once(self, harness: BrokerHarness) -> None:
        handle = harness.send("T", delay_ms=60_000).ext["recallHandle"]
        harness.broker.parts.admission.stop()
        answer = harness.ask_code(RequestCode.RECALL_MESSAGE, topic="T", recallHandle=handle)
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE and answer.ext.keys() == {props.MSG_REGION}
        assert self.count(harness) == 1

    def test_a_message_sent_back_and_rejected_counts_once(self, harness: BrokerHarness) -> None:
        harness.send("T")
        harness.broker.parts.admission.stop()
        send_back(harness)
        harness.tick()
        assert self.count(harness) == 1

    def test_dispatch_answers_the_failed_put_of_any_handler(
        self, harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail() -> Command:
            raise PutFailed(PutStatus.SERVICE_NOT_AVAILABLE, "why")

        def broken(folder: Path) -> float:
            raise OSError(errno.EIO, "unreadable", str(folder))

        harness.broker.dispatch.default_processor = BoundHandler(lambda request: fail(), ())
        answer = harness.ask(Command(code=987_654))
        expected = f"{UNAVAILABLE.format(' 0.00')} (why)"
        assert (answer.code, answer.remark) == (ResponseCode.SERVICE_NOT_AVAILABLE, expected)
        assert self.count(harness) == 1
        monkeypatch.setattr(harness.disk, "used_share", broken)
        answer = harness.ask(Command(code=987_654))
        assert answer.code == ResponseCode.SYSTEM_ERROR and "unreadable" in (answer.remark or "")


def test_the_value_of_every_status_is_its_name() -> None:
    assert {status.name for status in PutStatus} == {status.value for status in PutStatus}
