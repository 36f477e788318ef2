"""The pending transactions, by the queue offsets of their half messages.

Memory holds only the ends that came out of order and the new places of half messages that were put back. The queue
gives the rest: each half message from `first` on is pending unless it is gone.
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
        """Return whether the half message at `offset` has ended or was put back."""
        return offset < self.first or offset in self._gone

    def find(self, origin: int, place: Place) -> Place | None:
        """Return the present place of the half message of `origin`, or None if its transaction has ended.

        `place` is one of its earlier places or the present one.
        """
        found = self._moved.get(origin, place)
        return None if self.is_gone(found.offset) else found

    def move(self, origin: int, place: Place) -> None:
        """Record `place` as the new place of the half message of `origin`."""
        self._moved[origin] = place

    def settle(self, origin: int, offset: int) -> None:
        """Record the end of a transaction. `offset` is the present place of its half message."""
        self._moved.pop(origin, None)
        self.drop(offset)

    def drop(self, offset: int) -> None:
        """Record that the half message at `offset` is gone."""
        if offset >= self.first:
            self._gone.add(offset)
        while self.first in self._gone:
            self._gone.remove(self.first)
            self.first += 1
