"""The connection below the client: cancelled calls, and servers that stop or fall silent."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from unittest import mock

import pytest

from tests.unit.client.conftest import Start, until
from wheelmq.formats.wire import frame, headers
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net import rpc_client as module
from wheelmq.net.errors import CallError, Unreachable
from wheelmq.net.rpc_client import RpcClient

HELD = headers.write(
    headers.PullHeader(
        consumer_group="G",
        topic="SCHEDULE_TOPIC_XXXX",
        queue_id=0,
        queue_offset=0,
        max_msg_nums=1,
        sys_flag=headers.PULL_SUSPEND | headers.PULL_SUBSCRIPTION,
        commit_offset=0,
        suspend_timeout_millis=20_000,
        subscription="*",
    )
)


def question() -> Command:
    return Command(code=RequestCode.GET_BROKER_RUNTIME_INFO)


def test_a_call_cancelled_as_its_answer_arrives_is_cancelled(servers: Start) -> None:
    """The stop of a pull loop relies on it."""

    async def scenario() -> None:
        async with servers() as running:
            caller = RpcClient(running.address)
            await caller.call(question())
            calling = asyncio.create_task(caller.call(question()))
            take = caller._take

            def take_and_cancel(command: Command) -> None:
                take(command)
                calling.cancel()

            with mock.patch.object(caller, "_take", take_and_cancel), pytest.raises(asyncio.CancelledError):
                await calling
            await caller.close()

    asyncio.run(scenario())


def test_unreachable_is_raised_only_if_no_request_was_sent(servers: Start) -> None:
    async def scenario() -> None:
        async with servers() as running:
            caller = RpcClient(running.address)
            await caller.call(question())
            await running.app.stop()
            with pytest.raises(CallError):
                await caller.call(question())
            with pytest.raises(Unreachable):
                await caller.call(question())
            await caller.close()

    asyncio.run(scenario())


async def start_asking_server(*requests: Command) -> tuple[asyncio.Server, str, asyncio.Queue[Command]]:
    """Start a server that sends these requests to each client. Returns the server, its address and the answers."""
    answers: asyncio.Queue[Command] = asyncio.Queue()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for request in requests:
            writer.write(frame.encode(request))
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                head = await reader.readexactly(4)
                raw = head + await reader.readexactly(int.from_bytes(head, "big"))
                answers.put_nowait(frame.decode(raw, 0, len(raw)))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    return server, f"127.0.0.1:{server.sockets[0].getsockname()[1]}", answers


def test_a_client_answers_requests_of_a_server_at_once_or_later() -> None:
    async def scenario() -> None:
        gate = asyncio.Event()

        async def later(command: Command) -> Command | None:
            await gate.wait()
            if command.opaque == 2:
                raise OSError("later")
            return Command(code=0, remark="later")

        def on_request(command: Command) -> Command | Awaitable[Command | None] | None:
            if command.opaque == 3:
                return Command(code=0, remark="at once")
            if command.opaque == 4:
                raise ValueError("at once")
            return later(command)

        server, address, answers = await start_asking_server(*(Command(code=7, opaque=i) for i in range(1, 5)))
        caller = RpcClient(address, on_request)
        await caller.send_oneway(question())
        found = {(one := await answers.get()).opaque: one for _ in range(3)}
        assert (found[3].remark, found[4].code, found[4].remark) == ("at once", 1, "ValueError: at once")
        gate.set()
        found |= {(one := await answers.get()).opaque: one for _ in range(2)}
        assert (found[1].remark, found[2].remark) == ("later", "OSError: later")
        await caller.close()
        server.close()

    asyncio.run(scenario())


def test_a_client_limits_the_open_requests_of_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ASKED_MAX", 2)

    async def scenario() -> None:
        async def never(command: Command) -> None:
            await asyncio.Event().wait()

        server, address, answers = await start_asking_server(*(Command(code=7, opaque=i) for i in range(1, 4)))
        caller = RpcClient(address, never)
        await caller.send_oneway(question())
        first = await answers.get()  # the oneway request of the client
        refused = await answers.get()
        if refused.code == RequestCode.GET_BROKER_RUNTIME_INFO:
            first, refused = refused, first
        assert (refused.opaque, refused.code) == (3, ResponseCode.SYSTEM_BUSY)
        await caller.close()
        server.close()

    asyncio.run(scenario())


async def start_silent_server() -> tuple[asyncio.Server, str, list[int]]:
    """Start a server that never answers. Returns it, its address and one entry per connection."""
    came: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.append(len(came))
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    return server, f"127.0.0.1:{server.sockets[0].getsockname()[1]}", came


def test_concurrent_calls_share_one_connection_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a call would wait for the attempts of the others, beyond its own timeout."""
    attempts: list[str] = []

    async def never(host: str, port: int, **_: object) -> None:
        attempts.append(host)
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio, "open_connection", never)

    async def scenario() -> None:
        caller = RpcClient("[::1]:9876")
        async with asyncio.timeout(2.0):
            calls = (caller.call(question(), 0.05) for _ in range(100))
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {Unreachable}
        assert attempts == ["::1"]
        await caller.close()

    asyncio.run(scenario())


def test_a_client_reconnects_to_a_silent_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SILENCE_S", 0.02)

    async def scenario() -> None:
        server, address, came = await start_silent_server()
        lost: list[str] = []
        caller = RpcClient(address, on_lost=lambda: lost.append(address))
        beside = asyncio.create_task(caller.call(question(), 60.0))
        with pytest.raises(CallError, match="did not answer"):
            await caller.call(question(), 0.05)
        with pytest.raises(CallError, match="silent for"):
            await beside
        with pytest.raises(CallError, match="did not answer"):
            await caller.call(question(), 0.05)
        await until(lambda: len(came) == 2)
        assert lost == [address, address]
        await caller.close()
        server.close()

    asyncio.run(scenario())


def test_a_slow_call_does_not_close_the_connection(servers: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server still answers other calls, so a held call is no sign that the server is gone."""
    monkeypatch.setattr(module, "SILENCE_S", 0.0)

    async def scenario() -> None:
        async with servers() as running:
            caller = RpcClient(running.address)
            await caller.call(question())
            held = asyncio.create_task(caller.call(Command(code=RequestCode.PULL_MESSAGE, ext=HELD), 0.2))
            while not held.done():
                await caller.call(question())
            with pytest.raises(CallError, match="did not answer"):
                await held
            writer = caller._writer
            await caller.call(question())
            assert caller._writer is writer is not None
            await caller.close()

    asyncio.run(scenario())


def test_an_error_in_the_reader_fails_the_waiting_calls(servers: Start) -> None:
    def broken(command: Command) -> None:
        raise KeyError("a mistake of our own")

    async def scenario() -> None:
        async with servers() as running:
            caller = RpcClient(running.address)
            await caller.call(question())
            with mock.patch.object(caller, "_take", broken), pytest.raises(CallError, match="a mistake of our own"):
                await caller.call(question(), 60.0)
            await caller.call(question())
            await caller.close()

    asyncio.run(scenario())


def test_a_closed_client_does_not_reconnect() -> None:
    async def scenario() -> None:
        server, address, _ = await start_silent_server()
        caller = RpcClient(address)
        waiting = asyncio.create_task(caller.call(question(), 60.0))
        await asyncio.sleep(0)
        await caller.close()
        with pytest.raises(CallError, match="was closed"):
            await waiting
        with pytest.raises(CallError, match="was closed"):
            await caller.call(question())
        assert caller._writer is None
        server.close()

    asyncio.run(scenario())


def test_no_request_is_sent_on_an_ended_connection() -> None:
    """This also holds before the client handles the end: a request sent then would be lost."""

    async def scenario() -> None:
        came: list[asyncio.StreamWriter] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            came.append(writer)
            with contextlib.suppress(asyncio.IncompleteReadError):
                while head := await reader.readexactly(4):
                    raw = head + await reader.readexactly(int.from_bytes(head, "big"))
                    asked = frame.decode(raw, 0, len(raw))
                    writer.write(frame.encode(Command(code=0, opaque=asked.opaque, flag=frame.FLAG_RESPONSE)))

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        caller = RpcClient(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        await caller.call(question())
        reader = caller._reader
        assert reader is not None
        reader.feed_eof()  # as the transport does; the reading task has not run since
        assert (await caller.call(question())).code == 0
        assert len(came) == 2
        await caller.close()
        for writer in came:
            writer.close()
        server.close()

    asyncio.run(scenario())
