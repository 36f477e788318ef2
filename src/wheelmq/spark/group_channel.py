"""The channel from the planner of a group query to the driver: a Unix socket in a scratch folder of the driver.

The planner runs on the driver's machine. Only the user of the driver can open the folder. So the tokens of leases are
neither in options nor in a checkpoint, and members join and leave without another query.

Each request and each answer is a frame: 4 bytes of length, big-endian, then JSON.

    {"ask": "batch"}                  the end offset of the next batch, or null if no plan came within a second
    {"ask": "parts", "sequence": 7}   the parts of a batch, as fields of GroupPart; [] if it is over
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Final

from wheelmq.spark import scratch

ANSWER_S: Final = 30.0
"""Time limit of the planner for an answer. A driver that does not answer has hung, and its query ends."""
FRAME_BYTES_MAX: Final = 64 << 20

Answer = Callable[[dict[str, Any]], Awaitable[Any]]


class ChannelServer:
    """The end of the driver, on its event loop. `answer` returns the answer to a request."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._folder = scratch.folder("group", scratch.memory())
        self.path = self._folder / "channel"
        self._server: asyncio.AbstractServer | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, str(self.path))

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._serving):
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    size = int.from_bytes(await reader.readexactly(4), "big")
                    request = json.loads(await reader.readexactly(min(size, FRAME_BYTES_MAX)))
                    writer.write(_frame(await self._answer(request)))
                    await writer.drain()
        finally:
            self._serving.discard(task)
            writer.close()


class ChannelClient:
    """The end of the planner. It connects at the first call."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._socket: socket.socket | None = None

    def ask(self, **request: Any) -> Any:
        """Send a request, and return its answer. Raises OSError when the driver does not answer."""
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._socket.settimeout(ANSWER_S)
            self._socket.connect(self._path)
        self._socket.sendall(_frame(request))
        size = int.from_bytes(self._exactly(self._socket, 4), "big")
        return json.loads(self._exactly(self._socket, size))

    @staticmethod
    def _exactly(connection: socket.socket, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            chunk = connection.recv(count - len(parts))
            if not chunk:
                raise ConnectionResetError("the driver closed the channel of the group")
            parts += chunk
        return bytes(parts)


def _frame(value: Any) -> bytes:
    body = json.dumps(value).encode()
    return len(body).to_bytes(4, "big") + body
