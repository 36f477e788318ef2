"""The level table: the delay of each fixed level (RocketMQ: messageDelayLevel)."""

from __future__ import annotations

import re
from typing import Final

from wheelmq.formats.units import Millis

DEFAULT_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

LEVEL_MS_MAX: Final = ((1 << 31) - 1) * 1000
"""The longest delay of a level, 68 years: a due time has 13 digits."""

_UNITS_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LEVEL = re.compile(r"(\d+)([smhd])")


def parse_levels(text: str) -> tuple[Millis, ...]:
    """Return the delays of level 1, 2, ... of a table like "1s 5s 1m". Raises ValueError for an invalid table."""
    delays = []
    for word in text.split():
        match = _LEVEL.fullmatch(word)
        if match is None:
            raise ValueError(f"messageDelayLevel: {word!r} is not a number followed by s, m, h or d")
        delay_ms = Millis(int(match[1]) * _UNITS_MS[match[2]])
        if delay_ms > LEVEL_MS_MAX:
            raise ValueError(f"messageDelayLevel: {word!r} is more than {LEVEL_MS_MAX // 1000} s, 68 years")
        delays.append(delay_ms)
    if not delays:
        raise ValueError("messageDelayLevel is empty")
    return tuple(delays)


def level_of(levels_ms: tuple[Millis, ...], level: int) -> int:
    """Return the level for a message that asks for `level`, 1 or more. Levels above the last become the last."""
    return min(level, len(levels_ms))


def deliver_at_ms(tag_ms: int, now_ms: Millis, delay_ms: int) -> Millis:
    """Return the delivery time of a message with tag code `tag_ms` (RocketMQ: correctDeliverTimestamp).

    It is `now_ms` if `tag_ms` is further away than the delay: the clock was set back, or the level table changed.
    """
    return now_ms if tag_ms > now_ms + delay_ms else Millis(tag_ms)


def level_delay_ms(levels_ms: tuple[Millis, ...], level: int) -> Millis:
    return levels_ms[level_of(levels_ms, level) - 1]
