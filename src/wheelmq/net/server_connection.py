"""A connection of a server, as the core sees it: a peer that sends requests and gets answers."""

from __future__ import annotations

import asyncio

from wheelmq.formats.disk.message import Host
from wheelmq.net.answer_writer import AnswerWriter
from wheelmq.net.idle_check import IdleCheck
from wheelmq.net.request_reader import RequestReader
from wheelmq.net.server_context import ServerContext


class ServerConnection:
    """Queues the answers to one peer until the end of the round. Its reader owns the requests."""

    def __init__(self, context: ServerContext[ServerConnection], transport: asyncio.Transport, peer: Host) -> None:
        self._context = context
        self.reader = RequestReader(context, transport)
        self._writer = AnswerWriter(context.log, transport)
        self._out: list[bytes] = []
        self.queued_bytes = 0
        self._idle_check = IdleCheck()
        self.peer = peer
        self.is_open = True
        self.sends = True
        self.user: str | None = None
        self.waiting_since: float | None = None
        self.last_request: tuple[int, int] | None = None

    # Answers -------------------------------------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        """Whether no more requests should be served for now, because too many bytes wait for this peer or for all."""
        context = self._context
        if self.queued_bytes > context.limits.buffer_bytes_max:
            return True
        return self._writer.is_paused or context.memory_guard.is_on

    def send(self, frame: bytes) -> None:
        """Queue a frame. It leaves at the end of the round or tick."""
        if self.is_open:
            context, out, size = self._context, self._out, len(frame)
            if not out:
                context.pending_writes.append(self)
            out.append(frame)
            self.queued_bytes += size
            context.memory_guard.charge(size)
            context.round_robin.charge(size)

    def flush(self) -> None:
        """Write the queued frames."""
        out = self._out
        if out:
            self._writer.write(out[0] if len(out) == 1 else b"".join(out), self)
            out.clear()
            self.queued_bytes = 0
            if self.reader.is_stalled:
                self.reader.go_on(self)

    def pause_writing(self) -> None:
        self._writer.pause()
        self.reader.rest()

    def resume_writing(self) -> None:
        self._writer.resume()
        self.reader.go_on(self)

    # Turns ---------------------------------------------------------------------------------------------------------

    @property
    def must_wait(self) -> bool:
        """Whether the next request waits, in the turn of this connection: it is full, or its turn is over."""
        context = self._context
        round_robin = context.round_robin
        if self.queued_bytes >= round_robin.turn_bytes_max or context.loop.time() >= round_robin.turn_ends_s:
            return True
        return self.is_full

    @property
    def is_stalled(self) -> bool:
        return self.reader.is_stalled

    def rest(self) -> None:
        self.reader.rest()

    def go_on(self) -> None:
        self.reader.go_on(self)

    def take_turn(self) -> None:
        self.reader.take_turn(self)

    # The end -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the connection. A peer that reads in time still gets the queued frames."""
        if self.is_open:
            self.flush()
            self.is_open = False
            self.reader.drop(self)
            self._writer.close(self._context.loop, self._context.limits.close_s)

    def close_slow(self) -> None:
        """Close the connection, because its frame is incomplete at the deadline."""
        self._context.closed.note_slow_frame(self.peer)
        self.close()

    def abort(self) -> None:
        """Close at once. The queued frames are lost."""
        self.is_open = False
        self._out.clear()
        self.queued_bytes = 0
        self.reader.drop(self)
        self._writer.abort()

    def end(self, error: Exception | None) -> None:
        """Forget the requests and answers, because the connection is closed. `error` is the reason, if it failed."""
        if error is not None:
            self._writer.warn_of_lost_answers(self, error)
        self.is_open = False
        self._writer.end()
        self.reader.end(self)

    # Bytes in memory, and progress ---------------------------------------------------------------------------------

    @property
    def bytes_unread(self) -> int:
        return self._writer.bytes_unread

    @property
    def bytes_drained(self) -> int:
        return self._writer.bytes_drained

    @property
    def bytes_held(self) -> int:
        return self._writer.bytes_unread + self.queued_bytes + self.reader.received.bytes_held

    def check_idle(self) -> bool:
        """Return whether the connection made no progress since the last checks.

        A peer with unread answers must read them. Requests that it sends are no progress meanwhile.
        """
        return self._idle_check.check(
            bytes_received=self.reader.received.bytes_received,
            bytes_drained=self.bytes_drained,
            must_read=self.bytes_unread > 0,
        )
