"""`wheelmq nameserver`: a name server alone."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import click

from wheelmq.cli.part import home_option, run_part, say, supervised_options


@click.command(name="nameserver", short_help="Run a name server alone.")
@home_option
@click.option("--port", type=click.IntRange(0, 65535), default=9876, show_default=True, help="0 picks a free one.")
@supervised_options[0]
@supervised_options[1]
def command(home: Path, port: int, as_json: bool, ends_with_stdin: bool) -> None:
    """Run a name server until SIGTERM or Ctrl-C.

    It tells clients which broker serves which topic. Its key-value config is kept in HOME/namesrv.
    """

    async def life(stop: asyncio.Event) -> int:
        from wheelmq.nameserver.app import NameServerApp

        app = NameServerApp(home / "namesrv", port=port)
        await app.start()
        address = f"127.0.0.1:{app.port}"
        say(as_json, "listening", f"The name server listens on {address}.", address=address)
        await stop.wait()
        await app.stop()
        return 0

    port_option = "--namesrv-port" if ends_with_stdin else "--port"  # `wheelmq up` calls it so
    code = run_part(life, port=port, port_option=port_option, as_json=as_json, ends_with_stdin=ends_with_stdin)
    sys.exit(code)
