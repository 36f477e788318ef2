"""The page: a banner with the state, charts of the last hour and tables, as HTML and as JSON. Pure.

The HTML is complete without scripts. Jinja2 escapes every text of the broker. No template has a style or a script of
its own, so the policy of the page can forbid both.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Final, NamedTuple

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined

from wheelmq.dashboard import charts as chart
from wheelmq.dashboard.alarms import RECENT_MS, Alarm, alarms, duration_text
from wheelmq.dashboard.charts import rate_text, time_text
from wheelmq.dashboard.history import HOUR_MS, ChartPoint, HourHistory
from wheelmq.dashboard.tables import Section, parts, sections

BOX: Final = {
    "width": chart.WIDTH,
    "height": chart.HEIGHT,
    "left": chart.LEFT,
    "right": chart.RIGHT,
    "top": chart.TOP,
    "bottom": chart.BOTTOM,
}
_QUANTITY: Final = re.compile(r"[\d.,]+( ?\S{1,4})?")
"""A number, with a unit or without."""
REFRESH_S: Final = (10, 30, 60)
"""Intervals of a refresh without a script that a link may ask for."""


class Tile(NamedTuple):
    """A main figure."""

    name: str
    value: str


class AccountForm(NamedTuple):
    """A button of a user who is logged in."""

    action: str
    label: str
    operation: str = ""


class Account(NamedTuple):
    """The user who is logged in."""

    name: str
    role: str
    form_token: str
    forms: tuple[AccountForm, ...]


def _is_quantity(text: str) -> bool:
    """Return whether a cell is a number with or without a unit, which stays on one line."""
    return _QUANTITY.fullmatch(text) is not None


@cache
def _templates() -> Environment:
    made = Environment(
        loader=PackageLoader("wheelmq.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.tests["quantity"] = _is_quantity
    return made


def render(template: str, **values: Any) -> bytes:
    """Return a template with its values."""
    return _templates().get_template(template).render(values).encode()


def asset(name: str) -> bytes:
    """Return a file of the folder of templates as it is."""
    templates = _templates()
    assert templates.loader is not None
    return templates.loader.get_source(templates, name)[0].encode()


def html(
    figures: dict[str, Any], history: HourHistory, now_ms: int, account: Account | None = None, refresh_s: int = 0
) -> bytes:
    """Return the page. `refresh_s` above 0 makes the browser load it again, without a script."""
    recent = history.recent(RECENT_MS)
    found = alarms(figures, recent)
    shown = parts(figures)
    points = history.points(now_ms, chart.STEP_MS)
    return render(
        "page.html",
        state=_state(found),
        note=_note(figures),
        alarms=found,
        broker=figures.get("broker", ""),
        account=account,
        refresh_s=refresh_s,
        links=[("state", "State"), ("hour", "Last hour"), *((part.key, part.title) for part in shown)],
        tiles=_tiles(figures, recent),
        charts=chart.charts(points, now_ms),
        box=BOX,
        history_note=_history_note(history, now_ms),
        history=_history_table(points),
        parts=shown,
        now=time_text(now_ms, "%Y-%m-%d %H:%M:%S %Z"),
    )


def json(figures: dict[str, Any], history: HourHistory, now_ms: int) -> bytes:
    """Return the figures for programs: `problem` has the reasons of all alarms; empty if there is none."""
    found = alarms(figures, history.recent(RECENT_MS))
    return msgspec.json.encode(
        {
            "problem": "; ".join(alarm.reason for alarm in found),
            "alarms": [alarm._asdict() for alarm in found],
            "sections": sections(figures),
            "last_hour": [point._asdict() for point in history.points(now_ms, chart.STEP_MS)],
            "figures": figures,
        }
    )


def _state(found: list[Alarm]) -> str:
    if not found:
        return "All is well"
    return "1 problem" if len(found) == 1 else f"{len(found)} problems"


def _note(figures: dict[str, Any]) -> str:
    if "problem" in figures:
        return ""
    sends = "Sends are accepted" if figures["takes_sends"] else "This broker is a slave: clients send to its master"
    pipeline = figures["pipeline"]
    if pipeline["is_turning"]:
        turns = "the pipeline makes turns"
    elif figures["expects_pipeline"]:
        turns = "the pipeline starts"
    else:
        turns = "the broker does the work of the pipeline, which was left out"
    return f"{sends}, {turns}, and no message is late."


def _tiles(figures: dict[str, Any], recent: ChartPoint | None) -> list[Tile]:
    if "problem" in figures:
        return []
    overview = figures["overview"]
    late = None if recent is None else recent.lateness_p99_ms
    return [
        Tile("pending messages", f"{figures['timers']['pending']:,}"),
        Tile("overdue messages", f"{overview['due_and_not_released']:,}"),
        Tile("messages in per second", "not yet known" if recent is None else rate_text(recent.puts_per_s)),
        Tile("messages out per second", "not yet known" if recent is None else rate_text(recent.gets_per_s)),
        Tile("lateness, 99\N{NO-BREAK SPACE}% of last minute", "no releases" if late is None else duration_text(late)),
        Tile("lag of all groups", f"{overview['lag_in_all']:,}"),
        Tile("dead letters", f"{overview['dead_letters_in_all'] + overview['timer_dead_letters']:,}"),
        Tile("disk in use", f"{overview['disk']['used_percent']:.0f} %"),
    ]


def _history_note(history: HourHistory, now_ms: int) -> str:
    first_ms = history.first_ms
    if first_ms is None:
        return "The dashboard has no samples yet. It takes one every 10 s."
    if now_ms - first_ms < HOUR_MS:
        return f"Samples since the start of the dashboard at {time_text(first_ms, '%H:%M:%S')}, one every 10 s."
    return "One sample every 10 s."


def _history_table(points: list[ChartPoint]) -> Section | None:
    if not points:
        return None
    columns = ["time", "in per second", "out per second", "pending", "lateness, median", "lateness, 99 %"]
    rows = chart.table(points)
    return Section("The last hour, every five minutes", [list(row) for row in rows], columns)
