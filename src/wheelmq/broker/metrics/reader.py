"""Reads metric families for other threads. The broker's loop creates them, in small pieces between its other work."""

from __future__ import annotations

import asyncio
from typing import Final

from wheelmq.broker.metric_families import Families
from wheelmq.broker.metric_sources import MetricSources
from wheelmq.formats.wire.metric_families import MetricFamily

ANSWER_S: Final = 10.0
"""Seconds that another thread waits for the loop."""
SLICE_S: Final = 0.002
"""Seconds of work after which the loop does its other work."""


class FamilyReader:
    """The present families of a broker, for other threads than that of its loop."""

    def __init__(self, sources: MetricSources, loop: asyncio.AbstractEventLoop) -> None:
        self._families = Families(sources)
        self._clock = sources.clock
        self._loop = loop

    def read(self) -> list[MetricFamily]:
        """Return the families. Not for the thread of the loop. Raises TimeoutError if the loop does not answer."""
        return asyncio.run_coroutine_threadsafe(self._collect(), self._loop).result(ANSWER_S)

    async def _collect(self) -> list[MetricFamily]:
        found: list[MetricFamily] = []
        until_s = self._clock.monotonic() + SLICE_S
        for family in self._families.steps():
            if family is not None:
                found.append(family)
            if self._clock.monotonic() >= until_s:
                await asyncio.sleep(0)
                until_s = self._clock.monotonic() + SLICE_S
        return found
