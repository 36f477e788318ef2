"""The client shell: one connection to a server, requests matched to answers by opaque."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Final

from wheelmq.formats.wire import frame
from wheelmq.formats.wire.codes import ResponseCode
from wheelmq.formats.wire.frame import Command, FrameError
from wheelmq.net.errors import CallError, Refused, Unreachable

log = logging.getLogger(__name__)

READ_BYTES = 256 << 10
ASKED_MAX: Final = 1000
"""Requests of the server's own accord that are worked on at once; more are refused, and oneway ones dropped."""

OnRequest = Callable[[Command], Command | Awaitable[Command | None] | None]


class Caller:
    """One connection, made at the first call and again after it was lost.

    `on_request` gets what the server asks of its own accord; what it returns is the answer, at once or when it is
    awaited. `on_lost` is told when the connection breaks.
    """

    def __init__(
        self,
        address: str,
        on_request: OnRequest | None = None,
        on_lost: Callable[[], None] | None = None,
    ) -> None:
        self.address = address
        self._on_request = on_request
        self._on_lost = on_lost
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._waiting: dict[int, asyncio.Future[Command]] = {}
        self._opaque = 0
        self._task: asyncio.Task[None] | None = None
        self._asked: set[asyncio.Task[None]] = set()
        self._connecting = asyncio.Lock()

    async def call(self, command: Command, timeout_s: float = 3.0) -> Command:
        """Send a request and wait for its answer, whatever its code. Raises CallError."""
        await self._connect(timeout_s)
        self._opaque = (self._opaque + 1) & 0x7FFF_FFFF
        command.opaque = self._opaque
        future: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        self._waiting[command.opaque] = future
        try:
            self._write(command)
            async with asyncio.timeout(timeout_s):  # wait_for of Python 3.11 may swallow a cancellation
                return await future
        except TimeoutError:
            raise CallError(f"{self.address} did not answer code {command.code} within {timeout_s} s") from None
        finally:
            self._waiting.pop(command.opaque, None)

    async def ask(self, command: Command, timeout_s: float = 3.0) -> Command:
        """As `call`, but raises Refused for an answer that is no success."""
        answer = await self.call(command, timeout_s)
        if answer.code != ResponseCode.SUCCESS:
            raise Refused(answer)
        return answer

    async def tell(self, command: Command, timeout_s: float = 3.0) -> None:
        """Send a oneway request; waits while the server does not read. Raises CallError."""
        await self._connect(timeout_s)
        self._opaque = (self._opaque + 1) & 0x7FFF_FFFF
        command.opaque = self._opaque
        command.flag |= frame.FLAG_ONEWAY
        self._write(command)
        try:
            async with asyncio.timeout(timeout_s):
                if self._writer is not None:
                    await self._writer.drain()
        except (OSError, TimeoutError) as error:
            raise CallError(f"{self.address} does not read: {error or 'too long'}") from None

    async def close(self) -> None:
        """Close the connection; waiting calls fail, and what the server asked is not answered any more."""
        for task in self._asked:
            task.cancel()
        await asyncio.gather(*self._asked, return_exceptions=True)
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self._drop(CallError(f"the connection to {self.address} was closed"))

    async def _connect(self, timeout_s: float) -> None:
        async with self._connecting:
            if self._writer is not None:
                return
            host, _, port = self.address.rpartition(":")
            try:
                async with asyncio.timeout(timeout_s):
                    self._reader, self._writer = await asyncio.open_connection(host, int(port), limit=READ_BYTES)
            except (OSError, TimeoutError) as error:
                raise Unreachable(f"{self.address} cannot be reached: {error or 'no answer in time'}") from None
            self._writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._task = asyncio.create_task(self._read())

    def _write(self, command: Command) -> None:
        if self._writer is None:
            raise CallError(f"the connection to {self.address} is lost")
        self._writer.write(frame.encode(command))

    async def _read(self) -> None:
        assert self._reader is not None
        buffer = bytearray()
        try:
            while chunk := await self._reader.read(READ_BYTES):
                buffer += chunk
                at = 0
                while (end := frame.frame_end(buffer, at, len(buffer))) is not None:
                    self._take(frame.decode(buffer, at, end))
                    at = end
                if at:
                    del buffer[:at]
            self._lose(CallError(f"{self.address} closed the connection"))
        except (OSError, FrameError) as error:
            self._lose(CallError(f"the connection to {self.address} failed: {error}"))

    def _take(self, command: Command) -> None:
        if command.is_response:
            future = self._waiting.get(command.opaque)
            if future is not None and not future.done():
                future.set_result(command)
            return
        if len(self._asked) >= ASKED_MAX:
            self._answer(command, Command(code=ResponseCode.SYSTEM_BUSY, remark=f"{ASKED_MAX} requests are worked on"))
            return
        try:
            answer = self._on_request(command) if self._on_request is not None else None
        except Exception as error:
            answer = self._failed(command, error)
        if isinstance(answer, Command):
            self._answer(command, answer)
        elif answer is not None:
            self._answer_later(command, answer)

    def _answer_later(self, command: Command, answer: Awaitable[Command | None]) -> None:
        async def work() -> None:
            try:
                found = await answer
            except Exception as error:
                found = self._failed(command, error)
            if found is not None:
                self._answer(command, found)

        task = asyncio.create_task(work())
        self._asked.add(task)
        task.add_done_callback(self._asked.discard)

    def _failed(self, command: Command, error: Exception) -> Command:
        log.error("request %s of %s", command.code, self.address, exc_info=error)
        return Command(code=ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")

    def _answer(self, command: Command, answer: Command) -> None:
        if not command.is_oneway and self._writer is not None:
            answer.opaque, answer.flag = command.opaque, frame.FLAG_RESPONSE
            self._write(answer)

    def _lose(self, error: CallError) -> None:
        """The server, or the way to it, has gone."""
        self._drop(error)
        if self._on_lost is not None:
            self._on_lost()

    def _drop(self, error: CallError) -> None:
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)
        self._waiting.clear()
