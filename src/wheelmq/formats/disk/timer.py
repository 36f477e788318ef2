"""The timer's wheel, log, checkpoint and mark. The mark is ours (RocketMQ: TimerWheel, TimerLog, TimerCheckpoint).

A message with due time D waits in the slot of TIMER_OUT_MS. That is D rounded down to the precision, and one precision
less if D is an exact multiple. So the slot of time s holds the due times in (s, s + precision].

The wheel has twice as many slots as the longest delay needs. The index of a slot is (time / precision) mod slots. A
slot is valid only if it holds the requested time. The units of a slot form a chain from the newest to the oldest.
"""

from __future__ import annotations

from typing import Final

from wheelmq.formats.field import Field, Layout
from wheelmq.formats.names import TIMER_TOPIC as TIMER_TOPIC
from wheelmq.formats.units import Millis

TIMER_SLOT: Final = Layout(
    "timer wheel slot",
    Field("time", "int64", "time of the slot divided by the precision; 0 in a slot never used"),
    Field("first_position", "int64", "timer log position of the oldest unit"),
    Field("last_position", "int64", "timer log position of the newest unit, head of the chain"),
    Field("count", "int32", "messages waiting: units, less twice the deletes"),
    Field("magic", "int32", "not used"),
)
SLOTS: Final = 7 * 24 * 3600
"""Number of slots for the longest delay (7 days of 1 s). The file has twice as many."""

TIMER_UNIT: Final = Layout(
    "timer log unit",
    Field("size", "int32", "52"),
    Field(
        "previous_position",
        "int64",
        "timer log position of the next older unit of the slot; -1 for the first",
    ),
    Field("magic", "int32", "1, plus 2 when it rolls, plus 4 when it deletes; 13 when a clean stop hid it"),
    Field("write_ms", "int64", "time at which it was put there, floored to the precision"),
    Field("delay_ms", "int32", "from write_ms to the time of its slot"),
    Field("record_position", "int64", "log position of the parked record"),
    Field("record_size", "int32", "its size in bytes"),
    Field("topic_hash", "int32", "Java hash of the real topic"),
    Field("reserved", "int64", "0, or the detail: queue offset and due time"),
)
TIMER_LOG_FILE_BYTES: Final = 100 * 1024 * 1024

MAGIC_DEFAULT: Final = 1
MAGIC_ROLL: Final = 2
MAGIC_DELETE: Final = 4
MAGIC_HIDDEN: Final = MAGIC_DEFAULT | MAGIC_DELETE | 8
"""The magic of a unit that a clean stop hid from Apache RocketMQ. Apache accepts the bit 8 and does not use it."""

TIMER_CHECK: Final = Layout(
    "timercheck",
    Field("last_read_ms", "int64", "all messages in slots before this time are settled"),
    Field("log_flush_position", "int64", "timer log position up to which units are on disk"),
    Field("queue_offset", "int64", "queue offset up to which rmq_sys_wheel_timer is indexed"),
    Field("master_queue_offset", "int64", "the same on the master"),
    Field("state_version", "int64", "data version: state"),
    Field("version_ms", "int64", "data version: time"),
    Field("version_counter", "int64", "data version: counter"),
)
TIMER_CHECK_FILE_BYTES: Final = 4096
TIMER_CHECK_COPY_AT: Final = 512
"""The byte at which WheelMQ writes a copy of the fields. Apache never writes the copy, so a difference shows that
Apache wrote the fields last."""

TIMER_MARK: Final = Layout(
    "timer mark",
    Field("magic", "int32", "0x574D5131, WMQ1"),
    Field("crc", "uint32", "crc32 of all later fields"),
    Field("sequence", "int64", "grows with each mark; the intact slot with the higher number counts"),
    Field("queue_offset", "int64", "E: each lower queue offset of the timer queue has its unit before T"),
    Field("timer_log_position", "int64", "T: all units before it are complete and on disk"),
    Field("epoch", "int64", "of the pipeline's lease"),
    Field("turn", "int64", "turns committed in all"),
    Field("done_position", "int64", "P: log position of the snapshot of done bits; 0 without one"),
)
TIMER_DONE: Final = Layout(
    "timer done",
    Field("magic", "int32", "0x574D5145, WMQE"),
    Field("crc", "uint32", "crc32 of all later bytes"),
    Field("log_position", "int64", "P: the bits hold for the log up to here"),
    Field("streams", "int64", "number of streams whose done bits follow"),
)
TIMER_DONE_MAGIC: Final = 0x574D5145
TIMER_MARK_MAGIC: Final = 0x574D5131
TIMER_MARK_SLOT_BYTES: Final = 4096
"""Bytes of one of the file's two slots, each a disk block. Writes alternate: a torn one leaves the other whole."""


def slot_time(due_ms: Millis, precision_ms: int) -> Millis:
    """Return the TIMER_OUT_MS of a message: the time of the slot in which it waits."""
    return Millis((due_ms - 1) // precision_ms * precision_ms)
