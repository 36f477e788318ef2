"""Texts of times and durations in options: `2026-11-25T10:00:00Z`, `1795231431000`, `-10 minutes`."""

from __future__ import annotations

import datetime
import re
from typing import Final

import msgspec

from pyspark_rocketmq.errors import OptionError
from wheelmq.formats.units import Millis

_UNITS_MS: Final = {
    "ms": 1,
    "millisecond": 1,
    "s": 1000,
    "second": 1000,
    "m": 60_000,
    "min": 60_000,
    "minute": 60_000,
    "h": 3_600_000,
    "hour": 3_600_000,
    "d": 86_400_000,
    "day": 86_400_000,
}
_DURATION: Final = re.compile(r"(\d+)\s*([a-z]+)")
_UNIT_NAMES: Final = "ms, seconds, minutes, hours, days"
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MS_MAX: Final = (1 << 63) - 1


class Moment(msgspec.Struct, frozen=True):
    """The time in an option: `at_ms`, or `ago_ms` before the start of the query."""

    at_ms: Millis | None = None
    ago_ms: int = 0

    def since_epoch_ms(self, now_ms: Millis) -> Millis:
        return Millis(max(0, now_ms - self.ago_ms)) if self.at_ms is None else self.at_ms


def duration_ms(option: str, text: str) -> int:
    """Return the milliseconds of a duration such as `15 minutes`. Raises OptionError."""
    found = _DURATION.fullmatch(text.strip().lower())
    unit_ms = None if found is None else _UNITS_MS.get(found[2]) or _UNITS_MS.get(found[2].removesuffix("s"))
    if found is None or unit_ms is None:
        raise OptionError(f"{option} is {text!r}: write a number and a unit ({_UNIT_NAMES}), as in '15 minutes'")
    return int(found[1]) * unit_ms


def parse_moment(option: str, text: str) -> Moment:
    """Return the time that `text` names: ISO 8601 with a zone, milliseconds since 1970, or relative to the start.

    Microseconds are rounded up. Raises OptionError.
    """
    text = text.strip()
    if text.isdecimal():
        if int(text) > _MS_MAX:
            raise OptionError(f"{option} is {text}, more than {_MS_MAX}: write milliseconds since 1970")
        return Moment(Millis(int(text)))
    if text.startswith("-"):
        return Moment(ago_ms=duration_ms(option, text[1:]))
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise OptionError(
            f"{option} is {text!r}: write a time as in 2026-11-25T10:00:00Z, milliseconds since 1970, or a duration "
            "before now as in '-10 minutes'"
        ) from None
    if moment.tzinfo is None:
        raise OptionError(f"{option} is {text!r}, a time without a zone: add Z for UTC, or an offset such as +01:00")
    return Moment(Millis(max(0, -((_EPOCH - moment) // datetime.timedelta(milliseconds=1)))))
