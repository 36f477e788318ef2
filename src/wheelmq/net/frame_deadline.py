"""The deadline of an unfinished frame: the peer must send the rest of it in time."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wheelmq.net.server import Server, ServerConnection


class FrameDeadline:
    """The deadline of one connection. Each frame has its own.

    The connection owns this object. The object refers to the connection only while the timer runs, because a closed
    connection must not need a garbage collection.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._timer: asyncio.TimerHandle | None = None
        self._drained_bytes = 0
        """Bytes of answers that had left the connection when the timer started."""

    def watch(self, connection: ServerConnection, *, begun: bool, moved: bool) -> None:
        """Start the timer of an unfinished frame. Stop it after progress or at the end of the frame."""
        if self._timer is not None and (moved or not begun):
            self._timer.cancel()
            self._timer = None
        if begun and self._timer is None and connection.is_open:
            deadline_s = self._server.limits.frame_deadline_s
            self._drained_bytes = connection.bytes_drained
            self._timer = self._server.loop.call_later(deadline_s, self._expire, connection)

    def _expire(self, connection: ServerConnection) -> None:
        """Close the connection, unless its bytes are unread only because the peer still reads answers."""
        self._timer = None
        server = self._server
        if connection.is_stalled and connection.bytes_drained > self._drained_bytes:
            self.watch(connection, begun=True, moved=False)
            return
        text = "closing %s: a frame is incomplete after %s s"
        server.log.log(logging.INFO, "slow", text, connection.peer, server.limits.frame_deadline_s)
        server.slow_frames += 1
        connection.close()
