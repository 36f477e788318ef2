"""The connection below the client: what happens when a call is cancelled or a server goes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from unittest import mock

import pytest

from tests.unit.client.conftest import Start
from wheelmq.formats.wire import frame
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net import caller as module
from wheelmq.net.caller import Caller
from wheelmq.net.errors import CallError, Unreachable


def question() -> Command:
    return Command(code=RequestCode.GET_BROKER_RUNTIME_INFO)


def test_a_call_that_is_cancelled_as_its_answer_comes_is_cancelled(servers: Start) -> None:
    """Whoever stops a pull loop relies on it."""

    async def scenario() -> None:
        async with servers() as running:
            caller = Caller(running.address)
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
            caller = Caller(running.address)
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
        caller = Caller(address, on_request)
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
        caller = Caller(address, never)
        await caller.tell(question())
        first = await answers.get()  # our own oneway request
        refused = await answers.get()
        if refused.code == RequestCode.GET_BROKER_RUNTIME_INFO:
            first, refused = refused, first
        assert (refused.opaque, refused.code) == (3, ResponseCode.SYSTEM_BUSY)
        await caller.close()
        server.close()

    asyncio.run(scenario())
