"""The connections of a server whose answers wait to be written."""

from __future__ import annotations

from typing import Protocol


class QueuesAnswers(Protocol):
    def flush(self) -> None:
        """Write the queued answers."""
        ...


class PendingWrites(list[QueuesAnswers]):
    """The connections with queued answers. They are written at the end of the round or tick."""

    __slots__ = ()

    def write(self) -> None:
        """Write all queued answers."""
        for connection in self:
            connection.flush()
        self.clear()
