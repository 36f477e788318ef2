"""The sender's notes of the messages in its requests: one row each, by number.

A message's number is in its unique key, in its body and in the opaque of its request. So a reader of a queue can
identify each message. No number is sent twice.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt

KEY_DIGITS: Final = 10
KEY_BYTES: Final = 32
TOPICS: Final = ("CrashA", "CrashB")
QUEUES: Final = 4


class Kind(IntEnum):
    PLAIN = 0
    DELIVER_AT = 1
    """TIMER_DELIVER_MS: the only kind whose sender chooses the due time to the millisecond."""
    DELAY_MS = 2
    DELAY_SEC = 3
    LEVEL = 4
    CANCEL = 5
    IN_BLOCK = 6
    """delayInSeconds."""


class Fate(IntEnum):
    """The answer to a send."""

    UNSENT = 0
    ASKED = 1
    """No answer, or an answer without a promise: the message may be stored or not."""
    STORED = 2
    REFUSED = 3


class Outcome(IntEnum):
    """The answer to a cancel."""

    NONE = 0
    CANCELLED = 1
    SETTLED = 2
    NOT_FOUND = 3


OUTCOMES: Final = {
    "cancelled": Outcome.CANCELLED,
    "already delivered or cancelled": Outcome.SETTLED,
    "not found": Outcome.NOT_FOUND,
}

ROW: Final = np.dtype(
    [
        ("kind", "u1"),
        ("fate", "u1"),
        ("outcome", "u1"),
        ("topic", "u1"),
        ("queue", "u1"),
        ("due_ms", "i8"),  # for DELIVER_AT; 0 for other kinds
        ("delay_ms", "i8"),  # for relative kinds, from the broker's receipt
        ("asked_ms", "i8"),
        ("answered_ms", "i8"),
        ("queue_offset", "i8"),  # from the answer; for a parked message that of its parked record; -1 without
        ("origin", "i8"),  # from the answer, for a message in a block; -1 without
        ("target", "i8"),  # for a cancel: the number that it names, -1 for a key of no message
    ]
)


class Notes:
    """The rows, of which the first `count` are in use."""

    def __init__(self, key_prefix: str) -> None:
        assert len(key_prefix) == KEY_BYTES - KEY_DIGITS
        self.key_prefix = key_prefix
        self._rows: npt.NDArray[Any] = np.zeros(1 << 16, ROW)
        self.count = 0

    def add(
        self, kind: Kind, *, topic: int, queue: int, asked_ms: int, due_ms: int = 0, delay_ms: int = 0, target: int = -1
    ) -> int:
        """Add a row for a new message, and return its number."""
        number = self.count
        if number == len(self._rows):
            self._rows = np.concatenate((self._rows, np.zeros_like(self._rows)))
        row = (kind, Fate.ASKED, Outcome.NONE, topic, queue, due_ms, delay_ms, asked_ms, 0, -1, -1, target)
        self._rows[number] = row
        self.count += 1
        return number

    def answer(
        self,
        number: int,
        fate: Fate,
        answered_ms: int,
        outcome: Outcome = Outcome.NONE,
        *,
        queue_offset: int = -1,
        origin: int = -1,
    ) -> None:
        """Write an answer to its row."""
        row = self._rows[number]
        row["fate"], row["answered_ms"], row["outcome"] = fate, answered_ms, outcome
        row["queue_offset"], row["origin"] = queue_offset, origin

    def __getitem__(self, number: int) -> Any:
        return self._rows[number]

    @property
    def rows(self) -> npt.NDArray[Any]:
        """A view of all rows in use."""
        return self._rows[: self.count]

    def key(self, number: int) -> str:
        return f"{self.key_prefix}{number:0{KEY_DIGITS}X}"


def body(number: int, size: int) -> bytes:
    """Return the body of a message, which repeats its number."""
    word = b"%016X" % number
    return (word * (size // len(word) + 1))[:size]
