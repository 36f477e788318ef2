"""Number of messages in each slot, counted as sends are served. Twin: `delay.timer.congestion.Congestion`."""

from __future__ import annotations

from typing import Final

from wheelmq.formats.kernels.jit import part
from wheelmq.formats.kernels.topics import Integers

# Columns of the table. It has a row for each place of the wheel.
TIME: Final = 0
"""Time of the slot divided by the precision. The count of a place with another time is 0."""
WAITING: Final = 1
COLUMNS: Final = 2


@part
def take(table: Integers, time: int, now: int, limit: int) -> bool:
    """Count one more message in the slot of `time`. Returns False and counts nothing if the send may be rejected.

    Both times are divided by the precision. A slot at least one revolution of the wheel ahead is not counted.
    """
    if time - now >= table.shape[0]:
        return True
    place = time % table.shape[0]
    if table[place, TIME] != time:
        table[place, TIME] = time
        table[place, WAITING] = 0
    if table[place, WAITING] > limit:
        return False
    table[place, WAITING] += 1
    return True
