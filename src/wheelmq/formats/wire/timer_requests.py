"""The requests for pending delayed messages, which commands and clients send to WheelMQ's brokers.

The broker answers in parts. Each answer but the last names the place where the next request continues.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from wheelmq.formats.units import NEVER_MS
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.headers import Header

PAGE_COUNT: Final = 500
"""Messages in one answer to `list_request`."""
FIRST_PLACE: Final = 0


class TimerQuery(NamedTuple):
    """Messages that are due from `from_ms` to before `to_ms`, of one topic or of all."""

    topic: str | None
    from_ms: int
    to_ms: int

    def has(self, topic: str, due_ms: int) -> bool:
        return self.topic in (None, topic) and self.from_ms <= due_ms < self.to_ms


def list_request(asked: TimerQuery, place: int) -> Command:
    """Return the request for pending messages, in no order of their due times."""
    header = headers.ListTimersHeader(place=place, count=PAGE_COUNT, **asked._asdict())
    return _command(RequestCode.WMQ_LIST_TIMERS, header)


def soonest_request(asked: TimerQuery, place: int, count: int, before_ms: int = NEVER_MS) -> Command:
    """Return the request for at most `count` pending messages by due time, of those that are due before `before_ms`."""
    header = headers.ListTimersHeader(
        place=place, count=count, soonest=True, listed_before_ms=before_ms, **asked._asdict()
    )
    return _command(RequestCode.WMQ_LIST_TIMERS, header)


def count_request(asked: TimerQuery, place: int, step_ms: int) -> Command:
    """Return the request for the number of messages due in each interval of `step_ms`."""
    header = headers.CountTimersHeader(place=place, step_ms=step_ms, **asked._asdict())
    return _command(RequestCode.WMQ_COUNT_TIMERS, header)


def find_request(topic: str, key: str, place: int) -> Command:
    """Return the request for the messages for `topic` with a unique or business key, settled ones too."""
    return _command(RequestCode.WMQ_FIND_TIMERS, headers.FindTimersHeader(topic=topic, key=key, place=place))


def next_place(answer: Command) -> int | None:
    """Return where the next request continues; None after the last answer."""
    return None if answer.ext.get("isLast", "true") == "true" else int(answer.ext["nextPlace"])


def _command(code: RequestCode, header: Header) -> Command:
    return Command(code=code, ext=headers.write(header))
