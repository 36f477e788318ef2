"""Changes of a table that are in memory and not yet on disk.

If the write of a visible change fails, it is answered with an error and taken back. Later changes of the entry stay.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(slots=True)
class _Change(Generic[V]):
    """One change of one entry. `number` is the change of the table file that it came with."""

    number: int
    before: V | None


class PendingChanges(Generic[K, V]):
    """The pending changes of each entry, oldest first. None as a value means that the table has no such entry."""

    def __init__(self) -> None:
        self._changes: dict[K, list[_Change[V]]] = {}

    def note(self, number: int, key: K, before: V | None) -> None:
        self._changes.setdefault(key, []).append(_Change(number, before))

    def end(self, upto: int, *, failed: bool) -> dict[K, V | None]:
        """End the changes up to number `upto`, whose write has ended. Returns the values to restore.

        There are none unless the write failed. An entry with a later change keeps its value. If that change fails too,
        the entry gets the value from before the first failed change.
        """
        restored: dict[K, V | None] = {}
        for key, changes in list(self._changes.items()):
            later = [one for one in changes if one.number > upto]
            if len(later) == len(changes):
                continue
            if failed and later:
                later[0].before = changes[0].before
            elif failed:
                restored[key] = changes[0].before
            if later:
                self._changes[key] = later
            else:
                del self._changes[key]
        return restored
