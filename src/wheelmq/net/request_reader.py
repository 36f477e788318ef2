"""The requests of one connection: it passes whole frames to the core in turns, and pauses when the peer must wait."""

from __future__ import annotations

import asyncio
from typing import Generic, Protocol, TypeVar

from wheelmq.net.frame_deadline import FrameDeadline, FrameSender
from wheelmq.net.memory_guard import MemoryHolder
from wheelmq.net.receive_buffer import ReceiveBuffer
from wheelmq.net.round_robin import TurnTaker
from wheelmq.net.server_context import ServerContext


class SendsRequests(FrameSender, MemoryHolder, TurnTaker, Protocol):
    @property
    def queued_bytes(self) -> int:
        """Bytes of the queued answers."""
        ...

    @property
    def is_full(self) -> bool:
        """Whether no more requests should be served for now."""
        ...

    @property
    def must_wait(self) -> bool:
        """Whether the next request waits, because the connection is full or its turn is over."""
        ...

    def close(self) -> None: ...


C = TypeVar("C", bound=SendsRequests)


class RequestReader(Generic[C]):
    """Owns the received bytes of a connection, its frame deadline, and whether it reads.

    Methods get the connection: a closed connection must not need a garbage collection.
    """

    __slots__ = ("_context", "_frame_deadline", "_is_busy", "_transport", "is_stalled", "received")

    def __init__(self, context: ServerContext[C], transport: asyncio.Transport) -> None:
        self._context = context
        self._transport = transport
        self.received = ReceiveBuffer(context.buffer, context.memory_guard.charge)
        self._frame_deadline = FrameDeadline(context.loop, context.limits.frame_deadline_s)
        self.is_stalled = False
        """Whether reading pauses until the queued answers have drained. Whole frames may remain in the buffer."""
        self._is_busy = False
        """Whether its last turn left whole requests unserved. They are in `received` until its next turn."""

    def serve(self, connection: C, view: memoryview) -> None:
        """Serve the whole frames of `view`, which begins with all unserved bytes, in a turn. Keep the rest."""
        context, received = self._context, self.received
        if not context.rounds.is_round_scheduled:
            context.rounds.schedule_round()
        taken = 0
        must_wait = self._is_busy and context.round_robin.is_round_over
        if not must_wait:
            context.round_robin.begin(connection.queued_bytes)
            try:
                taken = context.core.receive(connection, view, received.filled)
            except Exception as error:
                context.closed.note_bad_frame(connection.peer, error)
                connection.close()
                return
            if not self._frame_deadline.is_running and received.end(taken):  # most reads
                self._is_busy = False
                if connection.is_full:
                    self.rest()
                return
            left = taken < received.filled and connection.must_wait
            self._is_busy = must_wait = left and received.holds_frame(view, taken)
        was_large = received.is_large
        if connection.is_open:
            received.keep(view, taken)
        else:
            received.clear()
        if received.is_large:
            if taken or not was_large:
                context.memory_guard.begin_frame(connection)
        elif was_large:
            context.memory_guard.end_frame(connection)
        begun = received.filled > 0 and not must_wait
        if begun != self._frame_deadline.is_running or (begun and taken):
            self._frame_deadline.watch(connection, begun=begun, moved=taken > 0)
        if must_wait:
            context.round_robin.postpone(connection)
        if must_wait or connection.is_full:
            self.rest()

    def rest(self) -> None:
        """Pause the reads."""
        if not self.is_stalled and not self._transport.is_closing():
            self.is_stalled = True
            self._transport.pause_reading()

    def go_on(self, connection: C) -> None:
        """Continue to serve if the queued answers have drained."""
        if not self.is_stalled or self._transport.is_closing():
            return
        if not connection.is_full and not self._context.round_robin.is_waiting(connection):
            self.is_stalled = False
            self._transport.resume_reading()
            self._context.loop.call_soon(self._serve_rest, connection)

    def take_turn(self, connection: C) -> None:
        """Continue to serve after a wait for a turn. A peer that must read answers first loses this turn."""
        if self._transport.is_closing():
            return
        if connection.is_full:
            self._frame_deadline.watch(connection, begun=self.received.filled > 0, moved=False)
            return
        self.is_stalled = False
        self._transport.resume_reading()
        self._serve_rest(connection)

    def _serve_rest(self, connection: C) -> None:
        if connection.is_open and not self.is_stalled:
            self._context.rounds.schedule_tick()
            view = self.received.kept()
            if view is not None:
                self.serve(connection, view)

    def drop(self, connection: C) -> None:
        """Drop the received bytes, because the connection closes."""
        self.received.clear()
        self._context.memory_guard.end_frame(connection)

    def end(self, connection: C) -> None:
        """Serve no more, because the connection is closed."""
        self._frame_deadline.watch(connection, begun=False, moved=True)
        self.drop(connection)
        self._context.round_robin.forget(connection)
