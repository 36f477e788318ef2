"""The received bytes of one connection that are not served yet. The buffer knows no sockets and no clocks.

A connection without unserved bytes owns no memory: it reads into a buffer that all connections share. It keeps the rest
of a read in one of two ways:

- A short rest is a copy. The next read puts it at the front of the shared buffer and continues after it.
- A larger rest has memory of its own, where the next reads continue. It grows to at most the size of the frame.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from wheelmq.formats.wire.frame import FRAME_BYTES_MAX

SMALL_BYTES: Final = 16 << 10
"""The longest rest that the next read copies to the front of the shared buffer."""
ROOM_BYTES: Final = 4096
"""Free bytes that a read needs."""


class ReceiveBuffer:
    """Takes the bytes of reads, shows them to be served, and keeps the rest.

    A read fills the memory of `room`. `add` returns a view that begins with all unserved bytes. `end` or `keep` ends
    the read. The buffer calls `charge` with each change of `bytes_held`.
    """

    __slots__ = ("_charge", "_rest", "_shared", "bytes_held", "bytes_received", "filled", "is_large")

    def __init__(self, shared: memoryview, charge: Callable[[int], None]) -> None:
        self._shared = shared
        self._charge = charge
        self._rest: bytearray | None = None
        """The kept bytes, with free room if they are large."""
        self.filled = 0
        self.is_large = False
        """Whether the rest is larger than SMALL_BYTES."""
        self.bytes_held = 0
        """Bytes of memory that the connection owns."""
        self.bytes_received = 0

    def room(self) -> memoryview:
        """Return memory for the next read, at least ROOM_BYTES."""
        rest = self._rest
        if rest is None:
            return self._shared
        if not self.is_large:
            self._shared[: self.filled] = rest
            return self._shared[self.filled :]
        if len(rest) - self.filled < ROOM_BYTES:
            rest = self._grow(rest)
        return memoryview(rest)[self.filled :]

    def add(self, count: int) -> memoryview:
        """Add `count` bytes that a read has put into the room. Return a view that begins with all unserved bytes."""
        self.bytes_received += count
        self.filled += count
        return memoryview(self._rest) if self._rest is not None and self.is_large else self._shared

    def kept(self) -> memoryview | None:
        """Return a view that begins with the kept bytes, to serve them without a read; None if there are none."""
        return None if self._rest is None else memoryview(self._rest)

    def holds_frame(self, view: memoryview, taken: int) -> bool:
        """Return whether a whole frame, or an invalid length, follows the first `taken` bytes of `view`."""
        size = self.filled - taken
        announced = int.from_bytes(view[taken : taken + 4], "big", signed=True)
        return size >= 4 and (announced <= size - 4 or announced > FRAME_BYTES_MAX)

    def end(self, taken: int) -> bool:
        """End the read if nothing is left of it, and nothing was kept. Returns whether that is so."""
        if taken != self.filled or self._rest is not None:
            return False
        self.filled = 0
        return True

    def keep(self, view: memoryview, taken: int) -> None:
        if self.is_large and not taken:
            return  # `_rest` holds more of the frame that it was created for
        rest, left = None, self.filled - taken
        if left > SMALL_BYTES:
            rest = bytearray(max(left, min(_frame_bytes(view[taken : taken + 4]), 2 * left)))
            rest[:left] = view[taken : self.filled]
        elif left:
            rest = bytearray(view[taken : self.filled])
        self._rest, self.is_large, self.filled = rest, left > SMALL_BYTES, left
        self._hold(0 if rest is None else len(rest))

    def clear(self) -> None:
        self._rest, self.is_large, self.filled = None, False, 0
        self._hold(0)

    def _grow(self, rest: bytearray) -> bytearray:
        """Return a larger buffer for the frame: twice the received bytes, but at most the size of the frame."""
        wanted = min(_frame_bytes(rest[:4]), 2 * self.filled)
        large = self._rest = bytearray(max(wanted, self.filled + ROOM_BYTES))
        large[: self.filled] = rest[: self.filled]
        self._hold(len(large))
        return large

    def _hold(self, count: int) -> None:
        change = count - self.bytes_held
        if change:
            self.bytes_held = count
            self._charge(change)


def _frame_bytes(prefix: memoryview | bytearray) -> int:
    announced = int.from_bytes(prefix, "big", signed=True) if len(prefix) == 4 else 0
    return min(max(announced, 0), FRAME_BYTES_MAX) + 4
