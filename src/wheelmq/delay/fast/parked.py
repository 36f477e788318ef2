"""Take the delayed messages of all generations from journal rows: references, and counts by queue.

Twin: `delay.intake`.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from wheelmq.formats.kernels import journal as row
from wheelmq.formats.kernels import refs as ref
from wheelmq.formats.kernels.jit import kernel
from wheelmq.formats.kernels.topics import Integers

PARKED: Final = 0
"""Number of references written."""
DELETES: Final = 1
"""Number of records that cancel others. They are never delivered."""
SETTLED: Final = 2
"""Number of records that settle a parked message."""
FOUND: Final = 3

# Columns of the counts by queue.
PENDING: Final = 0
PARKED_IN_ALL: Final = 1
SETTLED_IN_ALL: Final = 2
COUNTS: Final = 3


@kernel
def is_any_delayed(rows: Integers) -> bool:
    for i in range(rows.shape[0]):
        if rows[i, row.SETTLES] != 0 or rows[i, row.PARKS] != 0:
            return True
    return False


@kernel
def take(
    rows: Integers,
    counts: Integers,
    refs: Integers,
    hashes: Integers,
    deletes: Integers,
    found: Integers,
) -> None:
    """Write references and key hashes of parked messages and the origins of deletes. Count in `counts`, by queue.

    `found` gets the number of each. `refs` must hold zeros.
    """
    found[:FOUND] = 0
    for i in range(rows.shape[0]):
        queue = rows[i, row.REAL_QUEUE]
        if rows[i, row.SETTLES] != 0:
            found[SETTLED] += 1
            if queue >= 0:
                counts[queue, PENDING] -= 1
                counts[queue, SETTLED_IN_ALL] += 1
        origin = rows[i, row.PARKS]
        if origin == 0:
            continue
        if rows[i, row.FLAGS] & row.FLAG_DELETE:
            deletes[found[DELETES]] = origin
            found[DELETES] += 1
            continue
        if queue >= 0:
            counts[queue, PENDING] += 1
            counts[queue, PARKED_IN_ALL] += 1
        k = found[PARKED]
        due_ms = rows[i, row.DUE_MS]
        refs[k, ref.FIRE_MS] = due_ms
        refs[k, ref.ORIGIN] = origin
        refs[k, ref.POSITION] = rows[i, row.POSITION]
        refs[k, ref.SIZE] = rows[i, row.SIZE]
        refs[k, ref.FLAGS] = ref.FLAG_LONG if due_ms - rows[i, row.STORE_MS] > ref.LONG_DELAY_MS else np.int64(0)
        hashes[k] = rows[i, row.KEY_HASH]
        found[PARKED] += 1
