"""The interface between a server and its core."""

from __future__ import annotations

from typing import Protocol, TypeVar

C = TypeVar("C", contravariant=True)
"""The type of the connections that a core serves."""


class RoundCore(Protocol):
    """The rounds and ticks of a core."""

    def end_round(self) -> bool:
        """Finish the work of a round. Returns whether a tick is due."""
        ...

    def tick(self, *, by_event: bool = True) -> None:
        """Do the work that time and worker threads bring.

        With `by_event`, a worker has a result or a connection was lost. Other ticks may postpone work that can wait.
        """
        ...

    def next_tick_ms(self) -> int | None:
        """Return the milliseconds until the next tick, or None if only a request can require one."""
        ...


class Core(RoundCore, Protocol[C]):
    """Serves frames, without sockets."""

    def receive(self, connection: C, buffer: memoryview, end: int) -> int:
        """Serve frames in `buffer[:end]` until the connection must wait. Returns their bytes. Raises FrameError."""
        ...

    def connection_lost(self, connection: C) -> None: ...
