"""The server shell: sockets in, a core behind them, one tick after each round of reading.

Each connection reads into its own buffer; whole frames are served as soon as they are there. The first bytes of a
round schedule the tick that ends it. Answers queue up per connection and leave with one write at the tick's end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, cast

from wheelmq.formats.disk.message import Host
from wheelmq.formats.wire.frame import FRAME_BYTES_MAX, FrameError

log = logging.getLogger(__name__)

RECEIVE_BYTES = 256 << 10
BUFFER_BYTES_MAX = 16 << 20
FAILED_TICK_MS = 100
CLOSE_S = 5.0
"""How long a peer may take to read what is still sent to it when its connection is closed."""


class Core(Protocol):
    """What a server serves."""

    def receive(self, connection: ServerConnection, buffer: memoryview, end: int) -> int:
        """Serve the whole frames in `buffer[:end]`; how many bytes they took. Raises FrameError."""
        ...

    def connection_lost(self, connection: ServerConnection) -> None: ...

    def tick(self) -> None: ...

    def is_behind(self) -> bool:
        """Whether the next tick will be a long one: what is queued for connections then leaves before it."""
        ...

    def next_tick_ms(self) -> int | None:
        """Milliseconds until the next tick is needed; None when only a request makes one."""
        ...


class ServerConnection(asyncio.BufferedProtocol):
    """One peer of the server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._buffer = bytearray()
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._out: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self._frame_timer: asyncio.TimerHandle | None = None
        self._close_timer: asyncio.TimerHandle | None = None
        self._paused = False
        self._stalled = False
        """Reading rests, and frames may be left in the buffer, until what is queued has drained."""
        self._queued_bytes = 0
        self.peer = Host(b"\0\0\0\0", 0)
        self.is_open = False
        self.sends = True

    # asyncio's side ------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(high=self._server.buffer_bytes_max)
        with contextlib.suppress(OSError):
            self._server.sockets.apply(transport.get_extra_info("socket"))
        address, port = transport.get_extra_info("peername")[:2]
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.peer = Host(socket.inet_pton(family, address.partition("%")[0]), port)
        self.is_open = True
        self._server.connections.add(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        if len(self._buffer) - self._filled < 4096:
            self._grow()
        return self._view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        self.serve()

    def serve(self) -> None:
        """Serve the whole frames that are there; keep the rest."""
        self._server.schedule_tick()
        try:
            taken = self._server.core.receive(self, self._view, self._filled)
        except Exception as error:
            if isinstance(error, FrameError):
                log.info("closing %s: %s", self.peer, error)
            else:
                log.exception("closing %s: what it sent could not be served", self.peer)
            self._server.bad_frames += 1
            self.close()
            return
        rest = self._filled - taken
        if taken and rest:
            self._view[:rest] = self._view[taken : self._filled]
        self._filled = rest
        self._watch_frame(begun=rest > 0, moved=taken > 0)
        if not rest and len(self._buffer) > RECEIVE_BYTES:
            self._set_buffer(RECEIVE_BYTES)
        if self.is_full:
            self._stall()

    def pause_writing(self) -> None:
        """The peer does not read: stop reading from it until it does."""
        self._paused = True
        self._stall()

    def resume_writing(self) -> None:
        self._paused = False
        self._go_on()

    def _stall(self) -> None:
        if self._transport is not None and not self._stalled:
            self._stalled = True
            self._transport.pause_reading()

    def _go_on(self) -> None:
        """Serve on, once what is queued has drained."""
        if self._transport is None or self._transport.is_closing():
            return
        if self._stalled and not self.is_full:
            self._stalled = False
            self._transport.resume_reading()
            self._server.loop.call_soon(self._serve_rest)

    def _serve_rest(self) -> None:
        if self.is_open and not self._stalled:
            self.serve()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._watch_frame(begun=False, moved=True)
        if self._close_timer is not None:
            self._close_timer.cancel()
        self._server.connections.discard(self)
        self._server.core.connection_lost(self)
        self._server.schedule_tick()

    # The core's side -----------------------------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        """Whether so much is queued for the peer that nothing more should be served to it for now."""
        return self._paused or self._queued_bytes > self._server.buffer_bytes_max

    def send(self, frame: bytes) -> None:
        """Queue a frame; it leaves at the end of the tick."""
        if self.is_open:
            if not self._out:
                self._server.dirty.append(self)
            self._out.append(frame)
            self._queued_bytes += len(frame)

    def flush(self) -> None:
        """Write what was queued."""
        if self._transport is not None and self._out:
            if not self._transport.is_closing():
                self._transport.write(self._out[0] if len(self._out) == 1 else b"".join(self._out))
            self._out.clear()
            self._queued_bytes = 0
            self._go_on()

    def close(self) -> None:
        """Close; what was queued is still sent, to a peer that reads it within CLOSE_S."""
        if self.is_open and self._transport is not None:
            self.flush()
            self.is_open = False
            self._transport.close()
            self._close_timer = self._server.loop.call_later(self._server.close_s, self._transport.abort)

    # The buffer ----------------------------------------------------------------------------------------------------

    def _grow(self) -> None:
        """Room for the frame that has begun, or for the first bytes."""
        wanted = RECEIVE_BYTES
        if self._filled >= 4:
            announced = int.from_bytes(self._view[:4], "big", signed=True)
            wanted = max(wanted, min(announced, FRAME_BYTES_MAX) + 4 + 4096)
        self._set_buffer(max(wanted, len(self._buffer)))

    def _set_buffer(self, size: int) -> None:
        fresh = bytearray(size)
        fresh[: self._filled] = self._view[: self._filled]
        self._buffer = fresh
        self._view = memoryview(fresh)

    def _watch_frame(self, *, begun: bool, moved: bool) -> None:
        """A frame that has begun must be whole in time; each frame has its own deadline."""
        if self._frame_timer is not None and (moved or not begun):
            self._frame_timer.cancel()
            self._frame_timer = None
        if begun and self._frame_timer is None and self.is_open:
            self._frame_timer = self._server.loop.call_later(self._server.frame_deadline_s, self._frame_too_slow)

    def _frame_too_slow(self) -> None:
        log.info("closing %s: a frame has begun and is not whole after %s s", self.peer, self._server.frame_deadline_s)
        self._server.slow_frames += 1
        self.close()


@dataclass(frozen=True, slots=True)
class SocketOptions:
    """Connections that wait to be accepted; buffers of a connection in bytes, 0 leaves them to the system."""

    backlog: int = 1024
    send_bytes: int = 0
    receive_bytes: int = 0

    def apply(self, connection: socket.socket) -> None:
        """Set what is set of a connection. Raises OSError."""
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for option, size in ((socket.SO_SNDBUF, self.send_bytes), (socket.SO_RCVBUF, self.receive_bytes)):
            if size:
                connection.setsockopt(socket.SOL_SOCKET, option, size)


class Server:
    """Listens, and ticks the core."""

    def __init__(
        self,
        core: Core,
        *,
        frame_deadline_s: float = 30.0,
        close_s: float = CLOSE_S,
        buffer_bytes_max: int = BUFFER_BYTES_MAX,
        sockets: SocketOptions | None = None,
    ) -> None:
        self.core = core
        self.loop = asyncio.get_running_loop()
        self.frame_deadline_s = frame_deadline_s
        self.close_s = close_s
        self.sockets = sockets or SocketOptions()
        self.buffer_bytes_max = buffer_bytes_max
        """Answers waiting for one peer; past it the peer is served on when it has read."""
        self.connections: set[ServerConnection] = set()
        self.dirty: list[ServerConnection] = []
        self.bad_frames = 0
        """Connections closed for what they sent: no frame, or one that could not be served."""
        self.slow_frames = 0
        self.failed_ticks = 0
        self.on_tick: Callable[[], None] | None = None
        """Called after each tick."""
        self._listener: asyncio.Server | None = None
        self._tick_scheduled = False
        self._alarm: asyncio.TimerHandle | None = None

    async def listen(self, host: str, port: int) -> int:
        """Listen on `host`; the port, which `port` 0 leaves to the system."""
        backlog = self.sockets.backlog
        self._listener = await self.loop.create_server(lambda: ServerConnection(self), host, port, backlog=backlog)
        self.schedule_tick()
        return int(self._listener.sockets[0].getsockname()[1])

    def schedule_tick(self) -> None:
        """Tick after the round of reading that runs now."""
        if not self._tick_scheduled:
            self._tick_scheduled = True
            self.loop.call_soon(self._tick)

    def on_loop(self, callback: Callable[[], None]) -> None:
        """Run `callback` on the loop, then tick; may be called from another thread."""

        def run() -> None:
            callback()
            self.schedule_tick()

        self.loop.call_soon_threadsafe(run)

    def _tick(self) -> None:
        self._tick_scheduled = False
        wait_ms: int | None = FAILED_TICK_MS
        if self.core.is_behind():
            self._write()
        try:
            self.core.tick()
            wait_ms = self.core.next_tick_ms()
        except Exception:
            self.failed_ticks += 1
            log.exception("a tick failed; the next one is in %d ms", FAILED_TICK_MS)
        self._write()
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if wait_ms == 0:
            self.schedule_tick()
        elif wait_ms is not None:
            self._alarm = self.loop.call_later(wait_ms / 1000, self.schedule_tick)
        if self.on_tick is not None:
            self.on_tick()

    def _write(self) -> None:
        """Hand what is queued for connections to their sockets."""
        dirty, self.dirty = self.dirty, []
        for connection in dirty:
            connection.flush()

    def figures(self) -> dict[str, int]:
        """What the shell counts, by name."""
        return {
            "connections": len(self.connections),
            "bad_frames": self.bad_frames,
            "slow_frames": self.slow_frames,
            "failed_ticks": self.failed_ticks,
        }

    async def close(self) -> None:
        """Stop listening and close every connection."""
        if self._listener is not None:
            self._listener.close()
        for connection in list(self.connections):
            connection.close()
        if self._alarm is not None:
            self._alarm.cancel()
        await asyncio.sleep(0)
