"""Find the pending messages among the units of a queue or of a block: those that are not settled, without blanks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from wheelmq.delay.done import IndexBits
from wheelmq.formats.disk.queue_unit import BLANK_SIZE, QUEUE_UNIT

Units = npt.NDArray[Any]


def are_pending(done: IndexBits, first: int, units: Units) -> npt.NDArray[np.bool_]:
    """Return which of `units` are pending. The index of the first of them is `first`."""
    blank_size = BLANK_SIZE if units.dtype == QUEUE_UNIT.dtype else 0
    found: npt.NDArray[np.bool_] = ~done.between(first, first + len(units)) & (units["size"] != blank_size)
    return found


def pending_chunks(
    done: IndexBits, chunks: Iterable[Units], first: int, stop: int
) -> Iterator[tuple[npt.NDArray[np.int64], Units]]:
    """Yield indices and units of the pending messages before index `stop`. The first unit of `chunks` has `first`."""
    for units in chunks:
        units = units[: max(0, stop - first)]
        at = np.flatnonzero(are_pending(done, first, units))
        yield first + at, units if len(at) == len(units) else units[at]
        first += len(units)
        if first >= stop:
            return
