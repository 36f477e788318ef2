"""`wheelmq backup`: one consistent, verified copy of a store."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from wheelmq.cli.part import CannotStart, home_option
from wheelmq.cli.tables import counted
from wheelmq.cli.targets import end_failed, find_store, open_target, print_event, storage_option, store_option


@click.command(name="backup", short_help="Copy a store once, and verify the copy.")
@click.argument("dest")
@home_option
@store_option
@storage_option
@click.option("--json", "as_json", is_flag=True, help="Print events as JSON lines.")
def command(dest: str, home: Path, store: Path | None, pairs: tuple[str, ...], as_json: bool) -> None:
    """Copy the store to DEST once, and verify the copy. The broker may run.

    DEST is a folder, or a URL such as s3://BUCKET/FOLDER. A later backup to the same DEST adds what is new, and each
    backup can be restored: `wheelmq restore DEST`, with --at for an earlier one.
    """
    from wheelmq.backup.catalog import read_catalog
    from wheelmq.backup.check import TargetCheck
    from wheelmq.backup.plan import make_plan
    from wheelmq.backup.settings import ShipSettings
    from wheelmq.cli.ship_run import ShipRun
    from wheelmq.system.clock import SystemClock

    report = partial(print_event, as_json)
    try:
        target = open_target(dest, pairs)
        run = ShipRun(find_store(home, store), dest, target, ShipSettings(), 0.5, SystemClock(), report, once=True)
        run.open()
        run.run()
        plan = make_plan([point for one in read_catalog(target) for point in one.points], None)
        found = TargetCheck(target, plan).run()
    except (CannotStart, OSError) as error:
        end_failed(as_json, error, dest, 1)
    counts = found.counts
    report(
        "verified",
        f"verified: {counted(counts.records, 'record')} up to position {found.log_end:,}, {counts.block_records:,} in "
        f"{counted(counts.blocks, 'block')}; pending are {counts.timers:,} in the timer, "
        f"{counts.in_levels:,} in levels, {counts.in_blocks:,} in blocks",
        log_start=found.log_start,
        log_end=found.log_end,
        last_ms=found.last_ms,
        **counts._asdict(),
    )
