"""The page: tables from figures, as HTML and as JSON. Pure.

The first page is readable without scripts. Both insert only text, and the policy permits only this one script.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
from html import escape
from typing import Any, Final

import msgspec

TITLE: Final = "WheelMQ"
STYLE: Final = """
body { font: 15px/1.4 system-ui, sans-serif; margin: 1.5rem; color: #222; background: #fff; }
main { display: grid; grid-template-columns: repeat(auto-fit, minmax(22rem, 1fr)); gap: 1.5rem; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.05rem; margin: 0 0 .3rem; }
p { margin: .2rem 0; color: #666; } #state { color: #b00; }
table { border-collapse: collapse; } th, td { text-align: left; padding: .1rem .8rem .1rem 0; }
td { font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
"""
SCRIPT: Final = """
const state = document.getElementById("state");
function made(name, text) {
  const element = document.createElement(name);
  if (text !== undefined) element.textContent = text;
  return element;
}
function cell(value) {
  const element = made("td");
  if (typeof value === "string") { element.textContent = value; return element; }
  const meter = made("meter");
  meter.max = value.of; meter.value = value.count;
  element.append(meter);
  return element;
}
function row(cells) {
  const element = made("tr");
  element.append(...cells);
  return element;
}
function section(found) {
  const element = made("section"), table = made("table");
  element.append(made("h2", found.title));
  if (found.note) element.append(made("p", found.note));
  if (found.columns.length) table.append(row(found.columns.map((name) => made("th", name))));
  table.append(...found.rows.map((cells) => row(cells.map(cell))));
  element.append(table);
  return element;
}
async function look() {
  if (!document.hidden) {
    try {
      const answer = await fetch("figures.json");
      if (!answer.ok) throw new Error("answered " + answer.status);
      const found = await answer.json();
      state.textContent = found.problem;
      if (found.sections.length) document.querySelector("main").replaceChildren(...found.sections.map(section));
    } catch (error) {
      state.textContent = "These figures are old: the dashboard does not answer (" + error.message + ")";
    }
  }
  setTimeout(look, 2000);
}
setTimeout(look, 2000);
"""


class Bar(msgspec.Struct, frozen=True):
    count: float
    of: float


class Section(msgspec.Struct, frozen=True):
    title: str
    rows: list[list[str | Bar]]
    columns: list[str] = []
    note: str = ""


def _hash(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


POLICY: Final = (
    f"default-src 'none'; script-src {_hash(SCRIPT)}; style-src {_hash(STYLE)}; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


FORMS_POLICY: Final = POLICY.replace("form-action 'none'", "form-action 'self'")
"""The policy of pages with forms."""


def html(figures: dict[str, Any], account: str = "") -> bytes:
    """Return the page. `account` is HTML about the user who is logged in."""
    shown = "\n".join(map(_section_html, sections(figures)))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{TITLE}</title>'
        f"<style>{STYLE}</style></head>\n<body><h1>{TITLE}</h1>"
        f'{account}<p id="state">{escape(problem(figures))}</p>\n<main>{shown}</main>\n'
        f"<script>{SCRIPT}</script></body></html>\n"
    ).encode()


def json(figures: dict[str, Any]) -> bytes:
    found = {"problem": problem(figures), "sections": sections(figures), "figures": figures}
    return msgspec.json.encode(found)


def problem(figures: dict[str, Any]) -> str:
    """Return the page's red line: the broker does not answer, or no pipeline turns. Empty if there is no problem."""
    if "problem" in figures:
        return str(figures["problem"])
    found = str(figures["pipeline"]["problem"])
    return found[:1].upper() + found[1:]


def _section_html(section: Section) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in section.columns)
    rows = ["".join(f"<td>{_cell_html(cell)}</td>" for cell in row) for row in section.rows]
    table = "".join(f"<tr>{cells}</tr>" for cells in ([head] if head else []) + rows)
    note = f"<p>{escape(section.note)}</p>" if section.note else ""
    return f"<section><h2>{escape(section.title)}</h2>{note}<table>{table}</table></section>"


def _cell_html(cell: str | Bar) -> str:
    return escape(cell) if isinstance(cell, str) else f'<meter max="{cell.of:g}" value="{cell.count:g}"></meter>'


# The tables --------------------------------------------------------------------------------------------------------


def sections(figures: dict[str, Any]) -> list[Section]:
    """Return the tables of the figures from `DashboardFigures.get`; none while the broker does not answer."""
    if "problem" in figures:
        return []
    return [
        _broker(figures),
        _waiting(figures),
        _pipeline(figures),
        _turns(figures),
        _lateness(figures),
        _topics(figures),
        _minutes(figures),
    ]


def _broker(figures: dict[str, Any]) -> Section:
    log = figures["log"]
    sends = "accepted" if figures["takes_sends"] else f"rejected: {figures['refusal']}"
    rows: list[list[str | Bar]] = [
        ["sends", sends],
        ["since", _time(figures["boot_ms"], "%Y-%m-%d %H:%M:%S")],
        ["log", f"{(log['end'] - log['start']) / (1 << 20):,.1f} MiB"],
        ["not on disk", f"{(log['end'] - log['synced']) / 1024:,.1f} KiB"],
    ]
    return Section(f"Broker {figures['broker']}", rows)


def _waiting(figures: dict[str, Any]) -> Section:
    waiting, settled = figures["overview"]["waiting"], figures["timers"]["released"]
    rows: list[list[str | Bar]] = [[f"in {place}s", f"{count:,}"] for place, count in waiting.items()]
    rows.append(["armed, of these", f"{figures['timers']['armed']:,}"])
    rows.append(["due and not released", f"{figures['overview']['due_and_not_released']:,}"])
    rows.append(["lateness of the first of them", f"{figures['overview']['overdue_ms'] / 1000:.1f} s"])
    rows += [[how.replace("_", " "), f"{count:,}"] for how, count in sorted(settled.items())]
    return Section("Delayed messages", rows, note="pending messages; below them the settled messages since the start")


def _pipeline(figures: dict[str, Any]) -> Section:
    found = figures["pipeline"]
    state = "turns" if found["is_turning"] else "has the lease, no turn yet"
    ahead_s, by_broker_s = (
        max(0, found[name] - figures["now_ms"]) / 1000 for name in ("walked_through_ms", "covered_through_ms")
    )
    rows: list[list[str | Bar]] = [
        ["state", state if found["is_held"] else "no pipeline has the lease"],
        ["holder", found["holder"] or "none"],
        ["lag, messages not indexed", f"{found['unindexed']:,}"],
        ["age of the oldest of them", f"{figures['overview']['oldest_unindexed_ms'] / 1000:.1f} s"],
        ["armed ahead", f"{ahead_s:.0f} s"],
        ["the broker in its place", f"{by_broker_s:.0f} s ahead" if found["fallback"]["is_active"] else "no"],
    ]
    return Section("Pipeline", rows)


def _turns(figures: dict[str, Any]) -> Section:
    last, turns = figures["pipeline"]["last_turn"], figures["overview"]["turns"]
    rows: list[list[str | Bar]] = []
    if last is not None:
        rows.append(
            ["last", *(f"{last[name]:,}" for name in ("indexed", "walked", "armed")), f"{last['seconds']:.2f} s"]
        )
    in_all = turns["rows"]
    rows.append(["since the start", *(f"{in_all.get(name, 0):,}" for name in ("indexed", "walked", "armed")), ""])
    seconds = turns["seconds"]
    note = (
        f"{seconds['count']:,} since the start, median {seconds['p50']:.2f} s, 99 of 100 within {seconds['p99']:.2f} "
        f"s, {seconds['max']:.2f} s at most; {figures['pipeline']['turn']:,} turns of the store in total"
    )
    return Section("Turns", rows, ["", "indexed", "walked", "armed", "took"], note)


def _lateness(figures: dict[str, Any]) -> Section:
    found = figures["overview"]["lateness_ms"]
    count, before = found["count"], 0
    rows: list[list[str | Bar]] = []
    for bound, up_to in [*found["up_to"], [None, count]]:
        if up_to > before:
            name = "more" if bound is None else f"up to {bound:,} ms"
            rows.append([name, f"{up_to - before:,}", Bar(up_to - before, count)])
        before = up_to
    note = f"{count:,} since the start: p50 {found['p50']:.0f}, p99 {found['p99']:.0f}, at most {found['max']:.0f} ms"
    return Section("Lateness of releases", rows, note=note)


def _topics(figures: dict[str, Any]) -> Section:
    topics, in_all = figures["overview"]["topics"], figures["overview"]["topics_in_all"]
    rows: list[list[str | Bar]] = [
        [one["topic"], f"{one['puts_per_s']:,.1f}", f"{one['gets_per_s']:,.1f}", f"{one['messages']:,}"]
        for one in topics
    ]
    more = f"; the busiest {len(topics)} of {in_all:,}" if in_all > len(topics) else ""
    note = f"a second, over the last minute as sampled every 10 s{more}"
    return Section("Topics", rows, ["topic", "put", "got", "messages so far"], note)


def _minutes(figures: dict[str, Any]) -> Section:
    counts = [(minute_ms, max(0, count)) for minute_ms, count in figures["by_minute"]]
    most = max((count for _, count in counts), default=0)
    rows: list[list[str | Bar]] = [
        [_time(minute_ms, "%H:%M"), f"{count:,}", Bar(count, most)] for minute_ms, count in counts if count
    ]
    note = f"{sum(count for _, count in counts):,} in the next hour; minutes without messages are left out"
    if figures["counted"] == "wheel":
        note += (
            ". There are too many pending messages to count all: the counts are those of the timer wheel, without "
            "levels and blocks"
        )
    return Section("Due in the next hour, by minute", rows, note=note)


def _time(time_ms: int, how: str) -> str:
    return datetime.datetime.fromtimestamp(time_ms / 1000, datetime.UTC).astimezone().strftime(how)
