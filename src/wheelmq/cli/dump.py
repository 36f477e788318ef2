"""`wheelmq dump`: print a file of a store."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import click


@click.command(name="dump", short_help="Print a file of a store.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--limit", type=click.IntRange(min=1), help="Print at most this number of rows.")
@click.option("--after", type=int, default=-1, help="Print only the rows after this position.")
@click.option("--json", "as_json", is_flag=True, help="Print each row as a JSON object.")
def command(file: Path, limit: int | None, after: int, as_json: bool) -> None:
    """Print FILE, a file of a store, row by row with positions.

    The command changes nothing, and a broker may run.

    \b
    FILE is one of:
      a file below commitlog, consumequeue, index, timerlog or scheduledtempdata
      timerwheel, checkpoint
      timercheck, timermark, timerdone, timermetrics or snapshot in config
    """
    import msgspec

    from wheelmq.formats.disk.dump import UnknownFile

    count = 0
    try:
        rows = (row for row in _rows(file) if row["at"] > after)
        for row in islice(rows, limit):
            count += 1
            click.echo(msgspec.json.encode(row) if as_json else _text(row))
    except BrokenPipeError:
        raise  # the reader closed the pipe; click ends without a message
    except (UnknownFile, OSError) as error:
        raise click.ClickException(str(error)) from None
    except (struct.error, ValueError) as error:
        raise click.ClickException(f"{file} is cut short: {error}") from None
    if not count:
        click.echo(f"{file}: {'it is empty' if after < 0 else f'no row follows position {after}'}", err=True)


def _rows(file: Path) -> Iterator[dict[str, Any]]:
    from wheelmq.formats.disk.dump import dump
    from wheelmq.system.disk import ReadOnlyDisk

    size = file.stat().st_size
    if size == 0:
        return iter(())
    return dump(file.absolute(), ReadOnlyDisk().map(file, size).view)


def _text(row: dict[str, Any]) -> str:
    """Return a row as one line: its position, then its fields."""
    fields = " ".join(f"{name}={value!r}" for name, value in row.items() if name != "at")
    return f"{row['at']:>12}  {fields}"
