"""`wheelmq pipeline`: run the delay pipeline on Spark alone, with its supervisor."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from wheelmq.cli import stores
from wheelmq.cli.credentials import key_of_file, own_access_key
from wheelmq.cli.part import CannotStart, end_with_stdin, home_option, run_part, say
from wheelmq.cli.service_manager import service_manager
from wheelmq.cli.spark_extra import check_spark
from wheelmq.cli.tls_options import tls_options

if TYPE_CHECKING:
    from wheelmq.formats.wire.signature import AccessKey
    from wheelmq.pipeline.session_options import SessionOptions
    from wheelmq.system.tls_client import TlsOptions


@click.command(name="pipeline", short_help="Run the delay pipeline on Spark alone.")
@click.option(
    "--broker", "brokers", multiple=True, metavar="HOST:PORT", help="A broker to serve. May be given several times."
)
@click.option("--namesrv", help="Serve every broker that is registered at these name servers: HOST:PORT;HOST:PORT.")
@click.option("--master", help="Any Spark master. The default is local with enough tasks for the brokers.")
@click.option("--name", help="The name that holds the leases. By default it is generated.")
@click.option("--over-the-wire", is_flag=True, help="Let tasks read from the brokers, even if they can read the store.")
@click.option(
    "--groups",
    type=click.IntRange(min=1),
    metavar="N",
    help="More than N brokers share N queries of Spark. The default is 8.",
)
@click.option("--conf", multiple=True, metavar="NAME=VALUE", help="A setting of Spark. May be given several times.")
@click.option("--driver-memory", metavar="SIZE", help="Heap of the driver's JVM. The default is 512m.")
@click.option("--ui", is_flag=True, help="Serve Spark's UI on port 4040, or on the next free one.")
@home_option
@click.option(
    "--log-dir", type=click.Path(file_okay=False, path_type=Path), help="Folder of logs. The default is HOME/logs."
)
@click.option(
    "--credentials",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File with the access key for the lease, such as STORE/config/pipelineKey.json of the broker.",
)
@tls_options
@click.option("--tls-options", "tls_json", hidden=True, help="The options for TLS as JSON, from the supervisor.")
@click.option("--driver", is_flag=True, hidden=True, help="Run as the driver that the supervisor watches.")
@click.option("--ends-with-stdin", is_flag=True, hidden=True, help="Stop when the standard input ends.")
def command(
    brokers: tuple[str, ...],
    namesrv: str | None,
    master: str | None,
    name: str | None,
    over_the_wire: bool,
    groups: int | None,
    conf: tuple[str, ...],
    driver_memory: str | None,
    ui: bool,
    home: Path,
    log_dir: Path | None,
    credentials: Path | None,
    driver: bool,
    ends_with_stdin: bool,
    tls: TlsOptions | None,
    tls_json: str | None,
) -> None:
    """Run the pipeline that indexes and stages delayed messages, until SIGTERM or Ctrl-C.

    It is a Spark Structured Streaming application with one query per broker. More than eight brokers
    share eight queries. If it dies, the command starts it again. Meanwhile the brokers arm and index
    messages themselves, so none is late.
    """
    check_spark("the pipeline")
    chosen = tls_json if tls is None else tls.to_json()
    session_options = _session_options(conf, driver_memory, ui)
    what = _Work(
        brokers,
        _servers(namesrv),
        master,
        name,
        over_the_wire,
        groups,
        session_options,
        log_dir or home / "logs",
        chosen,
    )
    if driver:
        if ends_with_stdin:
            end_with_stdin()
        sys.exit(_drive(what))

    access_key = _access_key(credentials, home)

    async def life(stop: asyncio.Event) -> int:
        if not what.brokers and not what.namesrv:
            raise CannotStart("name a broker with --broker HOST:PORT, or a name server with --namesrv HOST:PORT")
        for broker in what.brokers:
            _check_broker(broker)
        return await _supervise(stop, what, access_key)

    sys.exit(run_part(life, as_json=False, ends_with_stdin=ends_with_stdin, has_children=True))


@dataclass(frozen=True)
class _Work:
    brokers: tuple[str, ...]
    namesrv: tuple[str, ...]
    master: str | None
    name: str | None
    over_the_wire: bool
    groups: int | None
    session_options: SessionOptions
    log_dir: Path
    tls: str | None
    """The options for TLS as JSON."""


def _session_options(conf: tuple[str, ...], driver_memory: str | None, ui: bool) -> SessionOptions:
    from wheelmq.pipeline.session_options import HEAP, SessionOptions

    try:
        return SessionOptions(conf, driver_memory or HEAP, ui)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _servers(namesrv: str | None) -> tuple[str, ...]:
    if namesrv is None:
        return ()
    from wheelmq.client.session import server_list

    try:
        return server_list(namesrv)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _check_broker(address: str) -> None:
    from wheelmq.client.session import check_address

    try:
        check_address(address, "a broker", 10911)
    except ValueError as error:
        raise CannotStart(str(error)) from None


def _drive(what: _Work) -> int:
    from wheelmq.net.managed_process import CANNOT_START
    from wheelmq.pipeline.java import JavaNotFound, find_java

    try:
        find_java()
    except JavaNotFound as problem:
        click.echo(str(problem), err=True)
        say(True, "failed", "", why=str(problem))
        return CANNOT_START
    from wheelmq.pipeline import app

    arguments = [word for broker in what.brokers for word in ("--broker", broker)]
    arguments += [word for server in what.namesrv for word in ("--namesrv", server)]
    arguments += ["--name", what.name] if what.name is not None else []
    arguments += ["--master", what.master] if what.master is not None else []
    arguments += ["--over-the-wire"] if what.over_the_wire else []
    arguments += ["--groups", str(what.groups)] if what.groups is not None else []
    arguments += what.session_options.words()
    arguments += ["--tls", what.tls] if what.tls is not None else []
    return app.main([*arguments, "--log-dir", str(what.log_dir)])


def _access_key(credentials: Path | None, home: Path) -> AccessKey | None:
    """Return the access key for the lease: that of the option, of the environment, or of a broker with this home."""
    from wheelmq.auth.inner_users import PIPELINE_KEY_NAME

    if credentials is not None:
        return key_of_file(credentials)
    found = own_access_key()
    local = home / stores.STORE / "config" / PIPELINE_KEY_NAME
    return key_of_file(local) if found is None and local.exists() else found


async def _supervise(stop: asyncio.Event, what: _Work, access_key: AccessKey | None) -> int:
    from wheelmq.pipeline.supervisor import PipelineSupervisor
    from wheelmq.system.clock import SystemClock
    from wheelmq.system.tls_client import TlsOptions

    def on_change(text: str) -> None:
        click.echo(f"pipeline: {text}")
        service_manager().status(text)

    supervisor = PipelineSupervisor(
        what.brokers,
        what.log_dir,
        clock=SystemClock(),
        on_change=on_change,
        namesrv=what.namesrv,
        master=what.master,
        name=what.name,
        over_the_wire=what.over_the_wire,
        groups=what.groups,
        session_options=what.session_options,
        tls=None if what.tls is None else TlsOptions.from_json(what.tls),
        access_key=access_key,
    )
    whom = [*what.brokers, *(f"the brokers at name server {server}" for server in what.namesrv)]
    text = f"The pipeline starts for {', '.join(whom)}; its logs are in {what.log_dir}."
    click.echo(text)
    supervisor.start()
    service_manager().ready(text)  # a pipeline waits for its brokers, and no other service waits for a turn
    stopping = asyncio.create_task(stop.wait())
    failing = asyncio.create_task(supervisor.child.failed.wait())
    await asyncio.wait((stopping, failing), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    failing.cancel()
    if supervisor.child.failure is not None:
        click.echo(f"Error: the pipeline cannot run: {supervisor.child.failure}", err=True)
    stopped = await supervisor.stop()
    return 0 if stopped and supervisor.child.failure is None else 1
