"""The consume queue: fixed units of 20 bytes that locate records of the log (RocketMQ: ConsumeQueue)."""

from __future__ import annotations

from typing import Final

from wheelmq.formats.field import Field, Layout

QUEUE_UNIT: Final = Layout(
    "queue unit",
    Field("position", "int64", "log position of the record"),
    Field("size", "int32", "size of the record in bytes"),
    Field("tag_code", "int64", "Java hash of TAGS, 0 without; in SCHEDULE_TOPIC_XXXX the time it is due"),
)

UNITS_PER_FILE: Final = 300_000

BLANK_SIZE: Final = 0x7FFF_FFFF
"""The size in a unit that fills the gap before a queue's first message."""
