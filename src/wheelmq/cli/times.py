"""Durations and times as people write them. Pure: the caller passes the current time."""

from __future__ import annotations

import datetime
import itertools
import re
from decimal import Decimal
from typing import Any, Final

import click

from wheelmq.formats.units import Millis

UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_PART: Final = r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)"
_DURATION: Final = re.compile(f"(?:{_PART})+", re.IGNORECASE)
_PARTS: Final = re.compile(_PART, re.IGNORECASE)
WEEKDAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_CLOCK: Final = re.compile(r"[0-9]{1,2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?")
TIME_FORMS: Final = (
    "a time from now, as in +10s; a clock time, as in 18:30; a day with or without one, as in tomorrow or monday "
    "09:00; or ISO 8601, as in 2031-05-04T13:30, 2031-05-04T13:30:00.250+02:00 or 2031-05-04T11:30:00Z"
)


def parse_duration(text: str) -> int:
    """Return the milliseconds of a text like 500ms, 10s, 1.5h or 1h30m. Raises ValueError with the allowed forms."""
    written = text.strip()
    if re.fullmatch(r"[0-9.]+", written):
        raise ValueError(f"{text!r} has no unit: write {written}s for seconds; ms, s, m, h and d are known")
    if written.startswith("-") and _DURATION.fullmatch(written[1:]):
        raise ValueError(f"{text!r} is negative: a duration is 0 or more, as in 500ms, 10s, 5m")
    if not _DURATION.fullmatch(written):
        raise ValueError(f"{text!r} is no duration: write a number and a unit, as in 500ms, 10s, 5m, 2h, 1d, 1h30m")
    total = sum((Decimal(number) * UNITS_MS[unit.lower()] for number, unit in _PARTS.findall(written)), Decimal())
    return int(total.to_integral_value())


def parse_time(text: str, now_ms: Millis) -> Millis:
    """Return the time of a text, in the local zone if it names none. Raises ValueError with the allowed forms.

    A text is one of: `+` and a duration; a clock time, which is one of today; a day, which is its midnight; a day, a
    blank and a clock time; ISO 8601. A day is `today`, `tomorrow`, a weekday (the next one after today) or a date.
    """
    written = text.strip()
    if written.startswith("+"):
        return Millis(now_ms + parse_duration(written[1:]))
    try:
        moment = _moment(written, now_ms)
        if moment.tzinfo is None:
            moment = _local(moment, text)
    except _NoTime:
        raise ValueError(f"{text!r} is no time: write {TIME_FORMS}") from None
    except OverflowError:
        raise ValueError(f"{text!r} is out of range: write a year from 1970 to 9999") from None
    return Millis(round(moment.timestamp() * 1000))


def is_clock_time(text: str) -> bool:
    """Return whether `text` is a clock time without a day, as in 18:30."""
    return _CLOCK.fullmatch(text.strip()) is not None


class _NoTime(Exception):
    """The text is not in any of the allowed forms."""


def _moment(written: str, now_ms: Millis) -> datetime.datetime:
    """Return the moment of a text without `+`, without a zone if the text has none. Raises _NoTime, OverflowError."""
    today = datetime.datetime.fromtimestamp(now_ms / 1000).date()
    word, _, clock = written.lower().partition(" ")
    days = {"today": 0, "tomorrow": 1}.get(word)
    if word in WEEKDAYS:
        days = (WEEKDAYS.index(word) - today.weekday() - 1) % 7 + 1
    try:
        if days is None and not _CLOCK.fullmatch(written):
            return datetime.datetime.fromisoformat(written)
        day = today + datetime.timedelta(days=days or 0)
        rest = written if days is None else clock.strip()
        if rest and not _CLOCK.fullmatch(rest):
            raise _NoTime
        clock_time = datetime.time.fromisoformat(rest.rjust(len(rest) + (rest[1:2] == ":"), "0") or "00:00")
        return datetime.datetime.combine(day, clock_time)
    except ValueError:
        raise _NoTime from None


def _local(moment: datetime.datetime, text: str) -> datetime.datetime:
    """Return a moment with the local zone; the first one if the clocks show it twice.

    Raises ValueError for a moment that the clocks skip.
    """
    try:
        found = moment.astimezone()
        shown = datetime.datetime.fromtimestamp(found.timestamp())
    except ValueError:
        raise OverflowError from None
    if shown != moment:
        after = max(moment.replace(fold=fold).astimezone() for fold in (0, 1))
        raise ValueError(
            f"{text!r} does not exist here: the clocks are set forward over it. Write "
            f"{after.astimezone().isoformat(timespec='minutes')} instead"
        )
    return found


def parse_past_time(text: str, now_ms: Millis) -> Millis:
    """Return the time that a text gives: ISO 8601, or `-` and a duration. Raises ValueError with the allowed forms."""
    written = text.strip()
    if written.startswith("-"):
        return Millis(now_ms - parse_duration(written[1:]))
    if written.startswith("+"):
        raise ValueError(f"{text!r} is in the future: write ISO 8601, or a time before now, as in -10m")
    return parse_time(written, now_ms)


def time_text(time_ms: int) -> str:
    seconds, ms = divmod(time_ms, 1000)
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC).astimezone().replace(microsecond=ms * 1000)
    return moment.isoformat(timespec="milliseconds")


def clock_text(time_ms: int) -> str:
    return time_text(time_ms)[11:23]


def duration_text(duration_ms: int) -> str:
    """Return a duration as text: to the millisecond below a minute, else rounded to its two largest units."""
    if abs(duration_ms) < 1000:
        return f"{duration_ms}ms"
    sign, left = ("-" if duration_ms < 0 else ""), abs(duration_ms)
    if left < 60_000:
        return f"{sign}{left / 1000:.3f}".rstrip("0").rstrip(".") + "s"
    return sign + _in_two_units(left)


def remaining_text(duration_ms: int) -> str:
    """Return a remaining time as text, which changes while a person reads it.

    It is rounded to a tenth of a second below 10 s, to a second below a minute, then as in `duration_text`.
    """
    tenths = (duration_ms + 50) // 100
    if tenths < 100:
        return f"{tenths / 10:g}s"
    seconds = (duration_ms + 500) // 1000
    return f"{seconds}s" if seconds < 60 else _in_two_units(duration_ms)


def _in_two_units(duration_ms: int) -> str:
    for greater, lesser in itertools.pairwise(("d", "h", "m", "s")):
        step_ms = UNITS_MS[lesser]
        rounded_ms = (duration_ms + step_ms // 2) // step_ms * step_ms
        if rounded_ms >= UNITS_MS[greater]:
            count, left_ms = divmod(rounded_ms, UNITS_MS[greater])
            return f"{count}{greater}" + (f"{left_ms // step_ms}{lesser}" if left_ms else "")
    return f"{duration_ms / 1000:.0f}s"


class Seconds(click.ParamType[int]):
    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        if not re.fullmatch(r"[0-9]+", value.strip(), re.ASCII):
            self.fail(f"{value!r} is no whole number of seconds, 0 or more: write 3600 for an hour", param, ctx)
        return int(value)


class Duration(click.ParamType[int]):
    """A duration option; its value is in milliseconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return parse_duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Time(click.ParamType[int]):
    """An option with a time: a clock time, a day, ISO 8601, or + and a duration from now."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from wheelmq.system.clock import SystemClock

        if isinstance(value, int):
            return value
        try:
            return parse_time(value, SystemClock().now_ms())
        except ValueError as error:
            self.fail(str(error), param, ctx)
