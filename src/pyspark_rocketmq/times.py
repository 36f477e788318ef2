"""Texts of times and durations in options: `2026-11-25T10:00:00Z`, `1795231431000`, `-10 minutes`."""

from __future__ import annotations

import datetime
import re
from typing import Final

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


def duration_ms(option: str, text: str) -> int:
    """Return the milliseconds of a duration such as `15 minutes`. Raises OptionError."""
    found = _DURATION.fullmatch(text.strip().lower())
    unit_ms = None if found is None else _UNITS_MS.get(found[2]) or _UNITS_MS.get(found[2].removesuffix("s"))
    if found is None or unit_ms is None:
        raise OptionError(f"{option} is {text!r}: write a number and a unit ({_UNIT_NAMES}), as in '15 minutes'")
    return int(found[1]) * unit_ms


def time_ms(option: str, text: str, now_ms: Millis) -> Millis:
    """Return the time that `text` names: ISO 8601 with a zone, milliseconds since 1970, or relative to `now_ms`.

    Raises OptionError.
    """
    text = text.strip()
    if text.isdecimal():
        return Millis(int(text))
    if text.startswith("-"):
        return Millis(max(0, now_ms - duration_ms(option, text[1:])))
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise OptionError(
            f"{option} is {text!r}: write a time as in 2026-11-25T10:00:00Z, milliseconds since 1970, or a duration "
            "before now as in '-10 minutes'"
        ) from None
    if moment.tzinfo is None:
        raise OptionError(f"{option} is {text!r}, a time without a zone: add Z for UTC, or an offset such as +01:00")
    return Millis(int(moment.timestamp() * 1000))
