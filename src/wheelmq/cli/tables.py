"""Lists of commands: a table for people, and one JSON array of objects for programs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import click

from wheelmq.cli.times import time_text

if TYPE_CHECKING:
    from rich.table import Table

_WITHOUT_END: Final = 100_000
"""Width in characters if the output is no terminal. Nothing is folded or cut."""
_LEAST_WIDTH: Final = {"topic": 5, "group": 5, "keys": 4, "unique key": 16, "value": 16}
"""The least width of the columns that may be folded."""
_NUMBERS: Final = frozenset(
    ("in", "count", "queues", "messages", "lag", "members", "dead letters", "queue", "committed", "end", "retries")
)
"""The columns that are aligned to the right."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print a JSON array, one object per row.")


def print_array(rows: Iterable[bytes]) -> int:
    """Print encoded JSON objects as one array, an object per line. Returns their number.

    An error in the middle leaves the array open, so no reader takes a part for the whole.
    """
    count = 0
    for row in rows:
        click.echo((",\n" if count else "[\n") + row.decode(), nl=False)
        count += 1
    click.echo("\n]" if count else "[]")
    return count


def print_structs(rows: Iterable[object]) -> int:
    """Print rows as one JSON array. Returns their number."""
    import msgspec

    return print_array(map(msgspec.json.encode, rows))


def counted(number: int, noun: str) -> str:
    """Return a number with a noun that gets an s in the plural."""
    return f"{number} {noun}" if number == 1 else f"{number:,} {noun}s"


def when_text(time_ms: int | None) -> str:
    """Return a time in the local zone for a cell; an empty text for None and for 0."""
    return time_text(time_ms)[:23].replace("T", " ") if time_ms else ""


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, may_go: tuple[str, ...] = ()
) -> None:
    """Print a table. On a narrow terminal, leave out the columns of `may_go`, the first ones first, before folding."""
    from rich.console import Console

    console = Console() if sys.stdout.isatty() else Console(width=_WITHOUT_END)
    unbound = console.options.update(max_width=_WITHOUT_END)
    gone: list[str] = []
    table = _table(columns, rows, gone)
    while len(gone) < len(may_go) and console.measure(table, options=unbound).maximum > console.width:
        gone.append(may_go[len(gone)])
        table = _table(columns, rows, gone)
    click.echo(title)
    console.print(table)
    if gone:
        click.echo(f"Columns that do not fit the terminal: {', '.join(gone)}. --json shows all.", err=True)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], gone: Sequence[str]) -> Table:
    from rich.box import SIMPLE
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=SIMPLE)
    for name in columns:
        if name in gone:
            continue
        width = _LEAST_WIDTH.get(name)
        if width is not None:
            table.add_column(name, overflow="fold", min_width=width)
        else:
            table.add_column(name, justify="right" if name in _NUMBERS else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(escape(cell) for name, cell in zip(columns, row, strict=True) if name not in gone))
    return table
