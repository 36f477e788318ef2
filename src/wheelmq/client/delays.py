"""Checks of a message before it is sent: its delay or due time, and the types of its fields.

The broker delivers a message with a past due time at once. So the client rejects seconds in place of milliseconds.
"""

from __future__ import annotations

import datetime
import operator
import re
from typing import Any, Final

from wheelmq.formats.disk import properties as props
from wheelmq.formats.wire.frame import Command
from wheelmq.net.errors import Refused

DELAY_LEVELS: Final = 18
"""Number of levels that a broker has by default: 1 s, 5 s, 10 s, 30 s, 1 to 10 min, 20 min, 30 min, 1 h, 2 h."""

PAST_MS_MAX: Final = 10_000
"""A due time at most this far in the past is accepted. Clocks differ, and a retry of the caller takes time."""

BLOCK_SECONDS_MAX: Final = 366 * 24 * 3600
"""The longest `delay_in_seconds` that WheelMQ's broker accepts by default."""

TimeMs = int | datetime.datetime
"""A moment: milliseconds since 1970, or a datetime with a time zone."""
DurationMs = int | datetime.timedelta
"""A duration: milliseconds, or a timedelta."""
DurationS = int | datetime.timedelta
"""A duration: seconds, or a timedelta."""
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
_MS: Final = datetime.timedelta(milliseconds=1)
_UNIT_OF: Final = {"delay_ms": _MS, "delay_in_seconds": datetime.timedelta(seconds=1)}
"""The options that are durations."""
_MOMENTS: Final = ("deliver_at_ms", "time_ms", "from_ms", "to_ms")

YEAR_9999_MS: Final = 253_402_300_800_000
_UNITS: Final = ((1000, "seconds"), (1 / 1000, "microseconds"), (1 / 1_000_000, "nanoseconds"))
_NEAR_MS: Final = 10 * 366 * 86_400_000
"""A value that names a time this close to the present in another unit was probably written in that unit."""

_TIMER_LIMIT: Final = re.compile(r"max delay (\d+)ms")
"""Matches the remark of WheelMQ's broker and of Apache's broker."""
_BLOCK_LIMIT: Final = re.compile(r"must not exceed (\d+)s")


class TooFarAhead(Refused):
    """The broker rejected a message because its due time is beyond the reach of the broker's timer."""

    def __init__(self, answer: Command, asked_ms: int, limit_ms: int, *, is_in_block: bool) -> None:
        super().__init__(answer)
        self.asked_ms = asked_ms
        self.limit_ms = limit_ms
        self.is_in_block = is_in_block
        """Whether the message was sent with `delay_in_seconds`."""

    @property
    def seconds(self) -> int:
        return -(-self.asked_ms // 1000)

    @property
    def problem(self) -> str:
        return f"the delay is {_span(self.asked_ms)}, and this broker accepts at most {_span(self.limit_ms)}"

    @property
    def longer_timer(self) -> str:
        """The remedy of the operator for a timer."""
        return f"start the broker with `wheelmq up --set timer_max_delay_seconds={self.seconds}` or more"

    @property
    def fits_block(self) -> bool:
        """Whether a broker of WheelMQ accepts the delay as `delay_in_seconds`, by its default limit."""
        return not self.is_in_block and self.seconds <= BLOCK_SECONDS_MAX

    def __str__(self) -> str:
        if self.is_in_block:
            remedy = f"start the broker with `wheelmq up --set block_max_delay_seconds={self.seconds}` or more"
        elif not self.fits_block:
            remedy = self.longer_timer
        else:
            remedy = (
                f"send it with delay_in_seconds={self.seconds}, which reaches a year on WheelMQ's brokers, or "
                f"{self.longer_timer}"
            )
        return f"{self.problem}: {remedy}"


def delay_property(
    *,
    level: int | None,
    delay_ms: DurationMs | None,
    deliver_at_ms: TimeMs | None,
    seconds: DurationS | None,
    now_ms: int,
) -> dict[str, str]:
    """Return the property that asks for a later delivery; an empty dict for a delivery at once.

    Raises ValueError for a value that cannot be right, and TypeError for a value of another type.
    """
    asked = {
        "delay_level": level,
        "delay_ms": delay_ms,
        "deliver_at_ms": deliver_at_ms,
        "delay_in_seconds": seconds,
    }
    given = {option: whole(option, value) for option, value in asked.items() if value is not None}
    if not given:
        return {}
    if len(given) > 1:
        raise ValueError(f"a message has either a delay or a time of delivery: choose one of {', '.join(given)}")
    [(option, value)] = given.items()
    match option:
        case "deliver_at_ms":
            _check_time(value, now_ms)
            return {props.TIMER_DELIVER_MS: str(value)}
        case "delay_level":
            if not 0 <= value <= DELAY_LEVELS:
                raise ValueError(f"there is no delay level {value}: 1 to {DELAY_LEVELS}, or 0 for none")
            name = props.DELAY
        case _:
            unit, name = ("ms", props.TIMER_DELAY_MS) if option == "delay_ms" else ("s", props.DELAY_IN_SECONDS)
            if value < 0:
                raise ValueError(f"{option}: a delay of {value} {unit} is in the past; 0 delivers at once")
    return {name: str(value)} if value else {}


def whole(option: str, value: Any) -> int:
    """Return the value of an option as an int: a whole number, or a moment or a duration in the unit of the option.

    A fraction of the unit is rounded up, because no message may be early. Raises TypeError, and ValueError for a moment
    without a time zone.
    """
    is_moment = option in _MOMENTS
    if isinstance(value, datetime.datetime):
        if not is_moment:
            remedy = "it is a duration: write a timedelta, or deliver_at_ms=moment"
        elif value.utcoffset() is None:
            raise ValueError(f"{option} is {value!r}, without a time zone: write moment.astimezone() for local time")
        else:
            return -((_EPOCH - value) // _MS)
    elif isinstance(value, datetime.timedelta):
        if option in _UNIT_OF:
            return -(-value // _UNIT_OF[option])
        remedy = "it is a moment: write a datetime, or delay_ms=duration" if is_moment else "write a whole number"
    else:
        remedy = "write a whole number, as int"
        if not isinstance(value, bool):
            try:
                return operator.index(value)
            except TypeError:
                pass
    raise TypeError(f"{option} is {value!r}, a {type(value).__name__}: {remedy}")


def content(body: object) -> bytes:
    """Return a body as bytes; a text is encoded as UTF-8. Raises TypeError, and ValueError for a lone surrogate."""
    if isinstance(body, str):
        return body.encode()
    if isinstance(body, bytes | bytearray):
        return bytes(body)
    raise TypeError(f"the body is {_short(body)}, a {type(body).__name__}: it must be bytes or a str")


def check_property_types(name: object, value: object) -> None:
    if not isinstance(name, str) or not isinstance(value, str):
        wrong = value if isinstance(name, str) else name
        raise TypeError(f"property {name!r} is {_short(value)}: a {type(wrong).__name__}, but it must be a str")


def refused(answer: Command, asked_ms: int | None, *, is_in_block: bool) -> Refused:
    """Return the error for a rejected send: TooFarAhead if the delay `asked_ms` is beyond the limit in the answer."""
    limit = (_BLOCK_LIMIT if is_in_block else _TIMER_LIMIT).search(answer.remark or "")
    if limit is not None and asked_ms is not None:
        limit_ms = int(limit[1]) * (1000 if is_in_block else 1)
        if asked_ms > limit_ms:
            return TooFarAhead(answer, asked_ms, limit_ms, is_in_block=is_in_block)
    return Refused(answer)


def _check_time(deliver_at_ms: int, now_ms: int) -> None:
    """Raise ValueError for a time before the present, or after the year 9999."""
    past_ms = now_ms - deliver_at_ms
    if past_ms <= PAST_MS_MAX and deliver_at_ms < YEAR_9999_MS:
        return
    if past_ms <= PAST_MS_MAX:
        found = f"deliver_at_ms is {deliver_at_ms}, which is after the year 9999"
    else:
        found = f"deliver_at_ms is {deliver_at_ms}, which is {_date(deliver_at_ms)}, {_span(past_ms)} in the past"
    for factor, unit in _UNITS:
        meant_ms = int(deliver_at_ms * factor)
        if abs(meant_ms - now_ms) < _NEAR_MS:
            raise ValueError(f"{found}: it looks like {unit}; write {meant_ms}, in milliseconds since 1970")
    raise ValueError(f"{found}: write a future time in milliseconds since 1970, or leave it out to deliver at once")


def _date(time_ms: int) -> str:
    try:
        seconds, ms = divmod(time_ms, 1000)
        moment = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).replace(microsecond=ms * 1000)
    except (ValueError, OverflowError, OSError):
        return "before the year 1"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _span(duration_ms: int) -> str:
    seconds = duration_ms / 1000
    return f"{seconds:.10g} s" + (f" ({seconds / 86_400:.1f} days)" if seconds >= 86_400 else "")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
