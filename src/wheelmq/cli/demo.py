"""`wheelmq demo`: start all parts, release thousands of messages at one millisecond, and kill Spark meanwhile."""

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
    from wheelmq.cli.demo_causes import Explained, Machine
    from wheelmq.cli.demo_run import DemoRun
    from wheelmq.cli.demo_view import DemoScreen
    from wheelmq.cli.stack import Stack
    from wheelmq.formats.units import Millis
    from wheelmq.system.clock import Clock

LOG_FILE_BYTES: Final = 64 << 20
"""Keeps a demonstration from taking a gigabyte of the user's temporary folder."""
SETTINGS: Final = (f"log_file_bytes={LOG_FILE_BYTES}",)
NEEDED_BYTES: Final = 512 << 20
"""Free space that a demonstration needs for its store and its logs."""
SETTLED_MS: Final = 300
"""A late message is explained this long after its arrival, when the machine has been measured."""
LINES_MAX: Final = 5
"""Number of explanations during the run; after them, only that of a new worst lateness. The report has all causes."""
INTERRUPTED: Final = 130


@click.command(name="demo", short_help="Deliver thousands of messages at one millisecond, and kill Spark meanwhile.")
@click.option(
    "--home",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep all files in this new or empty folder. Without it, they are deleted unless the demo fails.",
)
def command(home: Path | None) -> None:
    """Start all parts on free ports, and show that messages are on time while Spark's JVM is killed.

    5,000 messages are due at one millisecond. A stream of other messages runs before, during and after the kill. Some
    messages are cancelled. The command explains each lateness over 20 ms by measurements of the machine.

    Exit code 0 means: each message arrived once and not early, no cancelled message arrived, and the pipeline came
    back. The command takes less than a minute. The very first start also compiles kernels and takes up to 3 minutes.
    """
    check_spark("the demo")
    folder = _folder(home)
    # creating a start-up cache would take processor time from the demonstration
    os.environ.setdefault("WHEELMQ_JAVA_CACHE", "use")
    # nor must a compilation: the broker listens once its kernels are compiled
    os.environ.setdefault("WHEELMQ_KERNELS", "compiled")
    code = 1
    try:
        code = asyncio.run(_demonstrate(folder))
    finally:
        if home is None:
            if code in (0, INTERRUPTED):
                shutil.rmtree(folder, ignore_errors=True)
            else:
                click.echo(f"The logs are kept in {folder / 'logs'}.", err=True)
    sys.exit(code)


def _folder(home: Path | None) -> Path:
    """Return the folder of the run, which is empty. Raises ClickException if it is not, or if the disk is too full."""
    from wheelmq.cli.stores import existing, home_problem

    if home is not None and home.is_dir() and any(home.iterdir()):
        raise click.ClickException(f"{home} has files, and the demo changes no existing store: name an empty folder")
    parent = existing(home if home is not None else Path(tempfile.gettempdir()))
    free = shutil.disk_usage(parent).free
    if free < NEEDED_BYTES:
        raise click.ClickException(
            f"the demo needs {NEEDED_BYTES >> 20} MB, and {parent} has {free >> 20} MB free: name a folder on another "
            "disk with --home"
        )
    problem = _disk_problem(parent)
    if problem is not None:
        raise click.ClickException(f"{problem}: free space there, or name a folder on another disk with --home")
    problem = home_problem(home if home is not None else parent)
    if problem is not None:
        raise click.ClickException(f"{problem}: name another folder with --home")
    return home if home is not None else Path(tempfile.mkdtemp(prefix="wheelmq-demo-"))


def _disk_problem(parent: Path) -> str | None:
    """Return why a broker on the disk of `parent` rejects messages; None if it accepts them."""
    from wheelmq.cli.disk_use import disk_problem
    from wheelmq.cli.local_tls import settings_from
    from wheelmq.cli.part import CannotStart

    try:
        return disk_problem(settings_from(None, SETTINGS, parent))
    except CannotStart as error:
        raise click.ClickException(str(error)) from None


async def _demonstrate(home: Path) -> int:
    from wheelmq.cli.demo_causes import Machine, machine_reader
    from wheelmq.cli.demo_run import DemoRun
    from wheelmq.cli.demo_view import make_screen
    from wheelmq.cli.stack import Stack, StackFailed, StackSettings
    from wheelmq.net.errors import CallError, Refused
    from wheelmq.system.clock import SystemClock

    clock = SystemClock()
    began_s = clock.monotonic()
    screen = make_screen(sys.stdout, lambda: clock.monotonic() - began_s)
    screen.say("Starting name server, broker, the pipeline on Spark and a dashboard, on free ports.")
    settings = StackSettings(home=home, broker_settings=SETTINGS)
    try:
        stack = Stack(settings, clock=clock, tell=screen.note)
    except OSError as error:
        click.echo(f"Error: {error}", err=True)
        return 1
    run = DemoRun(stack, clock, screen.say)
    machine = Machine(machine_reader(lambda: stack.broker.pid, clock.now_ms))
    running = asyncio.create_task(_run(stack, run, machine, screen, clock))
    _cancel_on_signals(running, stack)
    code = 1
    try:
        code = await running
    except asyncio.CancelledError:
        click.echo("Interrupted.", err=True)
        code = INTERRUPTED
    except (StackFailed, CallError, Refused, OSError) as error:
        click.echo(f"Error: {error}", err=True)
    finally:
        screen.close()
        click.echo("Stopping pipeline, broker and name server.", err=True)
        stopped = await stack.stop()
    if not stopped and code == 0:
        click.echo("Error: a part did not stop cleanly", err=True)
        code = 1
    return code


async def _run(stack: Stack, run: DemoRun, machine: Machine, screen: DemoScreen, clock: Clock) -> int:
    """Start the parts, perform the acts and print the report. Returns the exit code."""
    from wheelmq.cli.demo_report import report
    from wheelmq.cli.demo_view import LOOK_S

    await stack.start()
    screen.say(f"All parts are up. The dashboard is at {stack.dashboard_url} while the demo runs.")
    watching = asyncio.create_task(machine.watch())
    performing = asyncio.create_task(run.perform())
    explained: list[Explained] = []
    try:
        while not performing.done():
            await asyncio.wait((performing,), timeout=LOOK_S)
            _refresh(run, machine, screen, clock.now_ms(), explained)
        await performing
    finally:
        watching.cancel()
        performing.cancel()
        await asyncio.gather(watching, performing, return_exceptions=True)
    problems = run.problems()
    screen.print_lines(report(run, _by_cause(explained), problems))
    return 1 if problems else 0


def _refresh(run: DemoRun, machine: Machine, screen: DemoScreen, now_ms: Millis, explained: list[Explained]) -> None:
    """Draw the live line, and explain the late messages that arrived meanwhile."""
    from wheelmq.cli.demo_causes import explain, line_of
    from wheelmq.cli.demo_view import live_line

    late = run.messages.take_late(now_ms - SETTLED_MS)
    for one in explain(late, machine, burst=run.burst_kept, is_restarting=run.is_restarting):
        if len(explained) < LINES_MAX or one.worst_ms > max(earlier.worst_ms for earlier in explained):
            screen.say(line_of(one))
        explained.append(one)
    screen.show(live_line(run.messages, run.pipeline_text(), columns=screen.columns))


def _by_cause(explained: list[Explained]) -> list[Explained]:
    """Return one explanation for each cause: that of its worst lateness, with the number of all its messages."""
    from dataclasses import replace

    found: dict[str, list[Explained]] = {}
    for one in explained:
        found.setdefault(one.cause, []).append(one)
    merged = [
        replace(max(those, key=lambda one: one.worst_ms), messages=sum(one.messages for one in those))
        for those in found.values()
    ]
    return sorted(merged, key=lambda one: -one.worst_ms)


def _cancel_on_signals(task: asyncio.Task[int], stack: Stack) -> None:
    def signalled() -> None:
        if not task.cancel():
            stack.kill()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, signalled)
