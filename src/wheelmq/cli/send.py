"""`wheelmq send`: send one message, now or for later."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import click

from wheelmq.cli.credentials import own_settings
from wheelmq.cli.errors import namesrv_option, plain_errors
from wheelmq.cli.times import Duration, Seconds, duration_text, parse_time, remaining_text, time_text
from wheelmq.cli.tls_options import tls_options
from wheelmq.formats.units import Millis

if TYPE_CHECKING:
    from wheelmq.cli.due import Due
    from wheelmq.client.delays import TooFarAhead
    from wheelmq.client.results import SendResult
    from wheelmq.system.tls_client import TlsOptions


@click.command(name="send", short_help="Send a message, now or for later.")
@click.argument("topic")
@click.argument("body")
@click.option("--delay", "delay_ms", type=Duration(), help="Deliver it after this time: 500ms, 10s, 5m, 2h, 1d.")
@click.option("--at", "at", help="Deliver it at this time: ISO 8601 (local zone if it names none), or +10s.")
@click.option(
    "--delay-in-seconds",
    type=Seconds(),
    help="Deliver it after this number of seconds. A block stores it: up to a year ahead.",
)
@click.option(
    "--level", type=click.IntRange(min=1), help="Deliver it after the delay of this level, as RocketMQ 4 does."
)
@click.option("--keys", help="Business keys, separated by spaces.")
@click.option("--tags", help="A tag by which consumers can filter.")
@namesrv_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as a JSON line.")
@tls_options
def command(
    topic: str,
    body: str,
    delay_ms: int | None,
    at: str | None,
    delay_in_seconds: int | None,
    level: int | None,
    keys: str | None,
    tags: str | None,
    namesrv: str,
    as_json: bool,
    tls: TlsOptions | None,
) -> None:
    """Send BODY to TOPIC. A topic that does not exist is created.

    \b
    The latest due time:
      --delay, --at       3 days, or the broker's timer_max_delay_seconds
      --delay-in-seconds  a year, or the broker's block_max_delay_seconds
      --level             1s 5s 10s 30s 1m 2m ... 10m 20m 30m 1h 2h are levels 1 to 18, or the broker's own table;
                          a level above the highest counts as the highest

    The printed due time is the one that the broker stored. "about" before it marks an estimate from this machine's
    clock: the broker could not be asked, or the message is in a block, where the broker cannot find it by its id.
    """
    from wheelmq.cli.due import Due, due_of_sent
    from wheelmq.client.delays import TooFarAhead
    from wheelmq.client.sync import SyncProducer
    from wheelmq.formats.disk import properties as props
    from wheelmq.system.clock import SystemClock

    if sum(asked is not None for asked in (delay_ms, at, delay_in_seconds, level)) > 1:
        raise click.UsageError("--delay, --at, --delay-in-seconds and --level exclude each other: give one of them")
    if not body:
        raise click.UsageError("BODY is empty: a message needs one byte at least")
    clock = SystemClock()
    deliver_at_ms = None if at is None else _due_ms(at, clock.now_ms())
    with plain_errors(namesrv), SyncProducer(namesrv, own_settings(), tls=tls, clock=clock) as producer:
        try:
            result = producer.send(
                topic,
                body.encode(),
                keys=keys or (),
                tags=tags,
                properties={props.DELAY: str(level)} if level is not None else None,
                delay_ms=delay_ms,
                deliver_at_ms=deliver_at_ms,
                delay_in_seconds=delay_in_seconds,
            )
        except TooFarAhead as error:
            raise click.ClickException(_too_far_text(error)) from None
        is_delayed = level is not None or result.due_ms is not None
        due = asyncio.run(due_of_sent(namesrv, result, tls)) if is_delayed else Due(None)
    click.echo(_as_json(topic, result, due) if as_json else sent_text(topic, result, due, level, clock.now_ms()))


def _due_ms(at: str, now_ms: Millis) -> Millis:
    try:
        deliver_at_ms = parse_time(at, now_ms)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--at") from None
    if deliver_at_ms < now_ms:
        past = duration_text(now_ms - deliver_at_ms)
        raise click.BadParameter(f"{at} lies {past} in the past: leave it out to deliver at once", param_hint="--at")
    return deliver_at_ms


def _too_far_text(error: TooFarAhead) -> str:
    """Return the error and the remedies for a due time beyond the reach of the timer or the blocks."""
    asked, limit = duration_text(error.asked_ms), duration_text(error.limit_ms)
    if error.is_in_block:
        return (
            f"that is {asked} ahead, and this broker's blocks reach {limit}: start the broker with "
            f"`wheelmq up --set block_max_delay_seconds={error.seconds}` or more"
        )
    return (
        f"that is {asked} ahead, and this broker's timer reaches {limit}: send it with --delay-in-seconds "
        f"{error.seconds}, which reaches a year, or start the broker with "
        f"`wheelmq up --set timer_max_delay_seconds={error.seconds}` or more"
    )


def _as_json(topic: str, result: SendResult, due: Due) -> str:
    return json.dumps(
        {
            "status": result.status,
            "topic": topic,
            "broker": result.queue.broker_name,
            "queue_id": result.queue.queue_id,
            "message_id": result.message_id,
            "unique_key": result.unique_key,
            "due_ms": due.at_ms,
            "due_is_exact": due.is_exact,
            "level": due.level,
            "recall_handle": result.recall_handle,
        }
    )


def sent_text(topic: str, result: SendResult, due: Due, asked_level: int | None, now_ms: Millis) -> str:
    found = [
        f"Sent to queue {result.queue.queue_id} of {topic} on {result.queue.broker_name}, "
        f"{when_text(due, asked_level, now_ms)}.",
        f"  unique key {result.unique_key}",
        f"  message id {result.message_id}",
    ]
    if due.level is not None and asked_level is not None and due.level != asked_level:
        found.append(f"  level      {due.level}, the broker's highest: it has no level {asked_level}")
    if result.status != "SEND_OK":
        found.append(f"  status     {result.status}: stored, but less safely than requested")
    return "\n".join(found)


def when_text(due: Due, asked_level: int | None, now_ms: Millis) -> str:
    if due.at_ms is not None:
        left = remaining_text(max(0, due.at_ms - now_ms))
        level = "" if due.level is None else f", by {due.level_text}"
        return f"due {due.about}{time_text(due.at_ms)} (in {left}){level}"
    if asked_level is None:
        return "for delivery at once"
    level = f"level {asked_level}" if due.level is None else due.level_text
    return f"for delivery after {level}, whose delay is unknown"
