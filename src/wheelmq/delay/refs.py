"""References: rows that represent parked messages from the time they are armed until they are released.

A reference is a row of 64-bit integers. It has all the values that release needs before it reads the record.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from wheelmq.formats.kernels.refs import COLUMNS as COLUMNS
from wheelmq.formats.kernels.refs import ENQUEUE_MS as ENQUEUE_MS
from wheelmq.formats.kernels.refs import FIRE_MS as FIRE_MS
from wheelmq.formats.kernels.refs import FLAG_LONG as FLAG_LONG
from wheelmq.formats.kernels.refs import FLAG_ROLL as FLAG_ROLL
from wheelmq.formats.kernels.refs import FLAGS as FLAGS
from wheelmq.formats.kernels.refs import ORIGIN as ORIGIN
from wheelmq.formats.kernels.refs import POSITION as POSITION
from wheelmq.formats.kernels.refs import SIZE as SIZE

LONG_DELAY_MS: Final = 5000
NO_ENQUEUE_MS: Final = (1 << 63) - 1
"""Enqueue time of messages that were armed without the pipeline: Apache RocketMQ's own value (Long.MAX_VALUE)."""
FAR_MS: Final = 1 << 61
"""Later than the due time of any message."""

Refs = npt.NDArray[np.int64]


def make(count: int) -> Refs:
    """Return `count` references, all zero."""
    return np.zeros((count, COLUMNS), np.int64)


def by_fire_time(refs: Refs) -> Refs:
    """Return `refs` sorted by fire time, then by origin."""
    if len(refs) == 1:
        return refs
    return refs[np.lexsort((refs[:, ORIGIN], refs[:, FIRE_MS]))]
