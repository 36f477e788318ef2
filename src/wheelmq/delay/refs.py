"""Rows of parked messages, and the references that represent the messages from their arming until their release.

A reference is the front of the row of a parked message. It has all that release needs to read the record.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wheelmq.formats.kernels import scan as col
from wheelmq.formats.kernels.refs import COLUMNS as COLUMNS
from wheelmq.formats.kernels.refs import ENQUEUE_MS as ENQUEUE_MS
from wheelmq.formats.kernels.refs import FIRE_MS as FIRE_MS
from wheelmq.formats.kernels.refs import FLAG_DELETE as FLAG_DELETE
from wheelmq.formats.kernels.refs import FLAG_LONG as FLAG_LONG
from wheelmq.formats.kernels.refs import FLAG_ROLL as FLAG_ROLL
from wheelmq.formats.kernels.refs import FLAGS as FLAGS
from wheelmq.formats.kernels.refs import KEY_HASH as KEY_HASH
from wheelmq.formats.kernels.refs import LONG_DELAY_MS as LONG_DELAY_MS
from wheelmq.formats.kernels.refs import ORIGIN as ORIGIN
from wheelmq.formats.kernels.refs import PARKED_COLUMNS as PARKED_COLUMNS
from wheelmq.formats.kernels.refs import POSITION as POSITION
from wheelmq.formats.kernels.refs import REAL_QUEUE as REAL_QUEUE
from wheelmq.formats.kernels.refs import SIZE as SIZE
from wheelmq.formats.kernels.refs import STORE_MS as STORE_MS
from wheelmq.formats.kernels.refs import UNIT_COLUMNS as UNIT_COLUMNS

NO_ENQUEUE_MS: Final = (1 << 63) - 1
"""Enqueue time of messages that were armed without the pipeline: Apache RocketMQ's own value (Long.MAX_VALUE)."""
FAR_MS: Final = 1 << 61
"""Later than the due time of any message."""

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Values = npt.NDArray[Any]
Refs = Integers
"""Rows of COLUMNS integers."""
ParkedRows = Integers
"""Rows of PARKED_COLUMNS integers."""


def make(count: int, columns: int = COLUMNS) -> Refs:
    return np.zeros((count, columns), np.int64)


def build(
    fire_ms: Values, origins: Values, positions: Values, sizes: Values, long: Values, columns: int = COLUMNS
) -> Refs:
    """Return references from their values. `long` says which delays are over LONG_DELAY_MS."""
    refs = make(len(origins), columns)
    refs[:, FIRE_MS] = fire_ms
    refs[:, ORIGIN] = origins
    refs[:, POSITION] = positions
    refs[:, SIZE] = sizes
    refs[:, FLAGS] = np.where(long, FLAG_LONG, 0)
    return refs


def is_long(delay_ms: Any) -> Any:
    return delay_ms > LONG_DELAY_MS


def store_ms_of(due_ms: Values, long: Values) -> Values:
    """Return store times for due times, so that the delays are long where `long` is set."""
    return due_ms - np.where(long, LONG_DELAY_MS + 1, 0)


def parked_rows(scanned: Integers, real_queues: Integers | int = -1) -> ParkedRows:
    """Return the rows of the parked messages whose records a scan found. A level's message may have no fire time."""
    due_ms, store_ms = scanned[:, col.DUE_MS], scanned[:, col.STORE_MS]
    rows = build(
        due_ms,
        scanned[:, col.PARKS],
        scanned[:, col.POSITION],
        scanned[:, col.SIZE],
        is_long(due_ms - store_ms),
        PARKED_COLUMNS,
    )
    rows[(scanned[:, col.FLAGS] & col.FLAG_DELETES) != 0, FLAGS] |= FLAG_DELETE
    rows[:, STORE_MS] = store_ms
    rows[:, KEY_HASH] = scanned[:, col.KEY_HASH]
    rows[:, REAL_QUEUE] = real_queues
    return rows


def refs_of(parked: ParkedRows) -> Refs:
    return parked[:, :COLUMNS].copy()


def by_fire_time(refs: Refs) -> Refs:
    if len(refs) == 1:
        return refs
    return refs[np.lexsort((refs[:, ORIGIN], refs[:, FIRE_MS]))]
