"""`wheelmq restore`: bring back a store from a target, as it was at a time."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from wheelmq.cli.part import CannotStart, home_option
from wheelmq.cli.stores import STORE
from wheelmq.cli.tables import counted
from wheelmq.cli.targets import error_text, open_target, storage_option, target_argument
from wheelmq.cli.times import duration_text, parse_past_time, time_text

if TYPE_CHECKING:
    from wheelmq.backup.check import Checked
    from wheelmq.backup.index import Point
    from wheelmq.backup.plan import Plan, Window
    from wheelmq.backup.restore import Restored
    from wheelmq.backup.target import Target

PROGRESS_BYTES: Final = 1 << 30


@click.command(name="restore", short_help="Bring back a store from a target, as it was at a time.")
@target_argument
@home_option
@click.option(
    "--to",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the restored store, instead of HOME/store. It must be empty, or not exist.",
)
@click.option(
    "--at",
    "at_text",
    metavar="TIME",
    help="Restore the records that were stored by this time, in ISO 8601, or -10m for ten minutes ago. Without it, "
    "all of them.",
)
@click.option("--check", is_flag=True, help="Verify the target, with --at only the part for that time. Write nothing.")
@storage_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as a JSON line.")
def command(
    target: str,
    home: Path,
    to: Path | None,
    at_text: str | None,
    check: bool,
    pairs: tuple[str, ...],
    as_json: bool,
) -> None:
    """Bring back the store that `wheelmq ship` or `wheelmq backup` has copied to TARGET, and verify it.

    Start a broker on the result. It releases each message that was pending at TIME. A message that was released after
    TIME is released again, because at TIME it was pending.
    """
    from wheelmq.backup.catalog import NoTarget, read_catalog, read_identity
    from wheelmq.backup.plan import NotRestorable, make_plan, windows
    from wheelmq.store.ship_status import public_name
    from wheelmq.system.clock import SystemClock

    try:
        at_ms = None if at_text is None else parse_past_time(at_text, SystemClock().now_ms())
        opened = open_target(target, pairs)
        if read_identity(opened) is None:
            raise NoTarget(
                f"{public_name(target)} holds no shipped store: `wheelmq ship` and `wheelmq backup` make one"
            )
        points = [point for one in read_catalog(opened) for point in one.points]
        plan = make_plan(points, at_ms)
        if check:
            found = _check(opened, plan, points if at_ms is None else [])
        else:
            found = _restore(opened, plan, home / STORE if to is None else to)
        _print(found, plan, windows(points), as_json=as_json)
    except (CannotStart, NotRestorable, ValueError, OSError) as error:
        raise click.ClickException(error_text(error, target)) from None


def _check(target: Target, plan: Plan, points: list[Point]) -> dict[str, Any]:
    """Verify the chunks of a plan, and all others of `points`."""
    from wheelmq.backup.check import TargetCheck

    check = TargetCheck(target, plan)
    found = check.run()
    check.verify_all(points)
    return {"event": "checked", **_fields(found)}


def _restore(target: Target, plan: Plan, folder: Path) -> dict[str, Any]:
    from wheelmq.backup.restore import Restore
    from wheelmq.system.disk import Disk

    told = 0

    def progress(done: int, total: int) -> None:
        nonlocal told
        if done - told >= PROGRESS_BYTES:
            told = done
            click.echo(f"{done / total:.0%} of {total:,} bytes", err=True)

    root = folder.absolute()
    made = Restore(target, plan, Disk(), progress).run(root)
    return {"event": "restored", "store": str(root), **_fields(made), "sizes": _sizes(plan)}


def _fields(found: Checked | Restored) -> dict[str, Any]:
    fields = {**found._asdict(), **found.counts._asdict()}
    return {name: value for name, value in fields.items() if name not in ("counts", "sizes")}


def _sizes(plan: Plan) -> dict[str, int]:
    """Return the settings of file sizes that differ from their defaults."""
    from wheelmq.delay.settings import BlockSettings
    from wheelmq.store.settings import StoreSettings

    sizes, store, blocks = plan.history.sizes, StoreSettings(path=Path()), BlockSettings()
    found = {
        "log_file_bytes": (sizes.log, store.log_file_bytes),
        "queue_file_bytes": (sizes.queue, store.queue_file_bytes),
        "block_log_file_bytes": (sizes.block_log, blocks.log_file_bytes),
        "block_queue_file_bytes": (sizes.block_queue, blocks.queue_file_bytes),
    }
    return {name: size for name, (size, default) in found.items() if size and size != default}


def _print(found: dict[str, Any], plan: Plan, known: list[Window], *, as_json: bool) -> None:
    if as_json:
        spans = [list(window) for window in known]
        click.echo(json.dumps({**found, "at_ms": plan.at_ms, "windows": spans}))
    else:
        click.echo("\n".join(_lines(found, plan, known)))
    sys.stdout.flush()


def _lines(found: dict[str, Any], plan: Plan, known: list[Window]) -> list[str]:
    when = "as of its last point" if plan.at_ms is None else f"as it was at {time_text(plan.at_ms)}"
    last = f"; the last one was stored at {time_text(found['last_ms'])}" if found["last_ms"] else ""
    lines = [
        f"restored {found['store']}, {when}" if "store" in found else f"the target is intact, {when}",
        f"  commit log  {counted(found['records'], 'record')}, positions {found['log_start']:,} to "
        f"{found['log_end']:,}{last}",
        f"  blocks      {counted(found['block_records'], 'record')} in {counted(found['blocks'], 'block')}",
        f"  pending     {found['timers']:,} in the timer, {found['in_levels']:,} in levels, "
        f"{found['in_blocks']:,} in blocks",
        "  verified    every checksum and every record",
    ]
    for window in known:
        span = duration_text(window.last_ms - window.first_ms)
        lines.append(f"  restorable  {time_text(window.first_ms)} to {time_text(window.last_ms)} ({span})")
    if found.get("sizes"):
        pairs = " ".join(f"--set {name}={size}" for name, size in found["sizes"].items())
        lines.append(f"Start the broker with the file sizes of this store: {pairs}")
    return lines
