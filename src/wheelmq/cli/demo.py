"""`wheelmq demo`: start all parts, send a few delayed messages, and show how late each arrives."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from wheelmq.cli.spark_extra import check_spark

if TYPE_CHECKING:
    from wheelmq.cli.demo_run import Run
    from wheelmq.cli.demo_view import DemoView
    from wheelmq.cli.stack import Stack

LOG_FILE_BYTES: Final = 64 << 20
"""Keeps a demonstration from taking a gigabyte of the user's temporary folder."""


@click.command(name="demo", short_help="Start all parts, send delayed messages, show how late they arrive.")
@click.option(
    "--home",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep all files in this folder. Without it, they are deleted unless the demo fails.",
)
def command(home: Path | None) -> None:
    """Start all parts on free ports, send delayed messages, and show when each arrives.

    Exit code 0 means: each message arrived once and not early, a cancelled message did not arrive, and the pipeline
    on Spark made turns. The command takes about 40 s. The very first start also compiles kernels and takes up to 3
    minutes.
    """
    check_spark("the demo")
    # creating a start-up cache would take processor time from the demonstration
    os.environ.setdefault("WHEELMQ_JAVA_CACHE", "use")
    folder = home or Path(tempfile.mkdtemp(prefix="wheelmq-demo-"))
    code = 1
    try:
        code = asyncio.run(_demonstrate(folder))
    finally:
        if home is None:
            if code in (0, 130):
                shutil.rmtree(folder, ignore_errors=True)
            else:
                click.echo(f"The logs are kept in {folder / 'logs'}.", err=True)
    sys.exit(code)


async def _demonstrate(home: Path) -> int:
    from wheelmq.cli.demo_run import Run
    from wheelmq.cli.demo_view import make_view
    from wheelmq.cli.stack import Stack, StackFailed, StackSettings
    from wheelmq.system.clock import SystemClock

    clock = SystemClock()
    settings = StackSettings(home=home, broker_settings=(f"log_file_bytes={LOG_FILE_BYTES}",))
    notes: list[str] = []
    stack = Stack(settings, clock=clock, tell=notes.append)
    run = Run(stack, clock)
    view = make_view(run, stack, clock, notes)
    demonstrating = asyncio.create_task(_start_and_run(stack, run))
    _cancel_on_signals(demonstrating, stack)
    code = 1
    try:
        with view:
            while not demonstrating.done():
                await _refresh(stack, run, view, demonstrating)
            await demonstrating
            view.update(force=True)
        problems = run.problems()
        view.summarize(problems)
        code = 1 if problems else 0
    except asyncio.CancelledError:
        click.echo("Interrupted.", err=True)
        code = 130
    except (StackFailed, ConnectionError) as error:
        click.echo(f"Error: {error}", err=True)
    click.echo("Stopping pipeline, broker and name server.", err=True)
    stopped = await stack.stop()
    return code if stopped or code else 1


async def _start_and_run(stack: Stack, run: Run) -> None:
    await stack.start()
    await run.deliver()


async def _refresh(stack: Stack, run: Run, view: DemoView, demonstrating: asyncio.Task[None]) -> None:
    """Update the view unless a message is about to arrive, because an update would delay the measured receipt."""
    from wheelmq.cli.demo_view import LOOK_S

    await asyncio.wait((demonstrating,), timeout=LOOK_S)
    if run.is_quiet():
        run.note(await stack.metrics())
        view.update()


def _cancel_on_signals(task: asyncio.Task[None], stack: Stack) -> None:
    def signalled() -> None:
        if not task.cancel():
            stack.kill()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, signalled)
