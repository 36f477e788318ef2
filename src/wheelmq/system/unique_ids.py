"""Unique message ids, in the format of the Java client (RocketMQ: MessageClientIDSetter).

32 hex digits: address 4 bytes, process id 2, a random number of the creator 4, milliseconds since the start of the
month 4, counter 2. An IPv6 address makes it 56 digits.
"""

from __future__ import annotations

import datetime
from random import Random

from wheelmq.formats.units import Millis
from wheelmq.system.clock import Clock


class UniqueIds:
    """Creates ids that differ from each other and from those of other creators. `randomness` draws the own number."""

    def __init__(self, address: bytes, clock: Clock, process_id: int, randomness: Random) -> None:
        self._clock = clock
        self._counter = 0
        maker = randomness.randbytes(4)
        self._prefix = (address + (process_id & 0xFFFF).to_bytes(2, "big") + maker).hex().upper()
        self._month_ms = Millis(0)
        self._next_month_ms = Millis(0)

    def next(self) -> str:
        now_ms = self._clock.now_ms()
        if not self._month_ms <= now_ms < self._next_month_ms:
            self._begin_month(now_ms)
        self._counter = (self._counter + 1) & 0xFFFF
        return f"{self._prefix}{now_ms - self._month_ms:08X}{self._counter:04X}"

    def _begin_month(self, now_ms: Millis) -> None:
        start = datetime.datetime.fromtimestamp(now_ms / 1000, datetime.timezone.utc).replace(
            day=1, hour=0, minute=0, second=0, microsecond=0
        )
        following = (start + datetime.timedelta(days=32)).replace(day=1)
        self._month_ms = Millis(int(start.timestamp() * 1000))
        self._next_month_ms = Millis(int(following.timestamp() * 1000))
