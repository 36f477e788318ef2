"""`wheelmq cancel`: cancel delayed messages."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING, Final

import click

from wheelmq.cli.brokers import find_brokers
from wheelmq.cli.clients import open_producer
from wheelmq.cli.errors import namesrv_option, plain_errors
from wheelmq.cli.times import Time
from wheelmq.cli.tls_options import tls_options

if TYPE_CHECKING:
    from wheelmq.client.results import CancelResult
    from wheelmq.system.tls_client import TlsOptions

NAMED_MAX: Final = 5
"""Number of unique keys that an error names."""


@click.command(name="cancel", short_help="Cancel delayed messages.")
@click.argument("topic")
@click.option("--key", required=True, help="A unique key or a business key, as `wheelmq timers` prints them.")
@click.option("--all", "every", is_flag=True, help="Cancel all pending messages with the business key.")
@click.option(
    "--at",
    "due_ms",
    type=Time(),
    default=0,
    help="Its due time, to the second. Apache's brokers need it to find the message; WheelMQ's do not.",
)
@namesrv_option
@click.option("--json", "as_json", is_flag=True, help="Print a JSON line for each message.")
@tls_options
def command(
    topic: str, key: str, every: bool, due_ms: int, namesrv: str, as_json: bool, tls: TlsOptions | None
) -> None:
    """Cancel a pending message for TOPIC. The command asks every broker of the topic.

    The command first tries KEY as a unique key, then as a business key. A business key may belong to several pending
    messages. Then nothing is cancelled without --all. Apache's brokers know unique keys only.

    Exit code 1 means that a message was not cancelled: it was delivered or cancelled before, or no pending message has
    this key.
    """
    from wheelmq.client.results import CancelResult

    with plain_errors(namesrv):
        results = asyncio.run(_cancel(topic, [key], due_ms, namesrv, tls))
        if results[key] is CancelResult.NOT_FOUND:  # it is no unique key, or its message is gone
            unique_keys = _unique_keys(topic, key, namesrv, tls)
            if len(unique_keys) > 1 and not every:
                raise click.ClickException(_several_text(topic, key, unique_keys))
            if unique_keys:
                results = asyncio.run(_cancel(topic, unique_keys, due_ms, namesrv, tls))
    for unique_key, result in results.items():
        if as_json:
            click.echo(json.dumps({"topic": topic, "unique_key": unique_key, "result": result}))
        else:
            name = f"{unique_key}: " if len(results) > 1 else ""
            click.echo(name + _result_text(topic, key, result))
    done = (CancelResult.CANCELLED, CancelResult.ACCEPTED)
    sys.exit(0 if all(result in done for result in results.values()) else 1)


def _unique_keys(topic: str, key: str, namesrv: str, tls: TlsOptions | None) -> list[str]:
    """Return the unique keys of the pending messages with the business key `key`. Raises CallError, Refused."""
    import msgspec

    from wheelmq.cli.timers import CannotList, find
    from wheelmq.delay.delivery_state import DeliveryState
    from wheelmq.formats.wire.codes import ResponseCode
    from wheelmq.net.errors import Refused

    found: dict[str, None] = {}
    for address in sorted(asyncio.run(find_brokers(namesrv, tls)).values()):
        try:
            for line in find(address, topic, key, tls):
                one = msgspec.json.decode(line, type=DeliveryState)
                if one.end is None and one.message.unique_key is not None:
                    found[one.message.unique_key] = None
        except CannotList:
            continue  # Apache's broker, which finds a message by its unique key alone
        except Refused as error:
            if error.code != ResponseCode.SYSTEM_ERROR:  # this one means that the message index is off
                raise
    return list(found)


async def _cancel(
    topic: str, unique_keys: list[str], due_ms: int, namesrv: str, tls: TlsOptions | None
) -> dict[str, CancelResult]:
    async with open_producer(namesrv, tls) as producer:
        return {unique_key: await producer.cancel(topic, unique_key, due_ms) for unique_key in unique_keys}


def _several_text(topic: str, key: str, unique_keys: list[str]) -> str:
    named = ", ".join(unique_keys[:NAMED_MAX]) + (", ..." if len(unique_keys) > NAMED_MAX else "")
    return (
        f"{len(unique_keys)} pending messages for {topic} have the key {key}: give --all to cancel them all, or --key "
        f"with one of their unique keys ({named})"
    )


def _result_text(topic: str, key: str, result: CancelResult) -> str:
    from wheelmq.client.results import CancelResult

    return {
        CancelResult.CANCELLED: "Cancelled: it will not be delivered.",
        CancelResult.ALREADY_SETTLED: "Nothing was cancelled: the message was delivered or cancelled before.",
        CancelResult.ACCEPTED: "The broker accepted the cancel, and does not report its result.",
        CancelResult.NOT_FOUND: f"Nothing was cancelled: no pending message for {topic} has the key {key}. "
        f"`wheelmq timers --topic {topic}` lists keys.",
    }[result]
