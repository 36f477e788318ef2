"""`wheelmq promote`: make a slave the master of its broker name."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from wheelmq.cli.errors import namesrv_option, plain_errors
from wheelmq.cli.part import say
from wheelmq.cli.tls_options import tls_options

if TYPE_CHECKING:
    from wheelmq.system.tls_client import TlsOptions


@click.command(name="promote", short_help="Make a slave the master.")
@click.argument("broker")
@namesrv_option
@click.option("--force", is_flag=True, help="Promote even if messages of the present master are lost.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as a JSON line.")
@tls_options
def command(broker: str, namesrv: str, force: bool, as_json: bool, tls: TlsOptions | None) -> None:
    """Make the slave at BROKER (HOST:PORT) the master of its broker name.

    If the present master is reachable, it first stops taking messages, and the slave gets the last ones. So a planned
    switch loses nothing. If the master is gone, add --force: the slave takes over with the messages that it has.
    """
    from wheelmq.cli.switch import SwitchRejected, switch
    from wheelmq.system.tls_client import client_tls

    with plain_errors(namesrv):
        try:
            done = switch(broker, namesrv, force=force, tls=client_tls(tls))
        except SwitchRejected as error:
            say(as_json, "refused", f"Error: {error}", why=str(error))
            sys.exit(1)
    say(as_json, "promoted", done.text, **done.fields)
