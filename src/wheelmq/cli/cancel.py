"""`wheelmq cancel`: cancel a delayed message."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

from wheelmq.cli.credentials import own_settings
from wheelmq.cli.errors import namesrv_option, plain_errors
from wheelmq.cli.times import parse_time
from wheelmq.cli.tls_options import tls_options

if TYPE_CHECKING:
    from wheelmq.system.tls_client import TlsOptions


@click.command(name="cancel", short_help="Cancel a delayed message.")
@click.argument("topic")
@click.option(
    "--key", "unique_key", required=True, help="Its unique key, as `wheelmq send` and `wheelmq timers` print it."
)
@click.option(
    "--at", "at", help="Its due time, to the second. Apache's brokers need it to find the message; WheelMQ's do not."
)
@namesrv_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as a JSON line.")
@tls_options
def command(topic: str, unique_key: str, at: str | None, namesrv: str, as_json: bool, tls: TlsOptions | None) -> None:
    """Cancel a pending message for TOPIC. The command asks every broker of the topic.

    Exit code 1 means that nothing was cancelled: the message was delivered or cancelled before, or no pending message
    has this key.
    """
    from wheelmq.client.results import CancelResult
    from wheelmq.client.sync import SyncProducer
    from wheelmq.system.clock import SystemClock

    clock = SystemClock()
    try:
        due_ms = 0 if at is None else parse_time(at, clock.now_ms())
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--at") from None
    with plain_errors(namesrv), SyncProducer(namesrv, own_settings(), tls=tls, clock=clock) as producer:
        result = producer.cancel(topic, unique_key, due_ms)
    if as_json:
        click.echo(json.dumps({"topic": topic, "unique_key": unique_key, "result": result}))
    else:
        click.echo(
            {
                CancelResult.CANCELLED: "Cancelled: it will not be delivered.",
                CancelResult.ALREADY_SETTLED: "Nothing was cancelled: the message was delivered or cancelled before.",
                CancelResult.ACCEPTED: "The broker accepted the cancel, and does not report its result.",
                CancelResult.NOT_FOUND: f"Nothing was cancelled: no pending message for {topic} has the unique key "
                f"{unique_key}. `wheelmq timers --topic {topic}` lists unique keys.",
            }[result]
        )
    sys.exit(0 if result in (CancelResult.CANCELLED, CancelResult.ACCEPTED) else 1)
