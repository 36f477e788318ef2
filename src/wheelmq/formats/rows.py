"""Rows of 64-bit integers that stand for records in memory. Each kind of row is declared once.

A matrix of int64, because NumPy and kernels access its columns faster than fields of record arrays (docs/adr/0027).
`formats.kernels.journal`, `refs` and `scan` have one constant for each column.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

Row = np.dtype[Any]

JOURNAL: Final = np.dtype(
    [
        ("queue", "i8"),  # row of the queue in the queue table
        ("queue_offset", "i8"),
        ("position", "i8"),  # log position of the record
        ("size", "i8"),  # of the record
        ("tag_code", "i8"),  # hash of the tag, for the queue unit
        ("store_ms", "i8"),
        ("due_ms", "i8"),  # exact due time of a parked message, else 0
        ("settles", "i8"),  # origin that the record settles, or 0
        ("key_hash", "i8"),  # hash of the delete key of a parked message, else 0
        ("flags", "i8"),  # kernels.journal.FLAG_...
        ("real_queue", "i8"),  # row of the real queue of the message that the record parks or settles, else -1
        ("parks", "i8"),  # origin of a parked message, else 0
    ]
)
"""A row of the store's journal: a record that the running round or tick appended."""

PARKED: Final = np.dtype(
    [
        ("fire_ms", "i8"),  # time to act: the exact due time, or for a roll the first millisecond of its roll slot
        ("origin", "i8"),
        ("position", "i8"),  # log position of the record
        ("size", "i8"),  # of the record
        ("flags", "i8"),  # kernels.refs.FLAG_...
        ("enqueue_ms", "i8"),  # time of staging, which the released message holds as TIMER_ENQUEUE_MS
        ("store_ms", "i8"),
        ("key_hash", "i8"),  # hash of the delete key, else 0
        ("real_queue", "i8"),  # row of the real queue in the queue table, else -1
    ]
)
"""A parked message. Its fields up to `enqueue_ms` are a reference, and those up to `size` come from its queue unit."""

SCANNED: Final = np.dtype(
    [
        ("position", "i8"),  # log position of the record
        ("size", "i8"),  # of the record
        ("store_ms", "i8"),
        ("queue_id", "i8"),
        ("queue_offset", "i8"),
        ("tag_code", "i8"),  # hash of the tag, for the queue unit
        ("topic", "i8"),  # row of the topic's name among the interned names (kernels.topics)
        ("due_ms", "i8"),  # of a parked message; 0 in a level queue if the record does not hold it
        ("settles", "i8"),  # origin that the record settles, or 0
        ("key_hash", "i8"),  # hash of the delete key of a parked message, else 0
        ("flags", "i8"),  # kernels.scan.FLAG_...
        ("real_topic", "i8"),  # like `topic`, for the real topic of a parked record; -1 if there is none
        ("real_queue_id", "i8"),  # of a parked record
        ("parks", "i8"),  # origin of a parked message, else 0; 0 in the log of a block, where its place gives it
    ]
)
"""A record that a scan of a log found."""


def column(row: Row, name: str) -> int:
    return list(row.fields or ()).index(name)
