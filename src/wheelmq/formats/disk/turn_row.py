"""The rows that a pipeline task uploads to the broker: 56 bytes each, sorted by fire time and origin.

They are little-endian and no file format: both ends are this package, and they last for one turn.
"""

from __future__ import annotations

from typing import Final

import numpy as np

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
    ]
)

KIND_INDEX: Final = "index"
"""Rows of queue offsets that this turn indexes."""
KIND_WALK: Final = "walk"
"""Rows of slots that this turn scans."""
KIND_BLOCKS: Final = "blocks"
"""Rows of messages in blocks that this turn scans."""
KIND_QUEUE: Final = "queue"
"""Rows of messages that this turn stages from a queue in order of due time."""
KINDS: Final = (KIND_INDEX, KIND_WALK, KIND_QUEUE, KIND_BLOCKS)
