"""Which transactions have not ended, by the queue offsets of their half messages.

In memory stands what ended out of order, and where half messages stand now that were put back; the rest follows from
the queue: what is in it from `first` on is pending unless it is gone.
"""

from __future__ import annotations

from typing import NamedTuple

from wheelmq.formats.units import LogPosition


class Place(NamedTuple):
    """Where a half message stands."""

    offset: int
    """In the half queue."""
    position: LogPosition


class PendingHalves:
    """Pending transactions. The origin of one is the queue offset at which its half message stood first."""

    def __init__(self, first: int) -> None:
        self.first = first
        """The first queue offset that is not gone: all before it have ended, or stand further behind."""
        self._gone: set[int] = set()
        self._moved: dict[int, Place] = {}

    def is_gone(self, offset: int) -> bool:
        """Whether what stands at `offset` has ended, or was put back."""
        return offset < self.first or offset in self._gone

    def find(self, origin: int, place: Place) -> Place | None:
        """Where the half message of `origin` stands now, which stood, or stands, at `place`; None when its transaction
        has ended."""
        found = self._moved.get(origin, place)
        return None if self.is_gone(found.offset) else found

    def move(self, origin: int, place: Place) -> None:
        """The half message of `origin` stands at `place` now."""
        self._moved[origin] = place

    def settle(self, origin: int, offset: int) -> None:
        """The transaction has ended whose half message stands at `offset` now."""
        self._moved.pop(origin, None)
        self.drop(offset)

    def drop(self, offset: int) -> None:
        """Nothing more comes of what stands at `offset`."""
        if offset >= self.first:
            self._gone.add(offset)
        while self.first in self._gone:
            self._gone.remove(self.first)
            self.first += 1
