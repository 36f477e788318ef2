"""`wheelmq ship`: copy a store continuously to a target."""

from __future__ import annotations

import dataclasses
import logging
import signal
import sys
from functools import partial
from pathlib import Path

import click

from wheelmq.cli.part import CannotStart, end_with_stdin, home_option, supervised_options
from wheelmq.cli.targets import (
    end_failed,
    find_store,
    open_target,
    print_event,
    storage_option,
    store_option,
    target_argument,
)
from wheelmq.cli.times import Duration
from wheelmq.net.managed_process import CANNOT_START


@click.command(name="ship", short_help="Copy a store continuously to a folder or an object store.")
@target_argument
@home_option
@store_option
@click.option(
    "--interval",
    type=Duration(),
    default="250ms",
    show_default=True,
    help="Time between two copies of what is new. A machine that is lost takes this time with it, and one upload.",
)
@click.option(
    "--keep",
    type=Duration(),
    help="Time for which each moment can be restored, such as 14d. Without it, everything is kept.",
)
@click.option("--once", is_flag=True, help="Stop as soon as the target has everything.")
@click.option("--merged-count", type=click.IntRange(min=2), hidden=True, help="For tests: captures per merge.")
@storage_option
@supervised_options[0]
@supervised_options[1]
def command(
    target: str,
    home: Path,
    store: Path | None,
    interval: int,
    keep: int | None,
    once: bool,
    merged_count: int | None,
    pairs: tuple[str, ...],
    as_json: bool,
    ends_with_stdin: bool,
) -> None:
    """Copy the log, the blocks and the tables of a store to TARGET, until SIGTERM or Ctrl-C.

    TARGET is a folder, or a URL such as s3://BUCKET/FOLDER. The broker may run or not. Run the command again at any
    time: it continues where the target ends. `wheelmq restore` brings a store back.
    """
    from wheelmq.backup.objects import TargetDamaged
    from wheelmq.backup.settings import ShipSettings
    from wheelmq.backup.shipper import TargetForeign
    from wheelmq.backup.target import TargetTaken
    from wheelmq.cli.ship_run import ShipRun
    from wheelmq.system.clock import SystemClock

    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("botocore").setLevel(logging.WARNING)
    if ends_with_stdin:
        end_with_stdin()
    try:
        if not 50 <= interval <= 60_000:
            raise CannotStart("--interval is between 50ms and 60s")
        settings = ShipSettings(keep_ms=keep)
        if merged_count is not None:
            settings = dataclasses.replace(settings, merged_count=merged_count, expiry_interval_ms=1000)
        found = find_store(home, store)
        opened = open_target(target, pairs)
        run = ShipRun(
            found, target, opened, settings, interval / 1000, SystemClock(), partial(print_event, as_json), once=once
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: run.stop())
        run.open()
        run.run()
    except (CannotStart, TargetDamaged, TargetForeign, TargetTaken) as error:
        end_failed(as_json, error, target, CANNOT_START)
    except OSError as error:  # the target may be reachable later
        end_failed(as_json, error, target, 1)
