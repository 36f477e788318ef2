"""`wheelmq broker`: run a broker alone."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from wheelmq.cli.advertise import Address, advertise_option, with_own_address
from wheelmq.cli.config_options import config_option, print_notes, set_option, settings_of
from wheelmq.cli.hooks import hook_option, load_hooks
from wheelmq.cli.part import (
    TLS_TEXTS,
    CannotStart,
    home_option,
    log,
    port_errors,
    run_part,
    say,
    supervised_options,
)
from wheelmq.cli.service_manager import service_manager
from wheelmq.system.credentials import take_access_key
from wheelmq.system.memory import without_collections

if TYPE_CHECKING:
    from wheelmq.broker.app import BrokerApp

flush_option = click.option(
    "--flush",
    type=click.Choice(["ASYNC_FLUSH", "SYNC_FLUSH"], case_sensitive=False),
    help="Answer a send before it is on disk (ASYNC_FLUSH, the default) or after it (SYNC_FLUSH).",
)


@click.command(name="broker", short_help="Run a broker alone.")
@home_option
@click.option(
    "--store", type=click.Path(file_okay=False, path_type=Path), help="Store folder. The default is HOME/store."
)
@config_option
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Port to listen on. It overrides the settings, whose default is 10911. 0 picks a free port.",
)
@advertise_option
@click.option("--namesrv", help="Name servers to register at: HOST:PORT;HOST:PORT.")
@click.option("--name", help="The broker's name. It overrides the settings, whose default is broker-a.")
@flush_option
@set_option
@hook_option
@supervised_options[0]
@supervised_options[1]
def command(
    home: Path,
    store: Path | None,
    file: Path | None,
    port: int | None,
    advertise: Address | None,
    namesrv: str | None,
    name: str | None,
    flush: str | None,
    pairs: tuple[str, ...],
    hook_names: tuple[str, ...],
    as_json: bool,
    ends_with_stdin: bool,
) -> None:
    """Run a broker until SIGTERM or Ctrl-C.

    `wheelmq pipeline` indexes delayed messages and arms them ahead of time. Without a pipeline, the broker does both
    itself, and no message is late.
    """

    async def life(stop: asyncio.Event) -> int:
        with without_collections():
            from wheelmq.broker.app import BrokerApp
            from wheelmq.broker.lives import live
            from wheelmq.broker.schema import BROKER
            from wheelmq.config.changes import Origin

            gc.freeze()  # otherwise the first collection checks all objects of these modules

        hooks = load_hooks(hook_names)
        settings, reading = settings_of(
            BROKER,
            file,
            pairs,
            fallbacks={"store_path": home / "store", "audit_file": str(home / "logs" / "audit-broker.log")},
            options={
                "store_path": (store, "--store"),
                "listen_port": (port, port_option),
                "namesrv": (_with_ports(namesrv), "--namesrv"),
                "broker_name": (name, "--name"),
                "flush_mode": (None if flush is None else flush.upper(), "--flush"),
                **({} if advertise is None else advertise.settings()),
            },
        )
        settings = with_own_address(settings, reading.given)
        print_notes(reading.notes)
        if ends_with_stdin and settings.broker.id:
            raise CannotStart(
                f"broker_id={settings.broker.id}: a broker with an id other than 0 rejects sends, and `wheelmq up` "
                "waits until its broker accepts them. Set broker_id=0, or run `wheelmq broker`"
            )
        made: list[BrokerApp] = []

        def make_app() -> BrokerApp:
            app = BrokerApp(made[0].settings if made else settings, Origin(file, reading.given), hooks, access_key)
            made.append(app)
            return app

        with port_errors(settings.broker.listen_port, port_option):
            failure = await live(make_app, stop, lambda app: _say_listening(app, as_json))
        if failure is not None:
            _say_failed(failure, as_json)
        return 0 if failure is None else 1

    port_option = "--broker-port" if ends_with_stdin else "--port"  # the name of the option in `wheelmq up`
    access_key = take_access_key(os.environ) if ends_with_stdin else None  # that of `wheelmq up`
    code = run_part(life, as_json=as_json, ends_with_stdin=ends_with_stdin)
    sys.exit(code)


def _with_ports(namesrv: str | None) -> str | None:
    """Return the list of name servers, each with a port. The settings reject a wrong list."""
    from wheelmq.client.session import server_list

    try:
        return None if namesrv is None else ";".join(server_list(namesrv))
    except ValueError:
        return namesrv


def _say_listening(app: BrokerApp, as_json: bool) -> None:
    from wheelmq.broker.start_warnings import start_warnings

    assert app.broker is not None
    node = app.settings.broker
    address = f"{node.ip}:{node.listen_port}"
    tls = app.settings.tls.accepts
    clients = "" if node.address == address else f", and clients connect to {node.address}"
    where = f"{address}{TLS_TEXTS[tls]}{clients}; its store is {app.settings.store.path}"
    text = f"Broker {node.name} listens on {where}."
    for warning in start_warnings(app.settings, app.broker.parts.store):
        log.warning("%s", warning)
        if as_json:
            say(as_json, "warning", warning, warning=warning)
    has_users = app.settings.auth.authentication_enabled
    say(
        as_json,
        "listening",
        text,
        address=address,
        registered=node.address,
        listen_host=node.listen_host,
        tls=tls,
        has_users=has_users,
    )
    service_manager().ready(text)


def _say_failed(failure: BaseException, as_json: bool) -> None:
    from wheelmq.broker.admission.error_text import TimersLost, rejection_text
    from wheelmq.system.disk import StoreRemoved

    why = f"the disk failed: {failure}"
    if isinstance(failure, StoreRemoved | TimersLost):
        why = rejection_text(failure)
    say(as_json, "failed", f"Error: {failure}", why=why)
