"""What a task of the pipeline hands to the broker: rows of 56 bytes, sorted by fire time and origin.

Little-endian, as both ends are this package on machines of one kind; it is no file format and lives for one turn.
"""

from __future__ import annotations

from typing import Final

import numpy as np

TURN_ROW: Final = np.dtype(
    [
        ("fire_ms", "<i8"),  # when the broker acts: the exact due time, or the roll slot's time + 1
        ("origin", "<i8"),  # of the parked message
        ("slot_ms", "<i8"),  # time of the slot of its unit
        ("position", "<i8"),  # log position of the record
        ("size", "<i4"),  # its bytes
        ("topic_hash", "<i4"),  # Java hash of the real topic
        ("magic", "<i4"),  # of its unit: 1, 2 rolls, 4 deletes
        ("order", "<i4"),  # rank by origin within the upload: the order in which units are written
        ("delay_ms", "<i8"),  # from store time to due time, capped to 32 bits
    ]
)

KIND_INDEX: Final = "index"
"""Rows of queue offsets that are indexed in this turn."""
KIND_WALK: Final = "walk"
"""Rows of slots that are walked in this turn."""
KIND_BLOCKS: Final = "blocks"
"""Rows of messages of blocks that are walked in this turn."""
KIND_QUEUE: Final = "queue"
"""Rows of messages that are staged from their queue, which is in the order of their due times."""
KINDS: Final = (KIND_INDEX, KIND_WALK, KIND_QUEUE, KIND_BLOCKS)
