"""A proxy for a broker that can delay the broker's answers."""

from __future__ import annotations

import asyncio
import contextlib

READ_BYTES = 1 << 16


class SlowProxy:
    """Listens on a port of its own and forwards to `target`. `delay_s` delays each piece of an answer."""

    def __init__(self, target: str) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.delay_s = 0.0

    async def start(self) -> str:
        """Start listening, and return the address."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        return f"127.0.0.1:{port}"

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        try:
            broker, requests = await asyncio.open_connection(self._host, self._port)
        except OSError:
            answers.close()
            return
        ways = [
            asyncio.create_task(self._pass_on(client, requests, slow=False)),
            asyncio.create_task(self._pass_on(broker, answers, slow=True)),
        ]
        self._tasks.update(ways)
        for way in ways:
            way.add_done_callback(self._tasks.discard)
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for writer in (answers, requests):
            writer.close()

    async def _pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, slow: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(READ_BYTES):
                if slow and self.delay_s:
                    await asyncio.sleep(self.delay_s)
                sink.write(data)
                await sink.drain()
