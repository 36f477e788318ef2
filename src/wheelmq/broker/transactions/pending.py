"""The pending transactions, by the queue offsets of their half messages.

Memory holds the ended half messages after `first`, and the moved ones. Each remaining one from `first` on is pending.
"""

from __future__ import annotations

from typing import NamedTuple

from wheelmq.formats.units import LogPosition


class Place(NamedTuple):
    offset: int
    """Queue offset in the half queue."""
    position: LogPosition


class PendingHalves:
    """Pending transactions. The origin of one is the first queue offset of its half message."""

    def __init__(self, first: int) -> None:
        self.first = first
        """The first queue offset that is not gone. All half messages before it have ended or were put back."""
        self._gone: set[int] = set()
        self._moved: dict[int, Place] = {}

    def is_gone(self, offset: int) -> bool:
        return offset < self.first or offset in self._gone

    def find(self, origin: int, place: Place) -> Place | None:
        """Return the present place of the half message of `origin`, known at `place`; None once it has ended."""
        found = self._moved.get(origin, place)
        return None if self.is_gone(found.offset) else found

    def move(self, origin: int, place: Place) -> None:
        self._moved[origin] = place

    def settle(self, origin: int, offset: int) -> None:
        """Record the end of a transaction. `offset` is the present place of its half message."""
        self._moved.pop(origin, None)
        self.drop(offset)

    def drop(self, offset: int) -> None:
        if offset >= self.first:
            self._gone.add(offset)
        while self.first in self._gone:
            self._gone.remove(self.first)
            self.first += 1
