"""Read a topic's queues to their end from the files of either broker, and compare them with the sends.

The layouts are RocketMQ's (docs/formats/queues.md, docs/formats/record.md). A compiled loop reads the records,
because there are millions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from numba import njit

from bench.rawload import PREFIX, UNIQ_DIGITS, Bytes
from tests.crash.records import queues

Column = npt.NDArray[np.int64]

KEY_BYTES: Final = 32
MAGIC: Final = 0xDAA320A7
COLUMNS: Final = ("store_ms", "number", "deliver_ms", "delay_ms", "due_ms")

_UNIQ_KEY = np.frombuffer(b"UNIQ_KEY", np.uint8)
_DELIVER = np.frombuffer(b"TIMER_DELIVER_MS", np.uint8)
_DELAY = np.frombuffer(b"TIMER_DELAY_MS", np.uint8)
_DUE = np.frombuffer(b"__WMQ_DUE", np.uint8)


@dataclass(frozen=True)
class Deliveries:
    """One row per message in the queues; -1 if a record has no such property."""

    store_ms: Column
    number: Column
    """The number of the generator's message, from its unique key."""
    deliver_ms: Column
    """TIMER_DELIVER_MS"""
    delay_ms: Column
    """TIMER_DELAY_MS"""
    due_ms: Column
    """__WMQ_DUE"""
    keys: Bytes
    """Unique keys, one row of 32 bytes each; no rows unless requested."""

    def __len__(self) -> int:
        return len(self.store_ms)


@dataclass(frozen=True)
class Outcome:
    """Counts by unique key."""

    lost: int
    twice: int
    early: int
    strange: int
    """Messages in the queues that were never sent."""


def read(store: Path, topic: str, *, with_keys: bool = False) -> Deliveries:
    """Return every message of the topic. Raises BadBytes, and ValueError for an unreadable store."""
    found = [units for name, _, units in queues(store) if name == topic]
    positions = np.concatenate([units["position"].astype(np.int64) for units in found] or [np.zeros(0, np.int64)])
    positions.sort()
    columns = np.full((len(positions), len(COLUMNS)), -1, np.int64)
    keys = np.zeros((len(positions) if with_keys else 0, KEY_BYTES), np.uint8)
    prefix = np.frombuffer(PREFIX.encode(), np.uint8)
    done = 0
    for data, base in _log_files(store):
        stop = int(np.searchsorted(positions, base + len(data)))
        bad = scan(data, positions[done:stop] - base, prefix, columns[done:stop], keys[done:stop])
        if bad >= 0:
            raise ValueError(f"there is no record at {base + bad}")
        done = stop
    if done < len(positions):
        raise ValueError(f"{len(positions) - done} units of {topic} point behind the log's last file")
    return Deliveries(*columns.T, keys)


def judge(deliveries: Deliveries, taken: Bytes) -> Outcome:
    """Compare the messages in the queues with those that the broker accepted."""
    number = deliveries.number
    known = (number >= 0) & (number < len(taken))
    times = np.bincount(number[known], minlength=len(taken))
    return Outcome(
        lost=int(((taken > 0) & (times == 0)).sum()),
        twice=int((times > 1).sum()),
        early=int((deliveries.store_ms < deliveries.deliver_ms).sum()),
        strange=int((~known).sum()),
    )


def _log_files(store: Path) -> Iterator[tuple[Any, int]]:
    """Yield each file of the log, mapped, and its first log position."""
    for path in sorted((store / "commitlog").iterdir()):
        if path.name.isdigit() and path.stat().st_size:
            yield np.memmap(path, np.uint8, "r"), int(path.name)


@njit(cache=True)
def scan(data, ats, prefix, columns, keys):  # type: ignore[no-untyped-def]
    """Fill `columns` from the records at `ats`. Returns the first place without a record, or -1."""
    for i in range(len(ats)):
        at = ats[i]
        if at + 88 > len(data) or _number(data, at + 4, 4) != MAGIC:
            return at
        columns[i, 0] = _number(data, at + 56, 8)
        p = at + 88 + _number(data, at + 84, 4)
        p += 1 + data[p]
        end = p + 2 + _number(data, p, 2)
        p += 2
        while p < end:
            name = p
            while data[p] != 1:
                p += 1
            value = p + 1
            while p < end and data[p] != 2:
                p += 1
            if _is(data, name, value - 1, _UNIQ_KEY):
                if _is(data, value, value + len(prefix), prefix):
                    columns[i, 1] = _hex(data, value + len(prefix), p)
                if len(keys) and p - value == KEY_BYTES:
                    keys[i] = data[value:p]
            elif _is(data, name, value - 1, _DELIVER):
                columns[i, 2] = _decimal(data, value, p)
            elif _is(data, name, value - 1, _DELAY):
                columns[i, 3] = _decimal(data, value, p)
            elif _is(data, name, value - 1, _DUE):
                columns[i, 4] = _decimal(data, value, p)
            p += 1
    return -1


@njit(cache=True)
def _number(data, at, size):  # type: ignore[no-untyped-def]
    value = np.int64(0)
    for i in range(size):
        value = (value << 8) | data[at + i]
    return value


@njit(cache=True)
def _is(data, at, end, name):  # type: ignore[no-untyped-def]
    return end - at == len(name) and np.array_equal(data[at:end], name)


@njit(cache=True)
def _decimal(data, at, end):  # type: ignore[no-untyped-def]
    value = np.int64(0)
    for p in range(at, end):
        value = value * 10 + (data[p] - 48)
    return value


@njit(cache=True)
def _hex(data, at, end):  # type: ignore[no-untyped-def]
    value = np.int64(0)
    if end - at != UNIQ_DIGITS:
        return np.int64(-1)
    for p in range(at, end):
        digit = data[p] - 48 if data[p] < 58 else data[p] - 55
        value = (value << 4) | digit
    return value
