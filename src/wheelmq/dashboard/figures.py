"""The dashboard's figures. It asks the broker at most once per second, by requests that serve other clients too."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

from wheelmq.dashboard.due_counts import DAY_MS, DAYS, MINUTE_MS, MINUTES, QUARTER_MS, Ask, DueCounter, DueSteps
from wheelmq.dashboard.history import HourHistory, sample_of
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.errors import CallError, Refused
from wheelmq.system.clock import Clock

KEPT_S: Final = 1.0
"""The greatest age of figures. The broker is not asked more often, even for many viewers."""
COUNTED_S: Final = 10.0
"""The interval between two counts of messages by hour and day."""
SAMPLE_S: Final = 10.0
"""The interval between two samples of the history."""
ROWS: Final = 50
"""Rows of each table of topics or groups."""


class DashboardFigures:
    """The figures of one broker, and its history since the creation of this object.

    `expects_pipeline` says whether a broker without a pipeline is a problem.
    """

    def __init__(self, ask: Ask, clock: Clock, *, expects_pipeline: bool = True) -> None:
        self._ask = ask
        self._clock = clock
        self._expects_pipeline = expects_pipeline
        self._asking = asyncio.Lock()
        self._kept: dict[str, Any] = {}
        self._kept_s = float("-inf")
        self._state: dict[str, Any] = {}
        self._state_s = float("-inf")
        self._minute_counter = DueCounter(ask, MINUTE_MS, MINUTES)
        self._quarter_counter = DueCounter(ask, QUARTER_MS, DAYS * DAY_MS // QUARTER_MS)
        self._quarters: DueSteps | None = None
        self._counted_s = float("-inf")
        self.history = HourHistory()

    async def get(self) -> dict[str, Any]:
        """Return the answer of WMQ_METRICS and the counts of due messages; only `problem` while no broker answers.

        `counted` is "all" or "wheel": the messages that `by_minute` counts. `by_hour` and `by_day` have all pending
        messages as of `counted_ms`. Until they are counted for the first time, both are empty.
        """
        async with self._asking:
            if self._clock.monotonic() - self._kept_s >= KEPT_S:
                self._kept = await self._fetch()
                self._kept_s = self._clock.monotonic()
            return self._kept

    async def state(self) -> dict[str, Any]:
        """Return the answer of WMQ_METRICS without its tables; only `problem` while no broker answers.

        Health checks ask for it often, and it costs less than all figures.
        """
        async with self._asking:
            if self._clock.monotonic() - self._state_s >= KEPT_S:
                try:
                    self._state = await self._metrics(rows=0)
                except (CallError, Refused, msgspec.DecodeError) as error:
                    self._state = {"problem": _away(error)}
                self._state_s = self._clock.monotonic()
            return self._state

    async def sample(self) -> None:
        """Add a sample to the history, if the broker answers. It costs one request, without the overview's tables."""
        try:
            found = await self._metrics(rows=0)
        except (CallError, Refused, msgspec.DecodeError):
            return
        self.history.add(sample_of(found))

    async def keep_sampling(self) -> None:
        """Sample until the task is cancelled."""
        while True:
            await self.sample()
            await asyncio.sleep(SAMPLE_S)

    async def _metrics(self, rows: int = ROWS) -> dict[str, Any]:
        header = headers.MetricsHeader(topics=rows)
        answer = await self._ask(Command(code=RequestCode.WMQ_METRICS, ext=headers.write(header)))
        found: dict[str, Any] = msgspec.json.decode(answer.body)
        # A lease ends when the broker takes it back. A broker that had a pipeline expects it again.
        self._expects_pipeline |= found["pipeline"]["holder"] is not None
        found["expects_pipeline"] = self._expects_pipeline
        return found

    async def _fetch(self) -> dict[str, Any]:
        try:
            found = await self._metrics()
            await self._count_minutes(found)
            await self._count_quarters(found)
        except (CallError, Refused, msgspec.DecodeError) as error:
            return {"problem": _away(error)}
        return found

    async def _count_minutes(self, found: dict[str, Any]) -> None:
        """Add the counts of the next hour. With too many messages they are those of the wheel."""
        minutes = await self._minute_counter.advance(int(found["now_ms"]))
        if minutes is None:
            self._minute_counter.drop()
        found["counted"] = "wheel" if minutes is None else "all"
        found["by_minute"] = (
            found["overview"]["wheel_by_minute"] if minutes is None else minutes.rows(MINUTE_MS, MINUTES)
        )

    async def _count_quarters(self, found: dict[str, Any]) -> None:
        """Add the counts by hour and day. Many messages take several calls, one second apart."""
        now_s = self._clock.monotonic()
        if now_s - self._counted_s >= COUNTED_S:
            quarters = await self._quarter_counter.advance(int(found["now_ms"]))
            if quarters is not None:
                self._quarters, self._counted_s = quarters, now_s
        known = self._quarters
        found["counted_ms"] = None if known is None else known.at_ms
        found["by_hour"] = [] if known is None else known.by_hour()
        found["by_day"] = [] if known is None else known.by_day()


def _away(error: Exception) -> str:
    return f"the broker does not answer: {error}"
