"""VIEW_BROKER_STATS_DATA: counters over the last minute, hour and day."""

from __future__ import annotations

from typing import Any

from wheelmq.broker.answers import Answer, PeerError, reply
from wheelmq.broker.context import Context
from wheelmq.broker.handler_table import serves
from wheelmq.broker.request import Request
from wheelmq.formats.wire import bodies
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.headers import StatsHeader
from wheelmq.observe.stats import WindowFigures


@serves(RequestCode.VIEW_BROKER_STATS_DATA)
def view_stats(request: Request, context: Context) -> Answer:
    """Return the figures of one counter, sampled in Apache's way (broker.statistics has the names)."""
    header = request.header(StatsHeader)
    found = context.stats.figures(header.stats_name, header.stats_key)
    if found is None:
        remark = f"The stats <{header.stats_name}> <{header.stats_key}> not exist"
        raise PeerError(ResponseCode.SYSTEM_ERROR, remark)
    body = {"statsMinute": found.minute, "statsHour": found.hour, "statsDay": found.day}
    return reply(body=bodies.write({name: _written(figures) for name, figures in body.items()}))


def _written(figures: WindowFigures) -> dict[str, Any]:
    return {"sum": figures.sum, "tps": figures.tps, "avgpt": figures.average}
