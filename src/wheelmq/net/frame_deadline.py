"""The deadline of an unfinished frame: the peer must send the rest of it in time."""

from __future__ import annotations

import asyncio
from typing import Protocol


class FrameSender(Protocol):
    @property
    def is_open(self) -> bool: ...

    @property
    def is_stalled(self) -> bool:
        """Whether reading pauses until the peer has read its answers."""
        ...

    @property
    def bytes_drained(self) -> int:
        """Bytes of answers that have left since the connection opened."""
        ...

    def close_slow(self) -> None:
        """Close the connection, because its frame is incomplete at the deadline."""
        ...


class FrameDeadline:
    """The deadline of one connection. Each frame has its own.

    It refers to the connection only while the timer runs: a closed connection must not need a garbage collection.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, deadline_s: float) -> None:
        self._loop = loop
        self._deadline_s = deadline_s
        self._timer: asyncio.TimerHandle | None = None
        self.is_running = False
        """Whether a frame has a deadline now."""
        self._drained_bytes = 0
        """Bytes of answers that had left the connection when the timer started."""

    def watch(self, connection: FrameSender, *, begun: bool, moved: bool) -> None:
        """Start the timer of an unfinished frame. Stop it after progress or at the end of the frame."""
        if self._timer is not None and (moved or not begun):
            self._timer.cancel()
            self._timer, self.is_running = None, False
        if begun and self._timer is None and connection.is_open:
            self._drained_bytes = connection.bytes_drained
            self._timer = self._loop.call_later(self._deadline_s, self._expire, connection)
            self.is_running = True

    def _expire(self, connection: FrameSender) -> None:
        """Close the connection, unless its bytes are unread only because the peer still reads answers."""
        self._timer, self.is_running = None, False
        if connection.is_stalled and connection.bytes_drained > self._drained_bytes:
            self.watch(connection, begun=True, moved=False)
            return
        connection.close_slow()
