"""The message index: a hash table on disk from topic and key to records (RocketMQ: IndexFile, IndexHeader).

A file is a header, `slots` numbers of 4 bytes, and room for `units` units. A slot holds the number of its newest unit,
or 0. Each unit holds the number of the previous unit of its slot. Unit 0 is never used, so `count`, the number of the
next unit, begins at 1. Only hashes of keys are stored, so a look-up compares the keys themselves.
"""

from __future__ import annotations

import time
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from wheelmq.formats.disk import properties as props
from wheelmq.formats.field import Field, Layout
from wheelmq.formats.java import java_hash
from wheelmq.formats.units import LogPosition, Millis

INDEX_HEADER: Final = Layout(
    "index header",
    Field("begin_ms", "int64", "store time of the first record"),
    Field("end_ms", "int64", "store time of the last record"),
    Field("begin_position", "int64", "log position of the first record"),
    Field("end_position", "int64", "log position of the last record"),
    Field("slots_used", "int32", "slots that are not 0"),
    Field("count", "int32", "number of the next unit; 0 in a new file counts as 1"),
)

INDEX_UNIT: Final = Layout(
    "index unit",
    Field("hash", "int32", "absolute Java hash of topic, # and key; 0 for the least integer"),
    Field("position", "int64", "log position of the record"),
    Field("seconds", "int32", "whole seconds from begin_ms to the record's store time"),
    Field("previous", "int32", "number of the unit before it in its slot, 0 for none"),
)

SLOT_BYTES: Final = 4
SLOTS: Final = 5_000_000
UNITS: Final = 20_000_000
"""Apache's sizes (maxHashSlotNum, maxIndexNum); a file with them has 420,000,040 bytes."""

SECONDS_MAX: Final = 0x7FFF_FFFF
STEPS_MAX: Final = 20_000
"""The largest number of units that one look-up follows in a file."""
KEY_SEPARATOR: Final = " "

_INT32_MIN: Final = -(1 << 31)
_CHUNK_UNITS: Final = 1 << 20


class IndexDamaged(ValueError):
    """The bytes in an index file are not valid."""


class ChainTooLong(LookupError):
    """More units share a slot than one look-up follows."""


class IndexSize(NamedTuple):
    slots: int = SLOTS
    units: int = UNITS

    @property
    def units_at(self) -> int:
        return INDEX_HEADER.size + self.slots * SLOT_BYTES

    @property
    def file_bytes(self) -> int:
        return self.units_at + self.units * INDEX_UNIT.size


class IndexMark(NamedTuple):
    """The part of the index that is known to be on disk: its last file at that time, and all earlier files."""

    name: str
    next_unit: int
    """The number of the next unit of that file. All earlier units are on disk."""
    position: LogPosition
    """All records before this log position are in that file or in earlier ones."""


def index_hash(topic: str, key: str) -> int:
    """Return the hash of a key (RocketMQ: indexKeyHashMethod)."""
    code = java_hash(f"{topic}#{key}")
    return 0 if code == _INT32_MIN else abs(code)


def index_keys(properties: dict[str, str]) -> list[str]:
    """Return the keys that find a message: its unique key, then the keys that its sender chose."""
    keys = [properties[props.UNIQ_KEY]] if props.UNIQ_KEY in properties else []
    return keys + [key for key in properties.get(props.KEYS, "").split(KEY_SEPARATOR) if key]


def seconds_since(begin_ms: Millis, store_ms: Millis) -> int:
    return 0 if begin_ms <= 0 else min(max((store_ms - begin_ms) // 1000, 0), SECONDS_MAX)


def put_key(file: memoryview, size: IndexSize, code: int, position: LogPosition, store_ms: Millis) -> bool:
    header = INDEX_HEADER.unpack(file)
    count = max(header["count"], 1)
    if count >= size.units:
        return False
    slot_at = INDEX_HEADER.size + code % size.slots * SLOT_BYTES
    previous = _int32(file, slot_at)
    if not 0 < previous < count:
        previous = 0
    unit = INDEX_UNIT.pack(code, position, seconds_since(header["begin_ms"], store_ms), previous)
    unit_at = size.units_at + count * INDEX_UNIT.size
    file[unit_at : unit_at + INDEX_UNIT.size] = unit
    file[slot_at : slot_at + SLOT_BYTES] = count.to_bytes(SLOT_BYTES, "big")
    begin_ms, begin_position = header["begin_ms"], header["begin_position"]
    if count == 1:
        begin_ms, begin_position = store_ms, position
    used = header["slots_used"] + (previous == 0)
    file[: INDEX_HEADER.size] = INDEX_HEADER.pack(begin_ms, store_ms, begin_position, position, used, count + 1)
    return True


def find_key(
    file: memoryview, size: IndexSize, code: int, begin_ms: Millis, end_ms: Millis, most: int
) -> list[LogPosition]:
    """Return the positions of at most `most` records with this hash and a time from `begin_ms` to `end_ms`.

    The newest comes first. The unit gives the time, in whole seconds since the file's first record. Only the newest
    STEPS_MAX units of a chain are read, so that a very common key costs a bounded time.
    """
    header = INDEX_HEADER.unpack(file)
    count = header["count"]
    found: list[LogPosition] = []
    number = _int32(file, INDEX_HEADER.size + code % size.slots * SLOT_BYTES)
    if count <= 1 or not 0 < number <= count:
        return found
    for _ in range(STEPS_MAX):
        if len(found) >= most:
            break
        unit = INDEX_UNIT.unpack(file, size.units_at + number * INDEX_UNIT.size)
        if unit["seconds"] < 0:
            break
        stored_ms = header["begin_ms"] + unit["seconds"] * 1000
        if unit["hash"] == code and begin_ms <= stored_ms <= end_ms:
            found.append(LogPosition(unit["position"]))
        previous = unit["previous"]
        if not 0 < previous < number or stored_ms < begin_ms:
            break
        number = previous
    return found


def all_with_hash(file: memoryview, size: IndexSize, code: int) -> list[LogPosition]:
    """Return the positions of all records with this hash, newest first. The result is always complete.

    Raises IndexDamaged if a unit does not belong to the chain, ChainTooLong after STEPS_MAX units.
    """
    header = INDEX_HEADER.unpack(file)
    count, positions = max(header["count"], 1), range(header["begin_position"], header["end_position"] + 1)
    slot = code % size.slots
    number, before = _int32(file, INDEX_HEADER.size + slot * SLOT_BYTES), count
    found: list[LogPosition] = []
    for _ in range(STEPS_MAX):
        if number == 0:
            return found
        if not 0 < number < before:
            raise IndexDamaged(
                f"the chain of slot {slot} continues with unit {number}, which is not before unit {before}"
            )
        hashed, position, _, previous = INDEX_UNIT.struct.unpack_from(file, size.units_at + number * INDEX_UNIT.size)
        if hashed < 0 or hashed % size.slots != slot or position not in positions:
            raise IndexDamaged(f"unit {number} is in the chain of slot {slot} but does not belong there")
        if hashed == code:
            found.append(LogPosition(position))
        number, before = previous, number
    raise ChainTooLong(f"more than {STEPS_MAX} keys share a slot of the message index")


def roll_back(file: memoryview, size: IndexSize, count: int, before: LogPosition, end_ms: Millis) -> bool:
    """Return the file to the state in which `count` was the number of its next unit.

    Computes slots and header from the units before `count`. `end_ms` is the store time of the last of them. Returns
    False and changes nothing if `count`, a hash or the order of the units is not valid, or if the last unit is not
    before log position `before`.
    """
    units: npt.NDArray[Any] = np.frombuffer(file, INDEX_UNIT.dtype, count, size.units_at)[1:]
    positions = units["position"].astype(np.int64)
    if not 1 < count <= size.units or positions[-1] >= before or (np.diff(positions) < 0).any():
        return False
    slots = np.zeros(size.slots, ">i4")
    for first in range(0, len(units), _CHUNK_UNITS):
        hashes = units["hash"][first : first + _CHUNK_UNITS].astype(np.int64)
        if (hashes < 0).any():
            return False
        slots[hashes % size.slots] = first + 1 + np.arange(len(hashes))  # the last unit of a slot wins
    begin = INDEX_HEADER.unpack(file)
    times, ends = (begin["begin_ms"], end_ms), (begin["begin_position"], int(positions[-1]))
    file[INDEX_HEADER.size : size.units_at] = slots.tobytes()
    file[: INDEX_HEADER.size] = INDEX_HEADER.pack(*times, *ends, int(np.count_nonzero(slots)), count)
    return True


def is_time_matched(header: dict[str, int], begin_ms: Millis, end_ms: Millis) -> bool:
    return begin_ms <= header["end_ms"] and end_ms >= header["begin_ms"]


def index_file_name(now_ms: Millis) -> str:
    """Return a new file's name: local time to the millisecond, 17 digits (RocketMQ: timeMillisToHumanString)."""
    return time.strftime("%Y%m%d%H%M%S", time.localtime(now_ms // 1000)) + f"{now_ms % 1000:03d}"


def is_index_file_name(name: str) -> bool:
    return len(name) == 17 and name.isascii() and name.isdigit()


def _int32(file: memoryview, at: int) -> int:
    return int.from_bytes(file[at : at + 4], "big", signed=True)
