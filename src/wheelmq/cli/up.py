"""`wheelmq up`: run all parts and restart them if they die."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from wheelmq.cli.advertise import Address, advertise_option
from wheelmq.cli.broker import flush_option
from wheelmq.cli.config_options import config_option, set_option
from wheelmq.cli.exposure import EVERY
from wheelmq.cli.hooks import hook_option, load_hooks
from wheelmq.cli.network import DEFAULT_ROUTE, network_address, network_pairs
from wheelmq.cli.part import CannotStart, home_option
from wheelmq.cli.service_manager import service_manager
from wheelmq.cli.spark_extra import INSTALL, check_spark, missing_packages

if TYPE_CHECKING:
    from wheelmq.cli.stack import Stack, StackSettings

_port = click.IntRange(0, 65535)


@click.command(name="up", short_help="Run name server, broker and pipeline, and keep them running.")
@home_option
@click.option("--namesrv-port", type=_port, default=9876, show_default=True, help="0 picks a free port.")
@click.option(
    "--namesrv-host",
    metavar="ADDRESS",
    help="The address that the name server listens on. 0.0.0.0 is every address of this machine. For the broker, use "
    "the setting listen_host.",
)
@click.option(
    "--network",
    is_flag=False,
    flag_value=DEFAULT_ROUTE,
    metavar="[=ADDRESS]",
    help="Open the name server and the broker to other machines. Clients there connect to ADDRESS, an IPv4 address of "
    "this machine; without it, to the address of the default route.",
)
@click.option("--broker-port", type=_port, default=10911, show_default=True, help="0 picks a free port.")
@advertise_option
@click.option("--dashboard-port", type=_port, default=0, show_default=True, help="0 picks a free port.")
@click.option("--no-dashboard", is_flag=True, help="Start no dashboard, which shows figures and serves metrics.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line when all parts are ready.")
@config_option
@flush_option
@click.option(
    "--no-pipeline",
    is_flag=True,
    help="Start no Spark. The broker arms and indexes all messages itself.",
)
@click.option("--master", help="Any Spark master for the pipeline. The default is local[2,4].")
@set_option
@hook_option
def command(
    home: Path,
    namesrv_port: int,
    namesrv_host: str | None,
    network: str | None,
    broker_port: int,
    advertise: Address | None,
    dashboard_port: int,
    no_dashboard: bool,
    as_json: bool,
    file: Path | None,
    flush: str | None,
    no_pipeline: bool,
    master: str | None,
    pairs: tuple[str, ...],
    hook_names: tuple[str, ...],
) -> None:
    """Run name server, broker and pipeline until SIGTERM or Ctrl-C, and a dashboard that shows their figures.

    Each part is a process of its own with its log in HOME/logs. Without Spark there is no pipeline, and the broker does
    its work. The command starts a part again if it dies. It stops
    first the pipeline, then the broker, then the name server. A file of settings is for the broker; the name server
    reads it too if it is TOML. The options of this command set the ports and the store.

    --network listens on all addresses of the machine. The command then lists each port that other machines can reach,
    and the name server for clients there. The dashboard stays on 127.0.0.1. Without users, the start fails, unless
    --set allow_unauthenticated=true allows it.
    """
    from wheelmq.cli.local_tls import settings_from
    from wheelmq.cli.stack import StackSettings
    from wheelmq.config.tls import TlsSettings

    try:
        load_hooks(hook_names)  # the broker's process loads them again; this call only finds their problems early
    except CannotStart as error:
        raise click.ClickException(str(error)) from None
    try:
        tls = settings_from(file, pairs).tls
    except CannotStart:
        tls = TlsSettings()  # the broker's process reports wrong settings
    if master is not None and not no_pipeline:
        check_spark("--master")
    if network is not None:
        pairs = (*network_pairs(network_address(network)), *pairs)  # the last value of a setting counts
        namesrv_host = namesrv_host or EVERY[0]
    settings = StackSettings(
        home=home,
        namesrv_port=namesrv_port,
        broker_port=broker_port,
        dashboard_port=None if no_dashboard else dashboard_port,
        flush=None if flush is None else flush.upper(),
        config=None if file is None else file.resolve(),
        with_pipeline=not no_pipeline and not missing_packages(),
        master=master,
        broker_settings=pairs,
        namesrv_host=namesrv_host,
        hooks=hook_names,
        tls=tls,
        advertise=None if advertise is None else advertise.text,
    )
    sys.exit(asyncio.run(_run(settings, as_json=as_json)))


async def _run(settings: StackSettings, *, as_json: bool) -> int:
    from wheelmq.cli.stack import Stack, StackFailed
    from wheelmq.system.clock import SystemClock

    manager = service_manager()

    def print_event(text: str) -> None:
        click.echo(text, err=True)
        manager.status(text)

    def on_signal(count: int) -> None:
        manager.stopping()
        if count == 1:
            running.cancel()
        else:
            stack.kill()

    try:
        stack = Stack(settings, clock=SystemClock(), tell=print_event)
    except OSError as error:
        click.echo(f"Error: {error}", err=True)
        return 1
    running = asyncio.create_task(_start_and_watch(stack, as_json=as_json))
    _on_signals(on_signal)
    code = 0
    try:
        await running
    except asyncio.CancelledError:
        click.echo("stopping: pipeline, broker, name server", err=True)
    except (StackFailed, OSError) as error:
        click.echo(f"Error: {error}", err=True)
        code = 1
    except BaseException:
        await stack.stop()  # the children would keep the event loop from its end
        raise
    if not await stack.stop() and code == 0:
        click.echo("Error: a part did not stop cleanly; the next start repairs its files", err=True)
        code = 1
    return code


async def _start_and_watch(stack: Stack, *, as_json: bool) -> None:
    await stack.start()
    found, rejection = ready(stack), stack.disk_rejection()
    if as_json:
        click.echo(json.dumps({"event": "ready", "ready": True, **found, "disk_problem": rejection}))
    else:
        click.echo(ready_text(stack, rejection))
    sys.stdout.flush()
    addresses = f"name server {stack.namesrv_address}, broker {stack.broker_address}"
    service_manager().ready(f"{_state(rejection)}: {addresses}")
    await stack.wait_for_failure()


def _on_signals(act: Callable[[int], object]) -> None:
    """Call `act` at each SIGTERM and Ctrl-C with the number of signals received."""
    count = 0

    def signalled() -> None:
        nonlocal count
        count += 1
        act(count)

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, signalled)


def ready(stack: Stack) -> dict[str, object]:
    return {
        "namesrv": stack.namesrv_address,
        "broker": stack.broker_address,
        "dashboard": stack.dashboard_url,
        "metrics": stack.metrics_url,
        "open_ports": [one._asdict() for one in stack.open_ports()],
        "network_namesrv": stack.network_namesrv,
        "home": str(stack.home),
        "store": str(stack.store),
        "logs": str(stack.logs),
        "pids": {
            "up": os.getpid(),
            "namesrv": stack.namesrv.pid,
            "broker": stack.broker.pid,
            "pipeline": stack.pipeline.child.pid if stack.pipeline is not None else None,
            "jvm": stack.pipeline.jvm_pid if stack.pipeline is not None else None,
        },
    }


def _state(rejection: str | None) -> str:
    return "WheelMQ is up" + (", but the broker rejects messages until its disk has room" if rejection else "")


def ready_text(stack: Stack, rejection: str | None) -> str:
    """Return the state and the addresses of the parts.

    `rejection` is the reason why the broker rejects messages, with the remedy; None if it accepts them.
    """
    exposed = [f"    {one.text}" for one in stack.open_ports()]
    if exposed:
        exposed.insert(0, "  other machines can connect to")
    if stack.network_namesrv is not None:
        exposed.append(f"  clients on other machines use --namesrv {stack.network_namesrv}")
    why = f"Spark is not installed: {INSTALL}" if missing_packages() else "--no-pipeline"
    pipeline = f"turns (lease of {stack.pipeline.name})" if stack.pipeline is not None else f"left out ({why})"
    return "\n".join(
        (
            f"{_state(rejection)}.",
            *([f"  disk         {rejection}"] if rejection else []),
            f"  name server  {stack.namesrv_address}",
            f"  broker       {stack.broker_address}",
            f"  pipeline     {pipeline}",
            f"  dashboard    {stack.dashboard_url or 'left out (--no-dashboard)'}",
            f"  metrics      {stack.metrics_url or 'left out, as the dashboard'}",
            f"  store        {stack.store}",
            f"  logs         {stack.logs}",
            *exposed,
            *([] if rejection else [f"Try: wheelmq send Hello world --delay 5s --namesrv {stack.namesrv_address}"]),
            "Stop with Ctrl-C.",
        )
    )
