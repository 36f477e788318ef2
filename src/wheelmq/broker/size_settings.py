"""Checks of the settings that are sizes of files and messages."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from wheelmq.config.bounds import INT_MAX
from wheelmq.formats.disk.block import BLOCK_UNIT
from wheelmq.formats.disk.index import IndexSize
from wheelmq.formats.disk.message import BLANK_BYTES, TOPIC_BYTES_MAX, record_bytes
from wheelmq.formats.disk.properties import PROPERTIES_BYTES_MAX
from wheelmq.formats.disk.queue_unit import QUEUE_UNIT
from wheelmq.formats.disk.timer import TIMER_SLOT, TIMER_UNIT

LOG_FILE_BYTES_MIN: Final = 4096
"""The shortest log file: it holds a small message with everything that delivery adds."""
BLOCK_LOG_FILE_BYTES_MIN: Final = 512
TIMER_LOG_FILE_BYTES_MIN: Final = TIMER_UNIT.size + 16
"""One unit and the blank at the end."""
TIMER_SLOTS_MAX: Final = INT_MAX // (2 * TIMER_SLOT.size)
"""The file `timerwheel` has two places for each slot, and at most INT_MAX bytes, the most that Apache's broker
maps."""

LogFileBytes = Annotated[int, Meta(ge=LOG_FILE_BYTES_MIN, le=INT_MAX)]
BlockLogFileBytes = Annotated[int, Meta(ge=BLOCK_LOG_FILE_BYTES_MIN, le=INT_MAX)]
TimerLogFileBytes = Annotated[int, Meta(ge=TIMER_LOG_FILE_BYTES_MIN, le=INT_MAX)]
TimerSlots = Annotated[int, Meta(ge=2, le=TIMER_SLOTS_MAX)]
QueueFileBytes = Annotated[int, Meta(ge=QUEUE_UNIT.size, le=INT_MAX, multiple_of=QUEUE_UNIT.size)]
BlockQueueFileBytes = Annotated[int, Meta(ge=BLOCK_UNIT.size, le=INT_MAX, multiple_of=BLOCK_UNIT.size)]


def check_index_size(*, slots: int, units: int) -> None:
    """Check that an index file is not too long. Raises ValueError with the settings and the remedy."""
    index_bytes = IndexSize(slots, units).file_bytes
    if index_bytes > INT_MAX:
        raise ValueError(
            f"max_hash_slot_num is {slots} and max_index_num is {units}: an index file would have {index_bytes} "
            f"bytes, and the limit is {INT_MAX} bytes; set fewer slots (4 bytes each) or fewer entries (20 bytes "
            "each)"
        )


def body_size_warning(*, body_bytes_max: int, log_file_bytes: int) -> str | None:
    """Return why a body of `body_bytes_max` bytes may not fit into a log file; None when it always fits."""
    needed = record_bytes(TOPIC_BYTES_MAX, body_bytes_max, PROPERTIES_BYTES_MAX) + BLANK_BYTES
    if needed <= log_file_bytes:
        return None
    return (
        f"body_bytes_max is {body_bytes_max}, and a log file has {log_file_bytes} bytes (log_file_bytes). A body of "
        f"that length with topic and properties needs up to {needed} bytes. The broker rejects messages that are "
        "longer than a log file. Set a smaller body_bytes_max, or create a new store with a larger log_file_bytes"
    )
