"""Run one part as a process: signals, logging, output and exit code."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Final

import click

from wheelmq.cli import stores
from wheelmq.cli.ports import taken_text
from wheelmq.cli.service_manager import service_manager
from wheelmq.config.errors import ConfigError
from wheelmq.formats.wire.bodies import BodyError
from wheelmq.net.managed_process import CANNOT_START
from wheelmq.system.child_process import when_stdin_ends

Life = Callable[[asyncio.Event], Awaitable[int]]
"""A part's main coroutine. It returns the exit code after the event is set."""

log = logging.getLogger("wheelmq")

TLS_TEXTS: Final = {"disabled": "", "permissive": ", with TLS and without", "enforcing": ", with TLS only"}
"""The connections that a server accepts, by its mode, after its address."""

home_option = click.option(
    "--home",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(".wheelmq"),
    show_default=True,
    help="Folder for the store, the logs and other files.",
)
supervised_options = (
    click.option("--json", "as_json", is_flag=True, help="Print events as JSON lines."),
    click.option("--ends-with-stdin", is_flag=True, hidden=True, help="Stop when the standard input ends."),
)


class CannotStart(Exception):
    """A start that would also fail the next time. The text names the remedy."""


def say(as_json: bool, event: str, text: str, **fields: object) -> None:
    """Print an event: a JSON line for a supervisor, or a sentence for a person."""
    click.echo(json.dumps({"event": event, **fields}) if as_json else text)


def run_part(
    life: Life,
    *,
    as_json: bool,
    ends_with_stdin: bool,
    has_children: bool = False,
) -> int:
    """Run a part until SIGTERM or Ctrl-C, and return its exit code. With children, it runs without uvloop."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    if ends_with_stdin:
        end_with_stdin()
    service_manager()
    try:
        return (asyncio.Runner() if has_children else _fast_runner()).run(_until_signal(life))
    except (CannotStart, ConfigError, OSError, BodyError) as error:
        why = _why(error)
        service_manager().status(f"cannot start: {why}")
        if as_json:  # one for the log of the part, one for its supervisor
            log.error("%s", why)
            say(as_json, "failed", why, why=why)
        else:
            click.echo(f"Error: {why}", err=True)
        return CANNOT_START


def end_with_stdin() -> None:
    """Stop cleanly when the standard input ends, because the parent process has ended."""
    when_stdin_ends(lambda: os.kill(os.getpid(), signal.SIGTERM))


def _fast_runner() -> asyncio.Runner:
    try:
        import uvloop
    except ImportError:  # uvloop does not support this platform
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


async def _until_signal(life: Life) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        service_manager().stopping()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    return await life(stop)


@contextlib.contextmanager
def port_errors(port: int, option: str) -> Iterator[None]:
    """Raise CannotStart if `port` is taken, with the process that has it and the option for another port."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise CannotStart(taken_text(port, option)) from None
        raise


def _why(error: Exception) -> str:
    if not isinstance(error, OSError):
        return str(error)
    from wheelmq.system.disk import StoreLocked  # imports NumPy, which every part has imported by now

    if isinstance(error, StoreLocked):
        return stores.in_use_text(Path(error.filename))
    return f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")
