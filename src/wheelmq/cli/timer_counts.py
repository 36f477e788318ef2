"""`wheelmq timer-counts`: count pending messages by the minute in which they are due."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

from wheelmq.cli import timers
from wheelmq.cli import timers_view as view
from wheelmq.cli.brokers import check_topic_is_known
from wheelmq.cli.errors import plain_errors
from wheelmq.cli.tables import json_option
from wheelmq.cli.tls_options import tls_options

if TYPE_CHECKING:
    from wheelmq.system.tls_client import TlsOptions


@click.command(name="timer-counts", short_help="Count pending messages per minute.")
@timers.query_options
@json_option
@tls_options
def command(
    namesrv: str,
    broker: str | None,
    store: Path | None,
    topic: str | None,
    from_ms: int | None,
    to_ms: int | None,
    limit: int,
    as_json: bool,
    tls: TlsOptions | None,
) -> None:
    """Count the pending messages that are due in each minute, of a running broker or of a store folder."""
    asked = timers.list_query(broker, store, topic, from_ms, to_ms)
    with plain_errors(namesrv):
        if store is not None:
            counts = timers.counts_in(store, asked)
        else:
            addresses = timers.find_addresses(namesrv, broker, tls)
            counts = timers.count(addresses, asked, timers.MINUTE_MS, tls)
        if view.show_counts(counts, limit, as_json=as_json):
            return
        if topic is not None and store is None and broker is None:
            asyncio.run(check_topic_is_known(namesrv, topic, tls))
    if not as_json:
        click.echo("Nothing is pending.")
