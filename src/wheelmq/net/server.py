"""The server shell: it listens, and connects sockets to a core.

All connections read into one buffer. The server serves whole frames as soon as they arrive. The first bytes of a round
schedule its end. Answers are queued per connection and leave in one write at the end of the round. Then the tick runs
if it is due. `Limits` bound the resources that peers can take.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from typing import cast

from wheelmq.formats.disk.message import Host
from wheelmq.net.answer_writer import AnswerWriter
from wheelmq.net.closed_connections import ClosedConnections
from wheelmq.net.core import Core
from wheelmq.net.entrance import Entrance
from wheelmq.net.frame_deadline import FrameDeadline
from wheelmq.net.idle_check import IdleCheck, IdleWatch
from wheelmq.net.limits import Limits, SocketOptions
from wheelmq.net.memory_guard import MemoryGuard
from wheelmq.net.receive_buffer import ReceiveBuffer
from wheelmq.net.round_robin import RoundRobin
from wheelmq.net.round_schedule import RoundSchedule
from wheelmq.net.server_tls import ServerTls
from wheelmq.system.rate_limited_log import RateLimitedLog

log = logging.getLogger(__name__)

RECEIVE_BYTES = 256 << 10


class ServerConnection(asyncio.BufferedProtocol):
    def __init__(self, server: Server) -> None:
        self._server = server
        self._received = ReceiveBuffer(server.buffer, server.memory_guard.charge)
        self._out: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self._writer: AnswerWriter | None = None
        self._frame_deadline = FrameDeadline(server.loop, server.limits.frame_deadline_s)
        self._idle_check = IdleCheck()
        self._close_timer: asyncio.TimerHandle | None = None
        self._paused = False
        self.is_stalled = False
        """Whether reading pauses until the queued answers have drained. Whole frames may remain in the buffer."""
        self._queued_bytes = 0
        self._is_busy = False
        """Whether its last turn left whole requests unserved. They are in `_received` until its next turn."""
        self.peer = Host(b"\0\0\0\0", 0)
        self.is_open = False
        self.sends = True
        self.user: str | None = None
        self.waiting_since: float | None = None
        self.last_request: tuple[int, int] | None = None

    # asyncio's side ------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        if peer is None or self._server.is_crowded():
            transport.abort()
            return
        transport.set_write_buffer_limits(high=self._server.limits.buffer_bytes_max)
        with contextlib.suppress(OSError):
            self._server.sockets.apply(transport.get_extra_info("socket"))
        address, port = peer[:2]
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.peer = Host(socket.inet_pton(family, address.partition("%")[0]), port)
        self._writer = AnswerWriter(self._server.log, transport)
        self.is_open = True
        self._server.connections[self] = None
        if self._server.memory_guard.is_on:
            self.rest()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._received.room()

    def buffer_updated(self, nbytes: int) -> None:
        self._serve(self._received.add(nbytes))

    def _serve(self, view: memoryview) -> None:
        """Serve the whole frames of `view`, which begins with all unserved bytes, in a turn. Keep the rest."""
        server, received = self._server, self._received
        if not server.rounds.is_round_scheduled:
            server.rounds.schedule_round()
        taken = 0
        must_wait = self._is_busy and server.round_robin.is_round_over
        if not must_wait:
            server.round_robin.begin(self._queued_bytes)
            try:
                taken = server.core.receive(self, view, received.filled)
            except Exception as error:
                server.closed.note_bad_frame(self.peer, error)
                self.close()
                return
            if not self._frame_deadline.is_running and received.end(taken):  # most reads
                self._is_busy = False
                if self.is_full:
                    self.rest()
                return
            left = taken < received.filled and self.must_wait
            self._is_busy = must_wait = left and received.holds_frame(view, taken)
        was_large = received.is_large
        if self.is_open:
            received.keep(view, taken)
        else:
            received.clear()
        if received.is_large:
            if taken or not was_large:
                server.memory_guard.begin_frame(self)
        elif was_large:
            server.memory_guard.end_frame(self)
        begun = received.filled > 0 and not must_wait
        if begun != self._frame_deadline.is_running or (begun and taken):
            self._frame_deadline.watch(self, begun=begun, moved=taken > 0)
        if must_wait:
            server.round_robin.postpone(self)
        if must_wait or self.is_full:
            self.rest()

    def pause_writing(self) -> None:
        self._paused = True
        self.rest()

    def resume_writing(self) -> None:
        self._paused = False
        self.go_on()

    def rest(self) -> None:
        if self._transport is not None and not self.is_stalled and not self._transport.is_closing():
            self.is_stalled = True
            self._transport.pause_reading()

    def go_on(self) -> None:
        """Continue to serve if the queued answers have drained."""
        if self._transport is None or self._transport.is_closing():
            return
        if self.is_stalled and not self.is_full and not self._server.round_robin.is_waiting(self):
            self.is_stalled = False
            self._transport.resume_reading()
            self._server.loop.call_soon(self._serve_rest)

    def take_turn(self) -> None:
        """Continue to serve after a wait for a turn. A peer that must read answers first loses this turn."""
        if self._transport is None or self._transport.is_closing():
            return
        if self.is_full:
            self._frame_deadline.watch(self, begun=self._received.filled > 0, moved=False)
            return
        self.is_stalled = False
        self._transport.resume_reading()
        self._serve_rest()

    def _serve_rest(self) -> None:
        if self.is_open and not self.is_stalled:
            self._server.rounds.schedule_tick()
            view = self._received.kept()
            if view is not None:
                self._serve(view)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None and self._writer is not None:
            self._writer.warn_of_lost_answers(self, exc)
        self.is_open = False
        self._frame_deadline.watch(self, begun=False, moved=True)
        if self._close_timer is not None:
            self._close_timer.cancel()
        self._drop_received()
        self._server.round_robin.forget(self)
        if self in self._server.connections:
            del self._server.connections[self]
            self._server.core.connection_lost(self)
            self._server.rounds.schedule_tick()

    # The core's side -----------------------------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        """Whether no more requests should be served for now, because too many bytes wait for this peer or for all."""
        server = self._server
        return self._paused or self._queued_bytes > server.limits.buffer_bytes_max or server.memory_guard.is_on

    @property
    def must_wait(self) -> bool:
        """Whether the next request waits, in the turn of this connection: it is full, or its turn is over."""
        server = self._server
        round_robin = server.round_robin
        if self._queued_bytes >= round_robin.turn_bytes_max or server.loop.time() >= round_robin.turn_ends_s:
            return True
        return self.is_full

    def send(self, frame: bytes) -> None:
        """Queue a frame. It leaves at the end of the round or tick."""
        if self.is_open:
            server, size = self._server, len(frame)
            if not self._out:
                server.dirty.append(self)
            self._out.append(frame)
            self._queued_bytes += size
            server.memory_guard.charge(size)
            server.round_robin.charge(size)

    def flush(self) -> None:
        if self._writer is not None and self._out:
            self._writer.write(self._out[0] if len(self._out) == 1 else b"".join(self._out), self)
            self._out.clear()
            self._queued_bytes = 0
            self.go_on()

    def close(self) -> None:
        """Close the connection. A peer that reads in time still gets the queued frames."""
        if self.is_open and self._transport is not None:
            self.flush()
            self.is_open = False
            self._drop_received()
            self._transport.close()
            self._close_timer = self._server.loop.call_later(self._server.limits.close_s, self._transport.abort)

    def close_slow(self) -> None:
        """Close the connection, because its frame is incomplete at the deadline."""
        self._server.closed.note_slow_frame(self.peer)
        self.close()

    def abort(self) -> None:
        """Close at once. The queued frames are lost."""
        self.is_open = False
        self._out.clear()
        self._queued_bytes = 0
        self._drop_received()
        if self._transport is not None:
            self._transport.abort()

    def _drop_received(self) -> None:
        self._received.clear()
        self._server.memory_guard.end_frame(self)

    # Bytes in memory, and time -------------------------------------------------------------------------------------

    @property
    def bytes_unread(self) -> int:
        return 0 if self._writer is None else self._writer.bytes_unread

    @property
    def bytes_drained(self) -> int:
        return 0 if self._writer is None else self._writer.bytes_drained

    @property
    def bytes_held(self) -> int:
        return self.bytes_unread + self._queued_bytes + self._received.bytes_held

    def check_idle(self) -> bool:
        """Return whether the connection made no progress since the last checks.

        A peer with unread answers must read them. Requests that it sends are no progress meanwhile.
        """
        return self._idle_check.check(
            bytes_received=self._received.bytes_received,
            bytes_drained=self.bytes_drained,
            must_read=self.bytes_unread > 0,
        )


class Server:
    """Listens for connections, and composes the parts that serve them."""

    def __init__(
        self,
        core: Core[ServerConnection],
        *,
        limits: Limits | None = None,
        sockets: SocketOptions | None = None,
        after_tick: Callable[[], None] | None = None,
        tls: ServerTls | None = None,
    ) -> None:
        """Create a server that does not listen yet. It calls `after_tick` after each round and tick."""
        self.core = core
        self.loop = asyncio.get_running_loop()
        self.limits = limits or Limits()
        self.sockets = sockets or SocketOptions()
        self.buffer = memoryview(bytearray(RECEIVE_BYTES))
        """The buffer that all connections read into, one after another."""
        self.connections: dict[ServerConnection, None] = {}
        """In the order in which they opened. After a pause for memory they continue in this order."""
        self.dirty: list[ServerConnection] = []
        self.memory_guard = MemoryGuard(self.loop, self.limits.bytes_in_flight_max, self.connections, self.write)
        self.round_robin = RoundRobin(self.loop.time)
        deadline_s = self.limits.frame_deadline_s
        self._entrance = Entrance(tls, self._connect, deadline_s=deadline_s, is_full=self.is_crowded)
        self._listeners: list[asyncio.Server] = []
        self.log = RateLimitedLog(log, self.loop.time)
        self.closed = ClosedConnections(self.log, self.limits)
        self._idle_watch = IdleWatch(self.loop, self.limits.idle_s, self.connections, self.closed)
        self.rounds = RoundSchedule(core, self.loop, self.round_robin, self.write, after_tick, self.log)

    async def listen(self, host: str, port: int) -> int:
        """Listen on one more `host`. Return the port; the system chooses it if `port` is 0."""
        backlog = self.sockets.backlog
        listener = await self.loop.create_server(self._entrance.accept, host, port, backlog=backlog)
        self._listeners.append(listener)
        self._idle_watch.start()
        self.rounds.schedule_tick()
        return int(listener.sockets[0].getsockname()[1])

    def _connect(self) -> ServerConnection:
        return ServerConnection(self)

    def is_crowded(self) -> bool:
        """Return whether there are too many connections for one more. Count and log the rejection."""
        if len(self.connections) + self._entrance.waiting < self.limits.connections_max:
            return False
        self.closed.note_rejected()
        return True

    def write(self) -> None:
        dirty, self.dirty = self.dirty, []
        for connection in dirty:
            connection.flush()

    def figures(self) -> dict[str, int]:
        return {
            "connections": len(self.connections),
            **self.closed.figures(),
            "postponed_turns": self.round_robin.postponed,
            "relieved_connections": self.memory_guard.closed,
            "failed_ticks": self.rounds.failed_ticks,
            **self._entrance.figures(),
        }

    async def close(self) -> None:
        """Close all connections. No tick runs from now on: another broker may open the store in this process."""
        self.rounds.close()
        for listener in self._listeners:
            listener.close()
        self._entrance.close()
        for connection in list(self.connections):
            connection.close()
        self._idle_watch.stop()
        await asyncio.sleep(0)
