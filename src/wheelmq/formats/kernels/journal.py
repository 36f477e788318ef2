"""The columns of the store's journal, as kernels write them: one row of 64-bit integers per appended record."""

from __future__ import annotations

from typing import Final

QUEUE: Final = 0
"""Row of the queue in the queue table."""
QUEUE_OFFSET: Final = 1
POSITION: Final = 2
SIZE: Final = 3
TAG_CODE: Final = 4
STORE_MS: Final = 5
DUE_MS: Final = 6
"""Exact due time of a parked message, else 0."""
SETTLES: Final = 7
"""Origin that the record settles, or 0."""
KEY_HASH: Final = 8
"""Hash of the delete key of a parked message, else 0."""
FLAGS: Final = 9
REAL_QUEUE: Final = 10
"""Row of the real queue of the message that this record parks or settles, else -1."""
PARKS: Final = 11
"""Origin of a parked message, else 0."""
COLUMNS: Final = 12

FLAG_DELETE: Final = 1
"""Set for a parked record that cancels another one. It is never delivered."""
