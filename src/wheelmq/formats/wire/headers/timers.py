"""Headers of requests about delayed messages (WMQ_..._TIMERS)."""

from __future__ import annotations

from wheelmq.formats.units import NEVER_MS
from wheelmq.formats.wire.headers.base import Header, Int32, Int64


class ListTimersHeader(Header):
    """WMQ_LIST_TIMERS: pending messages from a place, which is an origin. Place 0 is the first.

    With `soonest`, at most `count` messages of its places: those due soonest and before `listed_before_ms`.
    """

    place: Int64 = 0
    count: Int32 = 1000
    topic: str | None = None
    from_ms: Int64 = 0
    to_ms: Int64 = NEVER_MS
    soonest: bool = False
    listed_before_ms: Int64 = NEVER_MS


class CountTimersHeader(Header):
    """WMQ_COUNT_TIMERS: the number of messages due in each `step_ms`."""

    step_ms: Int64
    place: Int64 = 0
    topic: str | None = None
    from_ms: Int64 = 0
    to_ms: Int64 = NEVER_MS


class FindTimersHeader(Header):
    """WMQ_FIND_TIMERS: delayed messages with a unique key or another key, from a place as in WMQ_LIST_TIMERS."""

    topic: str
    key: str
    place: Int64 = 0
