"""The connection below the client: what happens when a call is cancelled or a server goes."""

from __future__ import annotations

import asyncio
from unittest import mock

import pytest

from tests.unit.client.conftest import Start
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
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
