"""The topic table in the form of kernels: arrays, with a look-up by the bytes of a name.

slots       open addressing: hash of a name -> row, or -1 for a free place; the number of places is a power of two
rows        for each topic: position of its name in `names`, its length, its queues, position of its queues' rows
            in `queue_rows`, and whether clients may send to it
queue_rows  row in the store's queue table of each queue of each topic; -1 for a queue never used
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from wheelmq.formats.kernels.jit import part
from wheelmq.formats.kernels.numbers import FNV_START, Bytes, fnv

NAME_AT: Final = 0
NAME_BYTES: Final = 1
QUEUES: Final = 2
FIRST_QUEUE: Final = 3
SENDABLE: Final = 4
COLUMNS: Final = 5

Integers = npt.NDArray[np.int64]


@part
def find_topic(slots: Integers, rows: npt.NDArray[np.int64], names: Bytes, a: Bytes, start: int, end: int) -> int:
    """Return the row of the topic with the name a[start:end], or -1 if there is none."""
    mask = slots.shape[0] - 1
    at = np.int64(fnv(FNV_START, a, start, end) & np.uint64(mask))
    while True:
        row = slots[at]
        if row < 0:
            return np.int64(-1)
        if rows[row, NAME_BYTES] == end - start:
            name = rows[row, NAME_AT]
            same = True
            for i in range(end - start):
                if names[name + i] != a[start + i]:
                    same = False
                    break
            if same:
                return row
        at = (at + 1) & mask


@part
def intern_topic(slots: Integers, rows: Integers, names: Bytes, used: Integers, a: Bytes, start: int, end: int) -> int:
    """Return the row of the name a[start:end], and add the name if it is new. Returns -1 if there is no room.

    `used` counts rows and bytes of names. Rows here have two columns: NAME_AT and NAME_BYTES.
    """
    row = find_topic(slots, rows, names, a, start, end)
    if row >= 0:
        return row
    row, name_at = used[0], used[1]
    if 2 * row >= slots.shape[0] or row >= rows.shape[0] or name_at + end - start > names.shape[0]:
        return np.int64(-1)
    mask = slots.shape[0] - 1
    at = np.int64(fnv(FNV_START, a, start, end) & np.uint64(mask))
    while slots[at] >= 0:
        at = (at + 1) & mask
    slots[at] = row
    rows[row, NAME_AT] = name_at
    rows[row, NAME_BYTES] = end - start
    for i in range(end - start):
        names[name_at + i] = a[start + i]
    used[0] = row + 1
    used[1] = name_at + end - start
    return row
