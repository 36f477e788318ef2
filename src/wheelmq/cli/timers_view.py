"""How `wheelmq timers` shows what it found: tables for people, lines of JSON for programs."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from wheelmq.cli.times import duration_text, time_text

if TYPE_CHECKING:
    from rich.table import Table

    from wheelmq.delay.pending import Pending


def show(lines: Iterator[bytes], limit: int, *, as_json: bool) -> None:
    """The messages that are due first, or all of them as JSON, in the order of their queue."""
    if as_json:
        for line in lines:
            click.echo(line.decode())
        return
    import msgspec

    from wheelmq.delay.pending import Pending
    from wheelmq.system.clock import SystemClock

    count = 0

    def counted() -> Iterator[Pending]:
        nonlocal count
        for line in lines:
            count += 1
            yield msgspec.json.decode(line, type=Pending)

    first = heapq.nsmallest(limit, counted(), key=lambda pending: (pending.due_ms, pending.queue_offset))
    if not first:
        click.echo("Nothing is pending.")
        return
    _print_table(first, count, SystemClock().now_ms())


def show_counts(counts: Counter[int], limit: int, *, as_json: bool) -> None:
    """How many are due in each minute, the earliest first."""
    if as_json:
        for minute_ms, count in sorted(counts.items()):
            click.echo(f'{{"minute_ms":{minute_ms},"count":{count}}}')
        return
    if not counts:
        click.echo("Nothing is pending.")
        return
    more = f", the first {limit}" if len(counts) > limit else ""
    table = _table(f"{counts.total()} pending, in {len(counts)} minutes{more}", "minute", "count")
    for minute_ms, count in sorted(counts.items())[:limit]:
        table.add_row(_when(minute_ms)[:16], str(count))
    _print(table)


def show_fates(lines: Iterator[bytes], *, as_json: bool) -> None:
    """What became of each message with a key."""
    import msgspec

    from wheelmq.delay.fate import Fate

    if as_json:
        for line in lines:
            click.echo(line.decode())
        return
    found = [msgspec.json.decode(line, type=Fate) for line in lines]
    if not found:
        click.echo("No timer with this key was found.")
        return
    table = _table(f"{len(found)} found", "due", "state", "since", "unique key", "keys", "at log position")
    for one in found:
        message = one.message
        state = message.state.value if one.end is None else one.end.value
        ended = "" if one.ended_ms is None else _when(one.ended_ms)
        position = message.log_position if one.end_position is None else one.end_position
        table.add_row(_when(message.due_ms), state, ended, message.unique_key or "", message.keys or "", str(position))
    _print(table)


def _print_table(first: list[Pending], count: int, now_ms: int) -> None:
    title = f"{count} pending" + (f", the first {len(first)}" if count > len(first) else "")
    table = _table(title, "due", "in", "topic", "keys", "unique key", "state")
    for one in first:
        left = duration_text(one.due_ms - now_ms) if one.due_ms > now_ms else "due"
        table.add_row(_when(one.due_ms), left, one.topic, one.keys or "", one.unique_key or "", one.state.value)
    _print(table)


def _when(time_ms: int) -> str:
    return time_text(time_ms)[:23].replace("T", " ")


_LEAST_WIDTH = {"topic": 5, "keys": 4, "unique key": 16}
"""Columns that may be folded, and how narrow."""


def _table(title: str, *columns: str) -> Table:
    from rich.box import SIMPLE
    from rich.table import Table

    table = Table(title=title, box=SIMPLE)
    for name in columns:
        width = _LEAST_WIDTH.get(name)
        if width is not None:
            table.add_column(name, overflow="fold", min_width=width)
        else:
            table.add_column(name, justify="right" if name in ("in", "count") else "left", no_wrap=True)
    return table


def _print(table: Table) -> None:
    from rich.console import Console

    Console().print(table)
