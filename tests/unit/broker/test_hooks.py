"""Hooks around requests, sends and consumption: their calls, arguments and effects."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from wheelmq.broker.answers import PeerError
from wheelmq.broker.hooks import ConsumeMessageContext, MessageKind, SendMessageContext
from wheelmq.formats.disk import properties as props
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.workers import HeldWorker

UNKNOWN = 987_654
FORBIDDEN = PeerError(ResponseCode.NO_PERMISSION, "not you")


class Seen:
    """Every kind of hook. Records its calls, and raises the errors that a test sets."""

    def __init__(self) -> None:
        self.before: list[tuple[str, int]] = []
        self.after: list[tuple[str, int, int | None]] = []
        self.sends: list[SendMessageContext] = []
        self.sent: list[SendMessageContext] = []
        self.pulled: list[ConsumeMessageContext] = []
        self.back: list[ConsumeMessageContext] = []
        self.raises_before: Exception | None = None
        self.raises_after: Exception | None = None

    def _raise(self, error: Exception | None) -> None:
        if error is not None:
            raise error

    def before_request(self, address: str, request: Command) -> None:
        self.before.append((address, request.code))
        self._raise(self.raises_before)

    def after_response(self, address: str, request: Command, response: Command | None) -> None:
        self.after.append((address, request.code, None if response is None else response.code))
        self._raise(self.raises_after)

    def send_message_before(self, context: SendMessageContext) -> None:
        self.sends.append(context)
        context.extra["seen"] = True
        self._raise(self.raises_before)

    def send_message_after(self, context: SendMessageContext) -> None:
        assert context.extra == {"seen": True}
        self.sent.append(context)
        self._raise(self.raises_after)

    def consume_message_before(self, context: ConsumeMessageContext) -> None:
        self.pulled.append(context)
        self._raise(self.raises_before)

    def consume_message_after(self, context: ConsumeMessageContext) -> None:
        self.back.append(context)
        self._raise(self.raises_after)


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def rpc(harness: BrokerHarness, seen: Seen) -> BrokerHarness:
    harness.send("T")
    harness.broker.parts.hooks.register_rpc_hook(seen)
    return harness


class TestRpc:
    def test_rpc_hooks_see_each_request_and_its_answer(self, rpc: BrokerHarness, seen: Seen) -> None:
        rpc.send("T")
        rpc.ask(Command(code=UNKNOWN))
        address = f"10.0.0.1:{rpc.client.peer.port}"
        assert seen.before == [(address, RequestCode.SEND_MESSAGE_V2), (address, UNKNOWN)]
        assert seen.after == [(address, RequestCode.SEND_MESSAGE_V2, 0), (address, UNKNOWN, 3)]

    def test_rpc_hooks_see_the_answer_to_an_invalid_request(self, rpc: BrokerHarness, seen: Seen) -> None:
        rpc.ask(Command(code=RequestCode.PULL_MESSAGE))
        assert [code for _, _, code in seen.after] == [ResponseCode.SYSTEM_ERROR]

    def test_rpc_hooks_see_the_result_of_a_oneway_request(self, rpc: BrokerHarness, seen: Seen) -> None:
        rpc.submit(rpc.send_command("T"), oneway=True)
        rpc.tick()
        assert [code for _, _, code in seen.after] == [0]

    def test_rpc_hooks_may_change_requests_and_answers(self, rpc: BrokerHarness) -> None:
        class Changes(Seen):
            def before_request(self, address: str, request: Command) -> None:
                request.body = b"changed"

            def after_response(self, address: str, request: Command, response: Command | None) -> None:
                assert response is not None
                response.ext["mine"] = "yes"

        rpc.broker.parts.hooks.rpc[:] = [Changes()]
        assert rpc.send("T").ext["mine"] == "yes"
        assert rpc.bodies("T") == [b"body", b"changed"]

    @pytest.mark.parametrize(
        ("error", "code", "remark"),
        [
            (FORBIDDEN, ResponseCode.NO_PERMISSION, "not you"),
            (KeyError("x"), ResponseCode.SYSTEM_ERROR, "KeyError: 'x'"),
        ],
    )
    def test_an_error_before_a_request_rejects_the_request(
        self, rpc: BrokerHarness, seen: Seen, error: Exception, code: int, remark: str
    ) -> None:
        seen.raises_before = error
        answer = rpc.send("T")
        assert (answer.code, answer.remark) == (code, remark)
        assert [code for _, _, code in seen.after] == [code]
        rpc.broker.parts.hooks.rpc.clear()
        assert rpc.bodies("T") == [b"body"]

    def test_an_error_after_a_request_replaces_the_answer(self, rpc: BrokerHarness, seen: Seen) -> None:
        seen.raises_after = KeyError("x")
        answer = rpc.send("T")
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "KeyError: 'x'")
        rpc.broker.parts.hooks.rpc.clear()
        assert rpc.bodies("T") == [b"body", b"body"]  # the broker had stored the message

    def test_rpc_hooks_see_a_held_pull_when_it_is_answered(self, rpc: BrokerHarness, seen: Seen) -> None:
        asked = rpc.submit(rpc.pull_command("T", offset=1, hold_ms=1000))
        rpc.tick()
        assert seen.after == []
        seen.raises_after = FORBIDDEN
        rpc.submit(rpc.send_command("T"), oneway=True)
        rpc.tick()
        assert asked.answer is not None and asked.answer.code == ResponseCode.NO_PERMISSION
        assert [code for _, code, _ in seen.after] == [RequestCode.SEND_MESSAGE_V2, RequestCode.PULL_MESSAGE]

    def test_rpc_hooks_see_the_end_of_a_held_pull_of_a_lost_client(self, rpc: BrokerHarness, seen: Seen) -> None:
        """A hook may count the requests in progress, so it sees the end of each request once."""
        rpc.submit(rpc.pull_command("T", offset=1, hold_ms=1000))
        rpc.tick()
        rpc.lose(rpc.client)
        rpc.advance(2000)
        assert [answered for _, _, answered in seen.after] == [None]

    def test_rpc_hooks_see_the_end_of_a_oneway_pull_without_messages(self, rpc: BrokerHarness, seen: Seen) -> None:
        rpc.submit(rpc.pull_command("T", offset=1, hold_ms=1000), oneway=True)
        assert [answered for _, _, answered in seen.after] == [None] and not len(rpc.broker.parts.holds)

    def test_rpc_hooks_see_an_answer_before_it_waits_for_the_disk(self, tmp_path: Path, seen: Seen) -> None:
        with BrokerHarness(tmp_path, flush_mode="SYNC_FLUSH", worker=HeldWorker()) as harness:
            harness.broker.parts.hooks.register_rpc_hook(seen)
            asked = harness.submit(harness.send_command("T"))
            harness.tick()
            assert [code for _, _, code in seen.after] == [0] and asked.answer is None
            harness.run_jobs()
            assert asked.answer is not None and asked.answer.code == 0

    def test_the_answer_of_a_failed_hook_does_not_wait_for_the_disk(self, tmp_path: Path, seen: Seen) -> None:
        with BrokerHarness(tmp_path, flush_mode="SYNC_FLUSH", worker=HeldWorker()) as harness:
            harness.broker.parts.hooks.register_rpc_hook(seen)
            seen.raises_after = FORBIDDEN
            asked = harness.submit(harness.send_command("T"))
            harness.tick()
            assert asked.answer is not None and asked.answer.code == ResponseCode.NO_PERMISSION
            harness.run_jobs()  # the flush sends no second answer

    def test_rpc_hooks_see_a_request_that_fails_after_a_wait(self, tmp_path: Path, seen: Seen) -> None:
        tables = HeldWorker()
        with BrokerHarness(tmp_path, tables=tables) as harness:
            harness.broker.parts.hooks.register_rpc_hook(seen)
            asked = harness.submit(harness.send_command("new"))
            harness.tick()
            assert seen.after == [] and asked.answer is None
            tables.fail_next(OSError(errno.EIO, "broken"))
            tables.run()
            harness.tick()
            assert asked.answer is not None and asked.answer.code == ResponseCode.SYSTEM_ERROR
            assert [code for _, _, code in seen.after] == [ResponseCode.SYSTEM_ERROR]
            assert harness.broker.dispatch.counts["failed"] == 1

    def test_rpc_hooks_do_not_see_a_request_rejected_as_busy(self, rpc: BrokerHarness, seen: Seen) -> None:
        rpc.broker.parts.ticks.begin()
        rpc.clock.advance(1001)
        assert rpc.send("T").code == ResponseCode.SYSTEM_BUSY
        assert seen.before == seen.after == []


class TestSend:
    @pytest.fixture
    def hooked(self, harness: BrokerHarness, seen: Seen) -> BrokerHarness:
        harness.send("T")
        harness.broker.parts.hooks.register_send_message_hook(seen)
        return harness

    def test_the_context_of_a_send_has_the_fields_of_the_message(self, hooked: BrokerHarness, seen: Seen) -> None:
        answer = hooked.send("T", b"four", queue_id=-1, properties={props.UNIQ_KEY: "K"})
        (context,) = seen.sent
        assert seen.sends == [context]
        assert (context.producer_group, context.topic, context.unique_key) == ("producers", "T", "K")
        assert (context.body_bytes, context.kind, context.is_batch) == (4, MessageKind.NORMAL, False)
        assert context.born_host == f"10.0.0.1:{hooked.client.peer.port}"
        assert (context.broker_address, context.region) == ("127.0.0.1:10911", "DefaultRegion")
        assert context.request_ms == hooked.now_ms
        assert (context.code, context.remark, context.is_success) == (0, None, True)
        assert context.message_id == answer.ext["msgId"]
        assert (context.queue_id, context.queue_offset) == (int(answer.ext["queueId"]), int(answer.ext["queueOffset"]))

    @pytest.mark.parametrize(
        ("properties", "kind"),
        [
            ({props.SHARDING_KEY: "k", props.DELAY: "1"}, MessageKind.ORDER),
            ({props.DELAY: "1"}, MessageKind.DELAY),
            ({props.TIMER_DELAY_MS: "5000"}, MessageKind.DELAY),
            ({props.DELAY_IN_SECONDS: "5"}, MessageKind.DELAY),
            ({props.TRAN_MSG: "true"}, MessageKind.HALF),
            ({props.TRAN_MSG: "false"}, MessageKind.NORMAL),
        ],
    )
    def test_the_context_names_the_kind_of_the_message(
        self, hooked: BrokerHarness, seen: Seen, properties: dict[str, str], kind: MessageKind
    ) -> None:
        assert hooked.send("T", properties=properties).code == 0
        assert [context.kind for context in seen.sent] == [kind]

    def test_the_context_of_a_rejected_send_has_code_and_remark(self, hooked: BrokerHarness, seen: Seen) -> None:
        hooked.send("bad/name")
        (context,) = seen.sent
        assert (context.code, context.is_success, context.message_id) == (ResponseCode.INVALID_PARAMETER, False, None)
        assert context.remark is not None

    def test_a_send_hook_may_reject_a_send(self, hooked: BrokerHarness, seen: Seen) -> None:
        seen.raises_before = FORBIDDEN
        answer = hooked.send("T")
        assert (answer.code, answer.remark, answer.ext) == (ResponseCode.NO_PERMISSION, "not you", {})
        assert [context.code for context in seen.sent] == [ResponseCode.NO_PERMISSION]
        assert hooked.bodies("T") == [b"body"]

    def test_other_errors_of_send_hooks_change_nothing(self, hooked: BrokerHarness, seen: Seen) -> None:
        seen.raises_before = seen.raises_after = KeyError("x")
        assert hooked.send("T").code == 0
        assert len(seen.sent) == 1

    def test_the_context_of_a_batch_is_marked(self, hooked: BrokerHarness, seen: Seen) -> None:
        command = hooked.send_command("T", b"", m=True)
        command.code = RequestCode.SEND_BATCH_MESSAGE
        hooked.ask(command)
        assert [context.is_batch for context in seen.sent] == [True]


class TestAuthority:
    def test_a_topic_authority_may_forbid_a_send(self, harness: BrokerHarness, seen: Seen) -> None:
        asked: list[tuple[str, str, str]] = []

        def authority(address: str, group: str, topic: str) -> str | None:
            asked.append((address, group, topic))
            return None if topic == "T" else f"{group} may not send to {topic}"

        harness.broker.parts.hooks.register_topic_authority(authority)
        harness.broker.parts.hooks.register_send_message_hook(seen)
        assert harness.send("T").code == 0
        answer = harness.send("U")
        assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, "producers may not send to U")
        assert [context.code for context in seen.sent] == [0, ResponseCode.NO_PERMISSION]
        assert asked[1] == (f"10.0.0.1:{harness.client.peer.port}", "producers", "U")
        assert harness.broker.parts.topics.get("U") is None


class TestConsume:
    @pytest.fixture
    def hooked(self, harness: BrokerHarness, seen: Seen) -> BrokerHarness:
        for body in (b"a", b"bb"):
            harness.send("T", body)
        harness.broker.parts.hooks.register_consume_message_hook(seen)
        return harness

    def send_back(self, harness: BrokerHarness, **fields: Any) -> int:
        (record, _) = harness.read_queue("T")
        ext = {"offset": str(record.position), "group": "g", "delayLevel": "3", "originTopic": "T", **fields}
        return harness.ask(Command(code=RequestCode.CONSUMER_SEND_MSG_BACK, ext=ext, version=479)).code

    def test_the_context_of_a_pull_has_the_fields_of_the_answer(self, hooked: BrokerHarness, seen: Seen) -> None:
        pulled = hooked.pull("T", consumerGroup="g")
        (context,) = seen.pulled
        assert (context.consumer_group, context.topic, context.queue_id) == ("g", "T", 0)
        assert (context.status, context.message_count, context.is_success) == ("FOUND", 2, True)
        assert context.body_bytes == len(pulled.answer.body)
        assert context.client_host == f"10.0.0.1:{hooked.client.peer.port}"
        assert context.store_host == "127.0.0.1:10911"

    def test_the_context_of_an_empty_pull_has_its_status(self, hooked: BrokerHarness, seen: Seen) -> None:
        hooked.pull("T", offset=2)
        (context,) = seen.pulled
        assert (context.status, context.message_count, context.is_success) == ("OFFSET_OVERFLOW_ONE", 0, False)

    @pytest.mark.parametrize(("level", "status"), [("3", "SEND_BACK"), ("-1", "SEND_BACK_TO_DLQ")])
    def test_the_context_of_a_message_sent_back_has_its_status(
        self, hooked: BrokerHarness, seen: Seen, level: str, status: str
    ) -> None:
        assert self.send_back(hooked, delayLevel=level) == 0
        (context,) = seen.back
        assert (context.consumer_group, context.topic, context.status) == ("g", "T", status)
        assert (context.message_count, context.is_success) == (1, True)

    def test_errors_of_consume_hooks_change_nothing(self, hooked: BrokerHarness, seen: Seen) -> None:
        seen.raises_before = seen.raises_after = KeyError("x")
        assert hooked.pull("T").answer.code == 0
        assert self.send_back(hooked) == 0
        assert seen.pulled and len(seen.back) == 1
