"""`wheelmq pipeline`: the delay pipeline on Spark alone, with its supervisor."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import click

from wheelmq.cli.brokers import find_brokers
from wheelmq.cli.part import CannotStart, end_with_stdin, home_option, run_part, say


@click.command(name="pipeline", short_help="Run the delay pipeline on Spark alone.")
@click.option("--broker", "brokers", multiple=True, metavar="HOST:PORT", help="A broker to serve; may be given again.")
@click.option("--namesrv", help="Serve every broker that is registered there: HOST:PORT;HOST:PORT.")
@click.option("--master", help="Any Spark master; local[2,4] if none is named.")
@click.option("--name", help="Who holds the lease; made up if none is named.")
@home_option
@click.option("--log-dir", type=click.Path(file_okay=False, path_type=Path), help="Folder of logs, if not HOME/logs.")
@click.option("--driver", is_flag=True, hidden=True, help="Be the driver that is watched.")
@click.option("--ends-with-stdin", is_flag=True, hidden=True, help="Stop when the standard input ends.")
def command(
    brokers: tuple[str, ...],
    namesrv: str | None,
    master: str | None,
    name: str | None,
    home: Path,
    log_dir: Path | None,
    driver: bool,
    ends_with_stdin: bool,
) -> None:
    """Run the pipeline that indexes and stages delayed messages, until SIGTERM or Ctrl-C.

    It is a Spark Structured Streaming application. When it dies it is started again; the broker goes on meanwhile,
    and what is due within its lead (30 s) is not late.
    """
    log_dir = log_dir or home / "logs"
    if driver:
        if ends_with_stdin:
            end_with_stdin()
        sys.exit(_drive(brokers, name, master, log_dir))

    async def life(stop: asyncio.Event) -> int:
        return await _supervise(stop, await _brokers(brokers, namesrv), name, master, log_dir)

    sys.exit(run_part(life, as_json=False, ends_with_stdin=ends_with_stdin, has_children=True))


def _drive(brokers: tuple[str, ...], name: str | None, master: str | None, log_dir: Path) -> int:
    from wheelmq.net.child import CANNOT_START
    from wheelmq.pipeline.java import JavaNotFound, find_java

    try:
        find_java()
    except JavaNotFound as problem:
        click.echo(str(problem), err=True)
        say(True, "failed", "", why=str(problem))
        return CANNOT_START
    from wheelmq.pipeline import app

    arguments = [*(word for broker in brokers for word in ("--broker", broker)), "--log-dir", str(log_dir)]
    arguments += ["--name", name] if name is not None else []
    arguments += ["--master", master] if master is not None else []
    return app.main(arguments)


async def _brokers(brokers: tuple[str, ...], namesrv: str | None) -> list[str]:
    """The brokers to serve. Raises CannotStart."""
    if brokers:
        return list(brokers)
    if namesrv is None:
        raise CannotStart("name a broker with --broker HOST:PORT, or a name server with --namesrv HOST:PORT")
    from wheelmq.net.errors import Refused

    try:
        found = await find_brokers(namesrv)
    except (ValueError, OSError, Refused) as error:
        raise CannotStart(str(error)) from None
    if not found:
        raise CannotStart(f"no broker is registered at {namesrv}: start one with `wheelmq broker --namesrv {namesrv}`")
    return sorted(found.values())


async def _supervise(
    stop: asyncio.Event, brokers: list[str], name: str | None, master: str | None, log_dir: Path
) -> int:
    from wheelmq.pipeline.supervisor import PipelineSupervisor
    from wheelmq.system.clock import SystemClock

    supervisor = PipelineSupervisor(
        brokers,
        log_dir,
        clock=SystemClock(),
        on_change=lambda text: click.echo(f"pipeline: {text}"),
        master=master,
        name=name,
    )
    click.echo(f"The pipeline starts for {', '.join(brokers)}; its logs are in {log_dir}.")
    supervisor.start()
    stopping = asyncio.create_task(stop.wait())
    failing = asyncio.create_task(supervisor.child.failed.wait())
    await asyncio.wait((stopping, failing), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    failing.cancel()
    if supervisor.child.failure is not None:
        click.echo(f"Error: the pipeline cannot run: {supervisor.child.failure}", err=True)
    stopped = await supervisor.stop()
    return 0 if stopped and supervisor.child.failure is None else 1
