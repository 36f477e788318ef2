"""The network between brokers, name server and clients: proxies that can cut, delay and break each connection."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Sequence

READ_BYTES = 1 << 16


class Link:
    """A proxy that listens at one address, and forwards each connection to the target with the fewest connections.

    `is_cut` lets no connection through. `delay_s` delays each piece of bytes. `break_share` is the chance of each piece
    to end its connection.
    """

    def __init__(self, host: str, port: int, targets: Sequence[tuple[str, int]], randomness: random.Random) -> None:
        self._host = host
        self._port = port
        self._targets = list(targets)
        self._randomness = randomness
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], tuple[str, int]] = {}
        self.is_cut = False
        self.delay_s = 0.0
        self.break_share = 0.0

    @property
    def address(self) -> str:
        return f"{self._host}:{self._port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, self._host, self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        self._end_connections()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def cut(self) -> None:
        """Break all connections, and let no new one through until `heal`."""
        self.is_cut = True
        self._end_connections()

    def heal(self) -> None:
        self.is_cut, self.delay_s, self.break_share = False, 0.0, 0.0

    def move(self, *targets: tuple[str, int]) -> None:
        """Lead connections to `targets`. Break those to others, and those above a target's equal share."""
        self._targets = list(targets)
        share = -(-len(self._connections) // max(1, len(targets)))
        kept: Counter[tuple[str, int]] = Counter()
        for task, target in list(self._connections.items()):
            if target in targets and kept[target] < share:
                kept[target] += 1
            else:
                task.cancel()

    def _end_connections(self) -> None:
        for task in list(self._connections):
            task.cancel()

    async def _serve(self, client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        present = Counter(self._connections.values())
        target = min(self._targets, key=present.__getitem__)
        self._connections[task] = target
        try:
            if not self.is_cut:
                await self._forward(client, answers, target)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            del self._connections[task]
            answers.transport.abort()

    async def _forward(
        self, client: asyncio.StreamReader, answers: asyncio.StreamWriter, target: tuple[str, int]
    ) -> None:
        server, requests = await asyncio.open_connection(*target)
        try:
            async with asyncio.TaskGroup() as ways:
                ways.create_task(self._pass_on(client, requests))
                ways.create_task(self._pass_on(server, answers))
        except* (OSError, EOFError):
            pass
        finally:
            requests.transport.abort()

    async def _pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(READ_BYTES):
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            if self.break_share and self._randomness.random() < self.break_share:
                raise EOFError
            sink.write(data)
            await sink.drain()
        raise EOFError


async def stop_all(links: Sequence[Link]) -> None:
    with contextlib.suppress(OSError):
        await asyncio.gather(*(link.stop() for link in links))
