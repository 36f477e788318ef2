"""Dispatch: exceptions, odd frames and unknown codes, and the requests of the broker to its clients."""

from __future__ import annotations

import pytest

from tests.unit.broker.test_handlers import send_heartbeat
from wheelmq.broker.calls import Calls, Unanswered
from wheelmq.broker.handler_table import BoundHandler
from wheelmq.formats.disk.message import Host
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import FLAG_RESPONSE, Command
from wheelmq.testing.connection import FakeConnection
from wheelmq.testing.harness import BrokerHarness, NoAnswer


class TestDispatch:
    @pytest.mark.parametrize("code", [0, -1, 13, 47, 9999, 1 << 40])
    def test_an_unsupported_code_is_rejected(self, harness: BrokerHarness, code: int) -> None:
        answer = harness.ask(Command(code=code))
        assert (answer.code, answer.remark) == (3, f" request type {code} not supported")

    def test_a_oneway_request_is_never_answered(self, harness: BrokerHarness) -> None:
        for code in (13, RequestCode.GET_MAX_OFFSET, RequestCode.GET_BROKER_RUNTIME_INFO):
            asked = harness.submit(Command(code=code), oneway=True)
            harness.tick()
            assert asked.answer is None

    def test_an_exception_of_a_handler_is_answered(
        self, harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def boom(request: object) -> None:
            raise ValueError("x" * 5000)

        monkeypatch.setitem(harness.broker.dispatch.handlers, 13, BoundHandler(boom, ()))
        answer = harness.ask(Command(code=13))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert (answer.remark or "").startswith("ValueError: xxx") and len(answer.remark or "") <= 1024
        assert harness.broker.dispatch.counts["failed"] == 1

    def test_an_exception_of_a_handler_is_logged_with_its_command(
        self, harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def boom(request: object) -> None:
            raise ValueError("unforeseen")

        monkeypatch.setitem(harness.broker.dispatch.handlers, 13, BoundHandler(boom, ()))
        ext = {"topic": "T" * 500, "AccessKey": "s3cret"}
        harness.ask(Command(code=13, ext=ext, body=b"private", version=401))
        (record,) = [record for record in caplog.records if record.exc_info]
        line = record.getMessage()
        assert line.startswith("request code=13 opaque=") and "version=401" in line and "body=7 bytes" in line
        assert f"topic={'T' * 64}..., AccessKey=***" in line and " from 10.0.0." in line
        assert "s3cret" not in line and "private" not in line

    def test_an_exception_of_a_held_pull_is_logged(
        self, harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        from wheelmq.broker.handlers import pull as pull_module

        def boom(*arguments: object) -> None:
            raise ValueError("unforeseen")

        harness.send("T")
        asked = harness.submit(harness.pull_command("T", offset=1, hold_ms=10_000))
        harness.tick()
        monkeypatch.setattr(pull_module, "read_queue", boom)
        harness.send("T")
        assert asked.answer is not None and asked.answer.code == ResponseCode.SYSTEM_ERROR
        assert any(text.startswith("held request with code=11 from 10.0.0.") for text in caplog.messages)

    def test_a_handler_may_return_no_answer(self, harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(harness.broker.dispatch.handlers, 13, BoundHandler(lambda request: None, ()))
        with pytest.raises(NoAnswer):
            harness.ask(Command(code=13))

    def test_frames_may_arrive_together_and_in_pieces(self, harness: BrokerHarness) -> None:
        from wheelmq.formats.wire import frame

        connection = harness.connect()
        raw = b""
        for i in range(5):
            command = harness.send_command("T", b"%d" % i)
            command.opaque = connection.next_opaque()
            raw += frame.encode(command)
        for at in range(0, len(raw), 37):
            harness.feed(raw[at : at + 37], connection)
        harness.tick()
        assert len(connection.answers) == 5
        assert harness.bodies("T") == [b"0", b"1", b"2", b"3", b"4"]

    @pytest.mark.parametrize(
        "raw", [b"\0\0\0\0", b"\xff\xff\xff\xff", b"\0\0\0\x08\x02\0\0\0{}{}", b"GET / HTTP/1.1\r\n"]
    )
    def test_an_invalid_frame_closes_the_connection(self, harness: BrokerHarness, raw: bytes) -> None:
        connection = harness.connect()
        send_heartbeat(harness, connection)
        harness.feed(raw, connection)
        assert not connection.is_open
        assert harness.broker.parts.clients.consumers == {}
        assert harness.send("T").code == 0

    def test_an_unexpected_answer_is_counted_and_ignored(self, harness: BrokerHarness) -> None:
        from wheelmq.formats.wire import frame

        harness.feed(frame.encode(Command(code=0, opaque=77, flag=FLAG_RESPONSE)))
        harness.tick()
        assert harness.broker.parts.calls.counts["unknown"] == 1


class TestCalls:
    def test_an_answer_reaches_the_call_with_its_connection_and_opaque(self, harness: BrokerHarness) -> None:
        from wheelmq.formats.wire import frame

        connection, got = harness.connect(), list[Command | Unanswered]()
        deadline_ms = harness.broker.parts.clock.monotonic_ms() + 10_000
        for _ in range(2):
            harness.broker.parts.calls.ask(connection, Command(code=307), deadline_ms, got.append)
        harness.tick()
        first, second = connection.requests
        assert first.opaque != second.opaque and not first.is_oneway
        harness.feed(frame.encode(Command(code=0, opaque=second.opaque, flag=FLAG_RESPONSE, body=b"2")), connection)
        assert [isinstance(answer, Command) and answer.body for answer in got] == [b"2"]
        harness.feed(frame.encode(Command(code=0, opaque=first.opaque, flag=FLAG_RESPONSE)), harness.connect())
        assert len(got) == 1  # the answer came over another connection
        harness.advance(10_000)
        assert got[1] is Unanswered.LATE
        assert harness.broker.parts.calls.counts == {"unknown": 1, "late": 1}
        harness.feed(frame.encode(Command(code=0, opaque=first.opaque, flag=FLAG_RESPONSE)), connection)
        assert len(got) == 2

    def test_a_lost_connection_ends_its_calls(self, harness: BrokerHarness) -> None:
        connection, got = harness.connect(), list[Command | Unanswered]()
        calls = harness.broker.parts.calls
        for _ in range(2):
            calls.ask(connection, Command(code=307), 1 << 40, got.append)
        harness.lose(connection)
        assert got == [Unanswered.GONE] * 2
        calls.ask(connection, Command(code=307), 1 << 40, got.append)
        assert got == [Unanswered.GONE] * 3 and len(calls) == 0

    def test_the_number_of_calls_is_limited(self) -> None:
        calls, connection = Calls(count_max=2), FakeConnection(Host(bytes(4), 1))
        got: list[Command | Unanswered] = []
        for _ in range(3):
            calls.ask(connection, Command(code=307), 1000, got.append)
        assert got == [Unanswered.BUSY]
        calls.expire(1000)
        assert got == [Unanswered.BUSY, Unanswered.LATE, Unanswered.LATE]

    def test_a_call_to_a_client_that_does_not_read_is_rejected(self) -> None:
        calls, connection = Calls(), FakeConnection(Host(bytes(4), 1))
        connection.is_full = True
        got: list[Command | Unanswered] = []
        calls.ask(connection, Command(code=307), 1000, got.append)
        assert got == [Unanswered.BUSY] and len(calls) == 0

    def test_answered_calls_leave_no_state(self) -> None:
        calls, connection = Calls(), FakeConnection(Host(bytes(4), 1))
        got: list[Command | Unanswered] = []
        for opaque in range(1, 1001):
            calls.ask(connection, Command(code=307), 1 << 40, got.append)
            calls.answered(connection, Command(code=0, opaque=opaque))
        assert len(got) == 1000 and len(calls) == 0
        assert len(calls._deadlines) < 100 and not calls._waiting
