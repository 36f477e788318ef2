"""Figures and a history of a broker, as the dashboard gets them, for tests of its page."""

from __future__ import annotations

import asyncio
from typing import Any

from wheelmq.dashboard import page
from wheelmq.dashboard.figures import DashboardFigures
from wheelmq.dashboard.history import HourHistory, Sample
from wheelmq.formats.wire.frame import Command
from wheelmq.net.errors import CallError
from wheelmq.testing.harness import BrokerHarness

from .html_tree import Element, parse_page

BOUNDS_MS = (1, 10, 100, 1000, 5000, 60_000)


class CountedRequests:
    """Sends commands to a broker and counts them."""

    def __init__(self, harness: BrokerHarness) -> None:
        self.harness = harness
        self.codes: list[int] = []
        self.is_there = True
        self.problem = "connection refused"

    async def __call__(self, command: Command) -> Command:
        self.codes.append(command.code)
        if not self.is_there:
            raise CallError(self.problem)
        return self.harness.ask(command)


def read_figures(requests: CountedRequests, *, expects_pipeline: bool = True) -> dict[str, Any]:
    """Return the present figures of the broker."""
    figures = DashboardFigures(requests, requests.harness.clock, expects_pipeline=expects_pipeline)
    return asyncio.run(figures.get())


def shown(found: dict[str, Any], history: HourHistory | None = None, **options: Any) -> Element:
    """Return the page that shows these figures."""
    return parse_page(page.html(found, history or HourHistory(), found.get("now_ms", 0), **options))


def sample(
    at_ms: int, *, puts: int = 0, gets: int = 0, pending: int = 0, late_ms: int = 1, released: int = 0
) -> Sample:
    """Return a sample. All releases before it were late by `late_ms`."""
    late_to = tuple((bound, released if bound >= late_ms else 0) for bound in BOUNDS_MS)
    return Sample(at_ms, 1, puts, gets, pending, released, late_to)


def steady_history(now_ms: int, *, minutes: int = 60, late_ms: int = 1) -> HourHistory:
    """Return a history with 10 messages in and 5 out per second, and one release per second."""
    history = HourHistory()
    for i in range(minutes * 6 + 1):
        at_ms = now_ms - minutes * 60_000 + i * 10_000
        history.add(sample(at_ms, puts=100 * i, gets=50 * i, pending=i, late_ms=late_ms, released=10 * i))
    return history
