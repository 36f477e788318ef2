"""The client shell: one connection to a server. It matches answers to requests by opaque."""

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
from wheelmq.system.backports import is_cancelled, timeout
from wheelmq.system.tls_client import ClientTls, problem_text

log = logging.getLogger(__name__)

READ_BYTES = 256 << 10
ASKED_MAX: Final = 1000
"""Requests of the server in progress at once. Further ones are rejected; further oneway requests are dropped."""
SILENCE_S: Final = 1.0
"""A call that timed out after at least this many seconds drops its connection if nothing at all arrived meanwhile."""
CLOSING_S: Final = 1.0
"""Seconds that a close waits for written data to be sent."""

OnRequest = Callable[[Command], Command | Awaitable[Command | None] | None]


class RpcClient:
    """One connection, opened at the first call and again after a loss, until it is closed.

    A server can vanish without closing the connection, and the system would retry for a quarter of an hour. So a call
    that times out while nothing arrived drops the connection.

    `on_request` receives the requests of the server. Its result is the answer, either at once or when awaited.
    `on_lost` runs when the connection breaks. `sign` completes each request before it is sent. `tls` encrypts the
    connection.
    """

    def __init__(
        self,
        address: str,
        on_request: OnRequest | None = None,
        on_lost: Callable[[], None] | None = None,
        sign: Callable[[Command], None] | None = None,
        tls: ClientTls | None = None,
    ) -> None:
        self.address = address
        self._tls = tls
        self._on_request = on_request
        self._on_lost = on_lost
        self._sign = sign
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._waiting: dict[int, asyncio.Future[Command]] = {}
        self._opaque = 0
        self._task: asyncio.Task[None] | None = None
        self._asked: set[asyncio.Task[None]] = set()
        self._opening: asyncio.Task[None] | None = None
        self._is_closed = False
        self._heard = 0
        """Number of reads that returned data."""

    @property
    def is_open(self) -> bool:
        """Whether a call uses the present connection. Otherwise the call opens another one."""
        if self._reader is None or self._writer is None:
            return False
        return not self._reader.at_eof() and not self._writer.is_closing()

    async def call(self, command: Command, timeout_s: float = 3.0) -> Command:
        """Send a request and return its answer, with any code. Raises CallError."""
        await self._connect(timeout_s)
        self._opaque = (self._opaque + 1) & 0x7FFF_FFFF
        command.opaque = self._opaque
        future: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        self._waiting[command.opaque] = future
        writer, heard = self._writer, self._heard
        try:
            self._write(command)
            async with timeout(timeout_s):  # wait_for of Python 3.11 may swallow a cancellation
                return await future
        except TimeoutError:
            self._give_up(writer, heard, timeout_s)
            raise CallError(f"{self.address} did not answer code {command.code} within {timeout_s} s") from None
        finally:
            self._waiting.pop(command.opaque, None)

    async def ask(self, command: Command, timeout_s: float = 3.0) -> Command:
        """Call the server as `call` does. Raises Refused if the answer's code is not SUCCESS."""
        answer = await self.call(command, timeout_s)
        if answer.code != ResponseCode.SUCCESS:
            raise Refused(answer)
        return answer

    async def send_oneway(self, command: Command, timeout_s: float = 3.0) -> None:
        """Send a oneway request. Waits while the server does not read. Raises CallError."""
        await self._connect(timeout_s)
        self._opaque = (self._opaque + 1) & 0x7FFF_FFFF
        command.opaque = self._opaque
        command.flag |= frame.FLAG_ONEWAY
        writer, heard = self._writer, self._heard
        self._write(command)
        try:
            async with timeout(timeout_s):
                if writer is not None:
                    await writer.drain()
        except (OSError, TimeoutError) as error:
            self._give_up(writer, heard, timeout_s)
            raise CallError(f"{self.address} does not read: {error or 'no progress in time'}") from None

    async def close(self) -> None:
        """Close the connection for good. Waiting calls fail, and requests of the server remain without an answer."""
        self._is_closed = True
        for task in self._asked:
            task.cancel()
        await asyncio.gather(*self._asked, return_exceptions=True)
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        writer = self._drop(CallError(f"the connection to {self.address} was closed"))
        if writer is not None:
            writer.close()
            try:
                async with timeout(CLOSING_S):
                    await writer.wait_closed()
            except (OSError, TimeoutError):
                writer.transport.abort()

    def abort(self) -> None:
        """Break the connection and drop unsent data. The next call opens another connection."""
        if self._writer is not None:
            self._writer.transport.abort()

    async def _connect(self, timeout_s: float) -> None:
        """Connect if there is no connection. All callers wait for the same attempt, each up to its own timeout."""
        if self.is_open:
            return
        if self._writer is not None:
            # the connection is closed but the reader does not know yet: a request would be lost
            self._lose(self._writer, CallError(f"{self.address} closed the connection"))
        if self._is_closed:
            raise Unreachable(f"the connection to {self.address} was closed")
        if self._opening is None:
            self._opening = asyncio.create_task(self._open(timeout_s))
            self._opening.add_done_callback(self._opened)
        try:
            async with timeout(timeout_s):
                await asyncio.shield(self._opening)
        except TimeoutError:
            raise Unreachable(f"{self.address} cannot be reached: no answer in time") from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if is_cancelled(task):
                raise
            raise Unreachable(f"the connection to {self.address} was closed") from None

    async def _open(self, timeout_s: float) -> None:
        host, _, port = self.address.rpartition(":")
        try:
            async with timeout(timeout_s):
                reader, writer = await self._dial(host.strip("[]"), int(port))
        except TimeoutError as error:
            raise Unreachable(f"{self.address} cannot be reached: {error or 'no answer in time'}") from None
        except OSError as error:
            raise Unreachable(f"{self.address} cannot be reached: {problem_text(error)}") from None
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader, self._writer = reader, writer
        self._task = asyncio.create_task(self._read(reader, writer))

    async def _dial(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._tls is None:
            return await asyncio.open_connection(host, port, limit=READ_BYTES)
        context = await asyncio.to_thread(self._tls.context)  # it may read files
        name = self._tls.server_name(host)
        return await asyncio.open_connection(host, port, limit=READ_BYTES, ssl=context, server_hostname=name)

    def _opened(self, opening: asyncio.Task[None]) -> None:
        self._opening = None
        if not opening.cancelled():
            opening.exception()  # each waiting caller gets the exception

    def _write(self, command: Command) -> None:
        if self._writer is None:
            raise Unreachable(f"the connection to {self.address} is lost")
        if self._sign is not None and not command.is_response:
            self._sign(command)
        self._writer.write(frame.encode(command))

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        buffer = bytearray()
        try:
            while chunk := await reader.read(READ_BYTES):
                self._heard += 1
                buffer += chunk
                at = 0
                while (end := frame.frame_end(buffer, at, len(buffer))) is not None:
                    self._take(frame.decode(buffer, at, end))
                    at = end
                if at:
                    del buffer[:at]
            self._lose(writer, CallError(f"{self.address} closed the connection"))
        except FrameError as error:
            self._lose(writer, CallError(f"the connection to {self.address} failed: {error}"))
        except OSError as error:
            self._lose(writer, CallError(f"the connection to {self.address} failed: {problem_text(error)}"))
        except Exception as error:
            log.exception("an error occurred while reading from %s", self.address)
            problem = f"dropped the connection to {self.address}: {type(error).__name__}: {error}"
            self._lose(writer, CallError(problem))

    def _take(self, command: Command) -> None:
        if command.is_response:
            future = self._waiting.get(command.opaque)
            if future is not None and not future.done():
                future.set_result(command)
            return
        if len(self._asked) >= ASKED_MAX:
            self._answer(
                command, Command(code=ResponseCode.SYSTEM_BUSY, remark=f"{ASKED_MAX} requests are in progress")
            )
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
        log.error("request %s of %s failed", command.code, self.address, exc_info=error)
        return Command(code=ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")

    def _answer(self, command: Command, answer: Command) -> None:
        if not command.is_oneway and self._writer is not None:
            answer.opaque, answer.flag = command.opaque, frame.FLAG_RESPONSE
            self._write(answer)

    def _give_up(self, writer: asyncio.StreamWriter | None, heard: int, waited_s: float) -> None:
        if writer is not None and heard == self._heard and waited_s >= SILENCE_S:
            self._lose(writer, CallError(f"{self.address} was silent for {waited_s} s: the connection was dropped"))

    def _lose(self, writer: asyncio.StreamWriter, error: CallError) -> None:
        """Drop the connection after a failure. Unsent data is lost."""
        if writer is not self._writer:
            return  # there is another connection by now
        self._drop(error)
        writer.transport.abort()
        if self._on_lost is not None:
            self._on_lost()

    def _drop(self, error: CallError) -> asyncio.StreamWriter | None:
        """Fail the waiting calls. Return the writer of the dropped connection."""
        writer, self._writer = self._writer, None
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)
        self._waiting.clear()
        return writer
