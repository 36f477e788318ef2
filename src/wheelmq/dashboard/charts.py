"""The charts of the last hour, as the coordinates of an SVG picture. A template draws them. Pure."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from wheelmq.dashboard.alarms import LATE_MS, duration_text
from wheelmq.dashboard.history import HOUR_MS, ChartPoint

WIDTH: Final = 360
HEIGHT: Final = 170
"""The size of a chart in units of its view box: about a pixel each on a phone."""
LEFT: Final = 46
RIGHT: Final = 8
TOP: Final = 10
BOTTOM: Final = 24
STEP_MS: Final = 30_000
"""The interval of a point."""
EDGE: Final = 16
"""Half the width of a label. A label that is closer to the right edge ends at its line."""
GAP_MS: Final = 3 * STEP_MS
"""Points further apart than this are not joined."""
QUARTER_MS: Final = 15 * 60_000
TABLE_STEP_MS: Final = 5 * 60_000
DECADES_MS: Final = (1, 10, 100, 1000, 10_000, 60_000)
"""The grid of the chart of lateness, whose scale is logarithmic."""


class GridLine(NamedTuple):
    """A line of the grid and its label."""

    at: float
    label: str
    anchor: str = "middle"
    """The side of the label that is at the line: start, middle or end."""


class Curve(NamedTuple):
    """One line of a chart. `kind` is the class of its style: a, b or bound."""

    name: str
    kind: str
    paths: list[str]
    """Values of the attribute `points` of a polyline, one for each part without a gap."""
    dots: list[tuple[float, float]]
    """Points without a neighbour."""
    summary: str


class Chart(NamedTuple):
    """A chart. `text` describes it to people who do not see it."""

    key: str
    title: str
    unit: str
    curves: list[Curve]
    rows: list[GridLine]
    columns: list[GridLine]
    text: str
    bound_at: float | None = None


Pick = Callable[[ChartPoint], float | None]


def charts(points: Sequence[ChartPoint], now_ms: int) -> list[Chart]:
    """Return the charts of throughput, pending messages and lateness."""
    top = _nice_top(max((max(one.puts_per_s, one.gets_per_s) for one in points), default=0.0))
    in_and_out: list[tuple[str, Pick]] = [("in", lambda one: one.puts_per_s), ("out", lambda one: one.gets_per_s)]
    pending_top = _nice_top(max((float(one.pending) for one in points), default=0.0))
    late: list[tuple[str, Pick]] = [
        ("median", lambda one: one.lateness_p50_ms),
        ("99 %", lambda one: one.lateness_p99_ms),
    ]
    return [
        _chart("throughput", "Throughput", "messages per second", in_and_out, points, now_ms, _linear(top), rate_text),
        _chart(
            "pending",
            "Pending messages",
            "of all topics",
            [("pending", lambda one: float(one.pending))],
            points,
            now_ms,
            _linear(pending_top),
            count_text,
        ),
        _chart(
            "lateness", "Lateness of releases", "logarithmic scale", late, points, now_ms, _logarithmic(), duration_text
        )._replace(bound_at=_logarithmic().place(LATE_MS)),
    ]


class Scale(NamedTuple):
    """The vertical scale of a chart: a function from a value to its place, and the values of the grid."""

    place: Callable[[float], float]
    grid: tuple[float, ...]


def _linear(top: float) -> Scale:
    bottom, height = HEIGHT - BOTTOM, HEIGHT - BOTTOM - TOP
    return Scale(lambda value: round(bottom - min(value / top, 1) * height, 1), (0.0, top / 2, top))


def _logarithmic() -> Scale:
    bottom, height = HEIGHT - BOTTOM, HEIGHT - BOTTOM - TOP
    decades = math.log10(DECADES_MS[-1])
    return Scale(
        lambda value: round(bottom - min(math.log10(max(value, 1)) / decades, 1) * height, 1),
        tuple(map(float, DECADES_MS)),
    )


def _nice_top(greatest: float) -> float:
    """Return the least value of the form 1, 2, 4 or 10 times a power of ten that is not below `greatest`, nor 2."""
    if greatest <= 2:
        return 2.0
    power = 10.0 ** math.floor(math.log10(greatest))
    return next(factor * power for factor in (1, 2, 4, 10) if factor * power >= greatest)


def _chart(
    key: str,
    title: str,
    unit: str,
    lines: Sequence[tuple[str, Pick]],
    points: Sequence[ChartPoint],
    now_ms: int,
    scale: Scale,
    text_of: Callable[[float], str],
) -> Chart:
    curves = []
    for (name, pick), kind in zip(lines, "ab", strict=False):
        values = [(one.at_ms, value) for one in points if (value := pick(one)) is not None]
        paths, dots = _paths(values, now_ms, scale)
        curves.append(Curve(name, kind, paths, dots, _summary(values, text_of)))
    text = f"{title} of the last hour. " + " ".join(f"{one.name}: {one.summary}." for one in curves)
    rows = [GridLine(scale.place(value), text_of(value)) for value in scale.grid]
    return Chart(key, title, unit, curves, rows, _columns(now_ms), text)


def _paths(
    values: Iterable[tuple[int, float]], now_ms: int, scale: Scale
) -> tuple[list[str], list[tuple[float, float]]]:
    parts: list[list[tuple[float, float]]] = []
    last_ms = None
    for at_ms, value in values:
        if last_ms is None or at_ms - last_ms > GAP_MS:
            parts.append([])
        parts[-1].append((_across(at_ms, now_ms), scale.place(value)))
        last_ms = at_ms
    paths = [" ".join(f"{x:g},{y:g}" for x, y in part) for part in parts if len(part) > 1]
    return paths, [part[0] for part in parts if len(part) == 1]


def _across(at_ms: int, now_ms: int) -> float:
    share = 1 - (now_ms - at_ms) / HOUR_MS
    return round(LEFT + min(max(share, 0), 1) * (WIDTH - LEFT - RIGHT), 1)


def _columns(now_ms: int) -> list[GridLine]:
    """Return the quarters of the last hour."""
    first_ms = -(-(now_ms - HOUR_MS) // QUARTER_MS) * QUARTER_MS
    found = []
    for at_ms in range(first_ms, now_ms + 1, QUARTER_MS):
        at = _across(at_ms, now_ms)
        found.append(GridLine(at, time_text(at_ms, "%H:%M"), "end" if at > WIDTH - RIGHT - EDGE else "middle"))
    return found


def _summary(values: Sequence[tuple[int, float]], text_of: Callable[[float], str]) -> str:
    if not values:
        return "no values"
    at_ms, greatest = max(values, key=lambda one: one[1])
    return f"now {text_of(values[-1][1])}, at most {text_of(greatest)} at {time_text(at_ms, '%H:%M')}"


def table(points: Sequence[ChartPoint]) -> list[list[str]]:
    """Return the last point of every five minutes as texts, the newest first: the figures of all charts."""
    chosen = {one.at_ms // TABLE_STEP_MS: one for one in points}
    return [
        [
            time_text(one.at_ms, "%H:%M:%S"),
            rate_text(one.puts_per_s),
            rate_text(one.gets_per_s),
            f"{one.pending:,}",
            "none" if one.lateness_p50_ms is None else duration_text(one.lateness_p50_ms),
            "none" if one.lateness_p99_ms is None else duration_text(one.lateness_p99_ms),
        ]
        for one in reversed(chosen.values())
    ]


def rate_text(value: float) -> str:
    """Return a rate with a digit after the point if it is small."""
    return f"{value:.1f}" if 0 < value < 10 and value != int(value) else count_text(value)


def count_text(value: float) -> str:
    """Return a number of at most four characters: 950, 9.5k, 95k, 9.5M."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.0f}"


def time_text(time_ms: float, how: str) -> str:
    """Return a moment in local time, in a format of strftime."""
    return datetime.datetime.fromtimestamp(time_ms / 1000, datetime.UTC).astimezone().strftime(how)
