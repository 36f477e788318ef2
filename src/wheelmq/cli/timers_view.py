"""The output of `wheelmq timers`: tables for people, JSON lines for programs."""

from __future__ import annotations

import heapq
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import click

from wheelmq.cli.times import remaining_text, time_text

if TYPE_CHECKING:
    from rich.table import Table

    from wheelmq.delay.pending_message import PendingMessage


def show(lines: Iterator[bytes], limit: int, *, as_json: bool) -> bool:
    """Show the first `limit` messages by due time, or as JSON all messages by queue. Returns False without any."""
    count = 0
    if as_json:
        for line in lines:
            count += 1
            click.echo(line.decode())
        return count > 0
    import msgspec

    from wheelmq.delay.pending_message import PendingMessage
    from wheelmq.system.clock import SystemClock

    def counted() -> Iterator[PendingMessage]:
        nonlocal count
        for line in lines:
            count += 1
            yield msgspec.json.decode(line, type=PendingMessage)

    first = heapq.nsmallest(limit, counted(), key=lambda pending: (pending.due_ms, pending.queue_offset))
    if first:
        _print_pending(first, count, SystemClock().now_ms())
    return count > 0


def show_first(first: list[PendingMessage], count: int) -> bool:
    """Show the messages that are due first, of `count` in all. Returns False if there are none."""
    from wheelmq.system.clock import SystemClock

    if first:
        _print_pending(first, count, SystemClock().now_ms())
    return bool(first)


def show_counts(counts: Counter[int], limit: int, *, as_json: bool) -> bool:
    """Show the number of messages due in each minute, the earliest first. Returns False if there are none."""
    if as_json:
        for minute_ms, count in sorted(counts.items()):
            click.echo(f'{{"minute_ms":{minute_ms},"count":{count}}}')
    elif counts:
        more = f", the first {limit}" if len(counts) > limit else ""
        minutes = "minute" if len(counts) == 1 else "minutes"
        rows = [(_when(minute_ms)[:16], str(count)) for minute_ms, count in sorted(counts.items())[:limit]]
        _print(f"{counts.total()} pending, in {len(counts)} {minutes}{more}", ("minute (local time)", "count"), rows)
    return bool(counts)


def show_fates(lines: Iterator[bytes], *, as_json: bool) -> bool:
    """Show the state of each message that has the key. Returns False if there are none."""
    import msgspec

    from wheelmq.delay.delivery_state import DeliveryState

    rows = []
    for line in lines:
        if as_json:
            click.echo(line.decode())
        one = msgspec.json.decode(line, type=DeliveryState)
        message = one.message
        state = message.state.value if one.end is None else one.end.value
        ended = "" if one.ended_ms is None else _when(one.ended_ms)
        position = message.log_position if one.end_position is None else one.end_position
        rows.append((_when(message.due_ms), state, ended, message.unique_key or "", message.keys or "", str(position)))
    if rows and not as_json:
        columns = ("due (local time)", "state", "since", "unique key", "keys", "at log position")
        _print(f"{len(rows)} found", columns, rows, may_go=("at log position", "keys", "since"))
    return bool(rows)


def _print_pending(first: list[PendingMessage], count: int, now_ms: int) -> None:
    title = f"{count} pending" + (f", the first {len(first)}" if count > len(first) else "")
    rows = []
    for one in first:
        left = remaining_text(one.due_ms - now_ms) if one.due_ms > now_ms else "due"
        rows.append((_when(one.due_ms), left, one.topic, one.keys or "", one.unique_key or "", one.state.value))
    columns = ("due (local time)", "in", "topic", "keys", "unique key", "state")
    _print(title, columns, rows, may_go=("keys", "in", "topic"))


def _when(time_ms: int) -> str:
    return time_text(time_ms)[:23].replace("T", " ")


_WITHOUT_END: Final = 100_000
"""Width in characters if the output is no terminal. Nothing is folded or cut."""
_LEAST_WIDTH: Final = {"topic": 5, "keys": 4, "unique key": 16}
"""The least width of the columns that may be folded."""


def _print(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, may_go: tuple[str, ...] = ()) -> None:
    """Print a table. On a narrow terminal, leave out the columns of `may_go`, the first ones first, before folding."""
    from rich.console import Console

    console = Console() if sys.stdout.isatty() else Console(width=_WITHOUT_END)
    unbound = console.options.update(max_width=_WITHOUT_END)
    gone: list[str] = []
    table = _table(title, columns, rows, gone)
    while len(gone) < len(may_go) and console.measure(table, options=unbound).maximum > console.width:
        gone.append(may_go[len(gone)])
        table = _table(title, columns, rows, gone)
    console.print(table)
    if gone:
        click.echo(f"Columns that do not fit the terminal: {', '.join(gone)}. --json shows all.", err=True)


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], gone: Sequence[str]) -> Table:
    from rich.box import SIMPLE
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=SIMPLE)
    for name in columns:
        if name in gone:
            continue
        width = _LEAST_WIDTH.get(name)
        if width is not None:
            table.add_column(name, overflow="fold", min_width=width)
        else:
            table.add_column(name, justify="right" if name in ("in", "count") else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(cell for name, cell in zip(columns, row, strict=True) if name not in gone))
    return table
