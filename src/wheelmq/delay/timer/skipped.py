"""Slots that the broker could not read. It skips them, so that later slots are in time.

Each counts as overdue, and is retried. A start reads all pending messages again and has no skipped slot.
"""

from __future__ import annotations

from typing import Final, NamedTuple

RETRY_MS: Final = 10_000
"""Time from one try of a skipped slot to the next."""
PAUSE_MS: Final = 1000
"""Minimum time between two tries, whichever slots they are for."""


class SkippedSlot(NamedTuple):
    slot_ms: int
    units: int
    """Units of its chain."""
    messages: int
    """Messages, except those that a unit of the slot cancels."""


class SkippedSlots:
    """Skipped slots by their time. `monotonic_ms` is the clock of the retries."""

    def __init__(self) -> None:
        self._slots: dict[int, SkippedSlot] = {}
        self._retries_ms: dict[int, int] = {}
        """Time of the next try by slot, the earliest one first."""
        self._pause_until_ms = 0

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, slot_ms: int) -> bool:
        return slot_ms in self._slots

    def add(self, slot: SkippedSlot, monotonic_ms: int) -> None:
        self._slots[slot.slot_ms] = slot
        self.postpone(slot.slot_ms, monotonic_ms)

    def postpone(self, slot_ms: int, monotonic_ms: int) -> None:
        self._retries_ms.pop(slot_ms, None)
        self._retries_ms[slot_ms] = monotonic_ms + RETRY_MS
        self._pause_until_ms = monotonic_ms + PAUSE_MS

    def drop(self, slot_ms: int) -> None:
        del self._slots[slot_ms], self._retries_ms[slot_ms]

    def next_retry_ms(self) -> int | None:
        """Return the monotonic time of the next try; None without a skipped slot."""
        if not self._retries_ms:
            return None
        return max(self._pause_until_ms, next(iter(self._retries_ms.values())))

    def to_retry(self, monotonic_ms: int) -> SkippedSlot | None:
        next_ms = self.next_retry_ms()
        if next_ms is None or next_ms > monotonic_ms:
            return None
        return self._slots[next(iter(self._retries_ms))]

    def first_ms(self) -> int | None:
        return min(self._slots, default=None)

    def messages_through(self, slot_ms: int) -> int:
        return sum(slot.messages for slot in self._slots.values() if slot.slot_ms <= slot_ms)
