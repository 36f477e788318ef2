"""The rows of a turn: what a task reads from the store, and what it uploads to the broker.

Both are little-endian and no file format: both ends are this package, and the rows last for one turn. The columns of
Spark and Arrow, and those of the kernels, come from these declarations.
"""

from __future__ import annotations

from typing import Final

import numpy as np

KIND_INDEX: Final = "index"
"""Rows of queue offsets that this turn indexes."""
KIND_WALK: Final = "walk"
"""Rows of slots that this turn scans."""
KIND_BLOCKS: Final = "blocks"
"""Rows of messages in blocks that this turn scans."""
KIND_QUEUE: Final = "queue"
"""Rows of messages that this turn stages from a queue in order of due time."""
KINDS: Final = (KIND_INDEX, KIND_WALK, KIND_QUEUE, KIND_BLOCKS)

INDEX: Final = KINDS.index(KIND_INDEX)
WALK: Final = KINDS.index(KIND_WALK)
QUEUE: Final = KINDS.index(KIND_QUEUE)
BLOCKS: Final = KINDS.index(KIND_BLOCKS)

SHIFT_MAX_MS: Final = 24 * 3600 * 1000
"""Maximum time by which a stage delays a message. A short wheel allows less (`Timer.shift_max_ms`)."""

STAGED_ROW: Final = np.dtype(
    [
        ("kind", "<i4"),  # index in KINDS
        ("origin", "<i8"),  # of the parked message
        ("due_ms", "<i8"),  # exact
        ("out_ms", "<i8"),  # TIMER_OUT_MS; in a walk row, the time of its slot
        ("store_ms", "<i8"),
        ("position", "<i8"),  # log position of the record
        ("size", "<i4"),  # size of the record in bytes
        ("topic_hash", "<i4"),  # Java hash of the real topic
        ("magic", "<i4"),  # 1, plus 4 for a delete; in a walk row, the unit's
        ("write_ms", "<i8"),  # of the turn
        ("turn", "<i8"),
    ]
)
"""A row of the pipeline's source. It has no body: bodies stay in the store."""

TURN_ROW: Final = np.dtype(
    [
        ("fire_ms", "<i8"),  # time at which the broker acts: the exact due time, or the roll slot's time + 1
        ("origin", "<i8"),  # origin of the parked message
        ("slot_ms", "<i8"),  # time of the slot of its unit
        ("position", "<i8"),  # log position of the record
        ("size", "<i4"),  # size of the record in bytes
        ("topic_hash", "<i4"),  # Java hash of the real topic
        ("magic", "<i4"),  # magic of its unit: 1, 2 rolls, 4 deletes
        ("order", "<i4"),  # rank by origin within the upload: the order in which units are written
        ("delay_ms", "<i8"),  # from store time to due time, capped to 32 bits
        ("shift_ms", "<i8"),  # from fire time to delivery, as a stage chose it: 0 to SHIFT_MAX_MS
    ]
)
"""A row that a task uploads: 64 bytes. A part is sorted by fire time and origin. `decide` makes it of a staged row."""
