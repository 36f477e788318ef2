"""`wheelmq nameserver`: run a name server alone."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import click

from wheelmq.cli.config_options import config_option, print_notes, set_option, settings_of
from wheelmq.cli.part import TLS_TEXTS, home_option, port_errors, run_part, say, supervised_options
from wheelmq.cli.service_manager import service_manager
from wheelmq.system.credentials import take_access_key


@click.command(name="nameserver", short_help="Run a name server alone.")
@home_option
@config_option
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Port to listen on. It overrides the settings, whose default is 9876. 0 picks a free port.",
)
@set_option
@supervised_options[0]
@supervised_options[1]
def command(
    home: Path, file: Path | None, port: int | None, pairs: tuple[str, ...], as_json: bool, ends_with_stdin: bool
) -> None:
    """Run a name server until SIGTERM or Ctrl-C.

    A name server gives clients the addresses of the brokers of each topic. It stores its key-value config in
    HOME/namesrv.
    """

    async def life(stop: asyncio.Event) -> int:
        from wheelmq.config.changes import Origin
        from wheelmq.nameserver.app import NameServerApp
        from wheelmq.nameserver.settings import NAME_SERVER

        settings, reading = settings_of(
            NAME_SERVER,
            file,
            pairs,
            fallbacks={
                "kv_config_path": home / "namesrv" / "kvConfig.json",
                "audit_file": str(home / "logs" / "audit-nameserver.log"),
            },
            options={"listen_port": (port, port_option)},
        )
        print_notes(reading.notes)
        app = NameServerApp(settings.nameserver, Origin(file, reading.given), access_key, settings.tls)
        host, has_users = settings.nameserver.listen_host, settings.nameserver.authentication_enabled
        with port_errors(settings.nameserver.listen_port, port_option):
            await app.start()
        address = f"{host}:{app.port}"
        tls = settings.tls.accepts
        text = f"The name server listens on {address}{TLS_TEXTS[tls]}."
        say(as_json, "listening", text, address=address, listen_host=host, tls=tls, has_users=has_users)
        service_manager().ready(text)
        await stop.wait()
        await app.stop()
        return 0

    port_option = "--namesrv-port" if ends_with_stdin else "--port"  # the name of the option in `wheelmq up`
    access_key = take_access_key(os.environ) if ends_with_stdin else None  # that of `wheelmq up`
    code = run_part(life, as_json=as_json, ends_with_stdin=ends_with_stdin)
    sys.exit(code)
