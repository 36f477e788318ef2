"""Numbers of values up to fixed bounds, for values that come in arrays."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

WAITING_MAX: Final = 1024
"""Values that wait for their count. Copying a few values costs much less than counting them at once."""

Integers = npt.NDArray[np.int64]


class BoundCounts:
    """Counts values by the first bound that is not below them."""

    def __init__(self, bounds: tuple[int, ...]) -> None:
        self._bounds = np.array(bounds, np.int64)
        self._counts: Integers = np.zeros(len(bounds) + 1, np.int64)
        self._waiting: Integers = np.zeros(WAITING_MAX, np.int64)
        self._waiting_count = 0

    def add(self, values: Integers) -> None:
        stop = self._waiting_count + len(values)
        if stop <= WAITING_MAX:
            self._waiting[self._waiting_count : stop] = values
            self._waiting_count = stop
            return
        self._count_waiting()
        self._count(values)

    def cumulated(self) -> list[int]:
        """Return the number of values up to each bound, and then the number of all values."""
        self._count_waiting()
        found: list[int] = np.cumsum(self._counts).tolist()
        return found

    def _count_waiting(self) -> None:
        self._count(self._waiting[: self._waiting_count])
        self._waiting_count = 0

    def _count(self, values: Integers) -> None:
        self._counts += np.bincount(np.searchsorted(self._bounds, values), minlength=len(self._counts))
