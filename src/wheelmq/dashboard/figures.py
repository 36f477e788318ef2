"""The dashboard's figures. It asks the broker at most once per second, by requests that serve other clients too."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from wheelmq.formats.wire import headers
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.errors import CallError, Refused
from wheelmq.system.clock import Clock

Ask = Callable[[Command], Awaitable[Command]]
"""Send a request to the broker. Raises CallError, Refused."""

KEPT_S: Final = 1.0
"""The greatest age of figures. The broker is not asked more often, even for many viewers."""
TOPICS: Final = 50
MINUTE_MS: Final = 60_000
MINUTES: Final = 60
COUNTS_MAX: Final = 4
"""Requests that may be used to count all pending messages by minute.

If they are not enough, the page shows the messages in the wheel.
"""


class DashboardFigures:
    def __init__(self, ask: Ask, clock: Clock) -> None:
        self._ask = ask
        self._clock = clock
        self._asking = asyncio.Lock()
        self._kept: dict[str, Any] = {}
        self._kept_s = float("-inf")

    async def get(self) -> dict[str, Any]:
        """Return the answer of WMQ_METRICS with `by_minute` and `counted`; only `problem` while no broker answers.

        `counted` is "all" or "wheel": the messages that `by_minute` counts.
        """
        async with self._asking:
            if self._clock.monotonic() - self._kept_s >= KEPT_S:
                self._kept = await self._fetch()
                self._kept_s = self._clock.monotonic()
            return self._kept

    async def _fetch(self) -> dict[str, Any]:
        try:
            command = _request(RequestCode.WMQ_METRICS, headers.MetricsHeader(topics=TOPICS))
            found: dict[str, Any] = msgspec.json.decode((await self._ask(command)).body)
            counts = await self._count(found["now_ms"])
        except (CallError, Refused, msgspec.DecodeError) as error:
            return {"problem": f"the broker does not answer: {error}"}
        found["counted"] = "wheel" if counts is None else "all"
        found["by_minute"] = found["overview"]["wheel_by_minute"] if counts is None else counts
        return found

    async def _count(self, now_ms: int) -> list[list[int]] | None:
        """Return (start, number of due messages) of each minute of the next hour; None after COUNTS_MAX requests."""
        first_ms = now_ms // MINUTE_MS * MINUTE_MS
        counts: Counter[int] = Counter()
        place = 0
        for _ in range(COUNTS_MAX):
            header = headers.CountTimersHeader(
                step_ms=MINUTE_MS, place=place, from_ms=first_ms, to_ms=first_ms + MINUTES * MINUTE_MS
            )
            answer = await self._ask(_request(RequestCode.WMQ_COUNT_TIMERS, header))
            counts.update(msgspec.json.decode(answer.body, type=dict[int, int]))
            if answer.ext["isLast"] == "true":
                return [[first_ms + i * MINUTE_MS, counts[first_ms + i * MINUTE_MS]] for i in range(MINUTES)]
            place = int(answer.ext["nextPlace"])
        return None


def _request(code: RequestCode, header: headers.Header) -> Command:
    return Command(code=code, ext=headers.write(header))
