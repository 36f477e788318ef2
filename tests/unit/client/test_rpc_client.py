"""The connection below the client: what happens when a call is cancelled or a server goes."""

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


def test_a_call_that_is_cancelled_as_its_answer_comes_is_cancelled(servers: Start) -> None:
    """Whoever stops a pull loop relies on it."""

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


def test_who_cannot_be_reached_was_told_nothing(servers: Start) -> None:
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


async def asking(*requests: Command) -> tuple[asyncio.Server, str, asyncio.Queue[Command]]:
    """A server that asks each client these, and its answers."""
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


def test_what_a_server_asks_is_answered_at_once_or_later_or_told_to_have_failed() -> None:
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

        server, address, answers = await asking(*(Command(code=7, opaque=i) for i in range(1, 5)))
        caller = RpcClient(address, on_request)
        await caller.tell(question())
        found = {(one := await answers.get()).opaque: one for _ in range(3)}
        assert (found[3].remark, found[4].code, found[4].remark) == ("at once", 1, "ValueError: at once")
        gate.set()
        found |= {(one := await answers.get()).opaque: one for _ in range(2)}
        assert (found[1].remark, found[2].remark) == ("later", "OSError: later")
        await caller.close()
        server.close()

    asyncio.run(scenario())


def test_a_server_that_asks_too_much_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ASKED_MAX", 2)

    async def scenario() -> None:
        async def never(command: Command) -> None:
            await asyncio.Event().wait()

        server, address, answers = await asking(*(Command(code=7, opaque=i) for i in range(1, 4)))
        caller = RpcClient(address, never)
        await caller.tell(question())
        first = await answers.get()  # our own oneway request
        refused = await answers.get()
        if refused.code == RequestCode.GET_BROKER_RUNTIME_INFO:
            first, refused = refused, first
        assert (refused.opaque, refused.code) == (3, ResponseCode.SYSTEM_BUSY)
        await caller.close()
        server.close()

    asyncio.run(scenario())


async def mute() -> tuple[asyncio.Server, str, list[int]]:
    """A server that takes connections, and never says anything; how many came."""
    came: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.append(len(came))
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    return server, f"127.0.0.1:{server.sockets[0].getsockname()[1]}", came


def test_all_who_wait_for_a_connection_wait_for_the_same_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """None has to wait behind the attempts of the others for longer than it has time."""
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


def test_a_server_that_has_gone_silent_is_connected_to_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SILENCE_S", 0.02)

    async def scenario() -> None:
        server, address, came = await mute()
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


def test_a_server_that_is_slow_keeps_its_connection(servers: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that answers others: a call that is held longer than its caller waits is no sign that it has gone."""
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


def test_what_breaks_the_reader_fails_the_calls(servers: Start) -> None:
    """Nobody waits for a task that has died."""

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


def test_a_connection_that_was_closed_is_not_made_again() -> None:
    async def scenario() -> None:
        server, address, _ = await mute()
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


def test_nothing_is_sent_on_a_connection_that_has_ended() -> None:
    """Also while the end is not worked off yet: the request would be lost, and its caller could not know."""

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
        reader.feed_eof()  # as the transport does; the task that reads has not run since
        assert (await caller.call(question())).code == 0
        assert len(came) == 2
        await caller.close()
        for writer in came:
            writer.close()
        server.close()

    asyncio.run(scenario())
