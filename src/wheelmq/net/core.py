"""The part of a process that a server serves, as the server sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from wheelmq.net.server import ServerConnection


class Core(Protocol):
    """Serves frames, without sockets."""

    def receive(self, connection: ServerConnection, buffer: memoryview, end: int) -> int:
        """Serve the whole frames in `buffer[:end]` until the connection must wait.

        Returns the number of bytes that were served. Raises FrameError.
        """
        ...

    def connection_lost(self, connection: ServerConnection) -> None: ...

    def end_round(self) -> bool:
        """Finish the work of a round of reading. Returns whether a tick is due."""
        ...

    def tick(self) -> None:
        """Do the work that time and other threads bring."""
        ...

    def next_tick_ms(self) -> int | None:
        """Milliseconds until the next tick is needed; None when only a request makes one."""
        ...
