"""Count pending messages by their due time, in requests that each take a few milliseconds of the broker's loop."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.timer_requests import FIRST_PLACE, TimerQuery, count_request, next_place

Ask = Callable[[Command], Awaitable[Command]]
"""Send a request to the broker. Raises CallError, Refused."""

MINUTE_MS: Final = 60_000
QUARTER_MS: Final = 15 * MINUTE_MS
"""The step of the counts by hour and day. All time zones differ from UTC by a multiple of it."""
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS
MINUTES: Final = 60
HOURS: Final = 24
DAYS: Final = 366
"""The greatest delay is a year."""
REQUESTS_MAX: Final = 4
"""Requests of one `advance`. One request covers 65,536 messages at most."""

Row = list[int]
"""The start of an interval in milliseconds since 1970, and the number of messages that are due in it."""


@dataclass(frozen=True)
class DueSteps:
    """The numbers of due messages by the start of their step."""

    at_ms: int
    """When the count began."""
    counts: dict[int, int] = field(default_factory=dict)

    def rows(self, step_ms: int, steps: int) -> list[Row]:
        """Return the row of each step from the one of `at_ms` on."""
        first_ms = self.at_ms // step_ms * step_ms
        return [
            [start_ms, self.counts.get(start_ms, 0)]
            for start_ms in range(first_ms, first_ms + steps * step_ms, step_ms)
        ]

    def by_hour(self) -> list[Row]:
        """Return the rows of the next HOURS hours of local time. The first hour is the running one."""
        first = _local(self.at_ms).replace(minute=0, second=0, microsecond=0)
        first_ms = _epoch_ms(first)
        sums: Counter[int] = Counter()
        for start_ms, count in self.counts.items():
            sums[first_ms + (start_ms - first_ms) // HOUR_MS * HOUR_MS] += count
        return [[start_ms, sums[start_ms]] for start_ms in range(first_ms, first_ms + HOURS * HOUR_MS, HOUR_MS)]

    def by_day(self) -> list[Row]:
        """Return the rows of the local days with due messages, the earliest first."""
        sums: Counter[int] = Counter()
        for start_ms, count in self.counts.items():
            sums[_epoch_ms(_local(start_ms).replace(hour=0, minute=0, second=0, microsecond=0))] += count
        return [[start_ms, count] for start_ms, count in sorted(sums.items()) if count]


class DueCounter:
    """Counts all pending messages that are due in the next `steps` steps. A count may take several `advance`."""

    def __init__(self, ask: Ask, step_ms: int, steps: int) -> None:
        self._ask = ask
        self._step_ms = step_ms
        self._steps = steps
        self._place = FIRST_PLACE
        self._counts: Counter[int] = Counter()
        self._began_ms: int | None = None

    async def advance(self, now_ms: int) -> DueSteps | None:
        """Continue the running count, or begin one. Returns its result once it is complete; None before.

        Raises CallError, Refused.
        """
        if self._began_ms is None:
            self._began_ms, self._place, self._counts = now_ms, FIRST_PLACE, Counter()
        first_ms = self._began_ms // self._step_ms * self._step_ms
        asked = TimerQuery(None, first_ms, first_ms + self._steps * self._step_ms)
        for _ in range(REQUESTS_MAX):
            answer = await self._ask(count_request(asked, self._place, self._step_ms))
            self._counts.update(msgspec.json.decode(answer.body, type=dict[int, int]))
            place = next_place(answer)
            if place is None:
                found = DueSteps(self._began_ms, dict(self._counts))
                self._began_ms = None
                return found
            self._place = place
        return None

    def drop(self) -> None:
        """End the running count without a result."""
        self._began_ms = None


def _local(time_ms: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(time_ms / 1000, datetime.UTC).astimezone()


def _epoch_ms(time: datetime.datetime) -> int:
    """Return the milliseconds of a local time. The zone's own offset counts, also after a change of clocks."""
    return int(time.replace(tzinfo=None).timestamp() * 1000)
