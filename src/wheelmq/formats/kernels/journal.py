"""The columns of the store's journal, as kernels write them: one row per appended record (formats.rows.JOURNAL)."""

from __future__ import annotations

from typing import Final

from wheelmq.formats.rows import JOURNAL, column

QUEUE: Final = column(JOURNAL, "queue")
QUEUE_OFFSET: Final = column(JOURNAL, "queue_offset")
POSITION: Final = column(JOURNAL, "position")
SIZE: Final = column(JOURNAL, "size")
TAG_CODE: Final = column(JOURNAL, "tag_code")
STORE_MS: Final = column(JOURNAL, "store_ms")
DUE_MS: Final = column(JOURNAL, "due_ms")
SETTLES: Final = column(JOURNAL, "settles")
KEY_HASH: Final = column(JOURNAL, "key_hash")
FLAGS: Final = column(JOURNAL, "flags")
REAL_QUEUE: Final = column(JOURNAL, "real_queue")
PARKS: Final = column(JOURNAL, "parks")
COLUMNS: Final = len(JOURNAL)

FLAG_DELETE: Final = 1
"""Set for a parked record that cancels another one. It is never delivered."""

NOT_COPIED: Final = -2
"""Real queue of a settled message of a block that a replica does not count, as it has not come or is damaged."""
