"""Collect from a tick's journal the delayed messages of all generations: parked, cancels and settled ones."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from wheelmq.delay import refs as ref
from wheelmq.delay.fast import parked as kernel
from wheelmq.delay.refs import Refs
from wheelmq.formats.kernels import jit
from wheelmq.formats.kernels import journal as row
from wheelmq.store.journal import Rows

Integers = npt.NDArray[np.int64]

PENDING: Final = kernel.PENDING
"""Column of the counts: messages that are parked and not settled."""
PARKED: Final = kernel.PARKED_IN_ALL
"""Messages parked since the start."""
SETTLED: Final = kernel.SETTLED_IN_ALL
"""Messages settled since the start."""
COUNTS: Final = kernel.COUNTS


class Intake(NamedTuple):
    refs: Refs
    """Parked messages, those of one stream in queue order."""
    key_hashes: Integers
    """Hashes of their delete keys, 0 for messages without one."""
    deletes: Integers
    """Origins of parked cancels, which are themselves never delivered."""
    settled: int
    """Number of records that settle a parked message."""


_found: Final = np.zeros(kernel.FOUND, np.int64)
_none: Final = np.zeros(0, np.int64)
_NOTHING: Final = Intake(ref.make(0), _none, _none, 0)


def take(rows: Rows, counts: Integers) -> Intake:
    """Sort journal `rows` by kind, and update `counts`, which has a row for each queue."""
    if not jit.available():
        return _take_plain(rows, counts)
    if not kernel.is_any_delayed(rows):
        return _NOTHING
    refs, hashes, deletes = ref.make(len(rows)), np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    kernel.take(rows, counts, refs, hashes, deletes, _found)
    parked, deleting, settled = _found.tolist()
    return Intake(refs[:parked], hashes[:parked], deletes[:deleting], settled)


def _take_plain(rows: Rows, counts: Integers) -> Intake:
    settled = rows[rows[:, row.SETTLES] != 0]
    _count(counts, settled[:, row.REAL_QUEUE], SETTLED, -1)
    parked = rows[rows[:, row.PARKS] != 0]
    deletes = (parked[:, row.FLAGS] & row.FLAG_DELETE) != 0
    deleting, parked = parked[deletes], parked[~deletes]
    _count(counts, parked[:, row.REAL_QUEUE], PARKED, 1)
    due_ms = parked[:, row.DUE_MS]
    is_long = ref.is_long(due_ms - parked[:, row.STORE_MS])
    refs = ref.build(due_ms, parked[:, row.PARKS], parked[:, row.POSITION], parked[:, row.SIZE], is_long)
    return Intake(refs, parked[:, row.KEY_HASH], deleting[:, row.PARKS], len(settled))


def _count(counts: Integers, queues: Integers, column: int, pending: int) -> None:
    queues = queues[queues >= 0]
    np.add.at(counts[:, column], queues, 1)
    np.add.at(counts[:, PENDING], queues, pending)
