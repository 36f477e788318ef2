"""Run commands of `wheelmq` against a name server and a broker in the event loop of the test."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from click.testing import CliRunner, Result

from tests.unit.client.conftest import Servers, Start
from wheelmq.cli import main
from wheelmq.cli.brokers import check_topic_is_known
from wheelmq.client.routes import TopicUnknown


class Command(Protocol):
    """Run a command in a thread, with `--namesrv`. Returns its output; its exit code must be `code`."""

    async def __call__(self, *words: str, stdin: bytes = b"", code: int = 0) -> str: ...


Work = Callable[[Servers, Command], Awaitable[None]]
Running = Callable[..., None]


def run_with(start: Start) -> Running:
    """Return a function that runs `work` with servers; its keywords are settings of the broker."""

    def running(work: Work, **settings: Any) -> None:
        async def scenario() -> None:
            async with start(**settings) as servers:
                await work(servers, command_for(servers.namesrv))

        asyncio.run(scenario())

    return running


def command_for(namesrv: str) -> Command:
    turn = asyncio.Lock()

    async def command(*words: str, stdin: bytes = b"", code: int = 0) -> str:
        def run() -> Result:
            return CliRunner().invoke(main, list(words), input=stdin, env={"WHEELMQ_NAMESRV": namesrv})

        async with turn:  # a runner replaces the streams of the process
            result = await asyncio.to_thread(run)
        assert result.exit_code == code, (words, result.output, result.exception)
        return result.output

    return command


async def topic_registered(servers: Servers, topic: str) -> None:
    """Wait until the name server knows `topic`: the broker registers a new topic after its first message."""
    while True:
        try:
            return await check_topic_is_known(servers.namesrv, topic, None)
        except TopicUnknown:
            await asyncio.sleep(0.005)
