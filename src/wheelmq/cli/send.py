"""`wheelmq send`: one message, now or for later."""

from __future__ import annotations

import json

import click

from wheelmq.cli.errors import namesrv_option, told_plainly
from wheelmq.cli.times import Duration, duration_text, parse_time, time_text


@click.command(name="send", short_help="Send a message, now or for later.")
@click.argument("topic")
@click.argument("body")
@click.option("--delay", "delay_ms", type=Duration(), help="Deliver it after this time: 500ms, 10s, 5m, 2h, 1d.")
@click.option("--at", "at", help="Deliver it at this time: ISO 8601 (local zone if it names none), or +10s.")
@click.option(
    "--delay-in-seconds",
    type=click.IntRange(min=0),
    help="Deliver it so many seconds from now, by way of a block: up to a year ahead.",
)
@click.option("--keys", help="Business keys, with spaces between them.")
@click.option("--tags", help="A tag that consumers can choose by.")
@namesrv_option
@click.option("--json", "as_json", is_flag=True, help="Print what came of it as a JSON line.")
def command(
    topic: str,
    body: str,
    delay_ms: int | None,
    at: str | None,
    delay_in_seconds: int | None,
    keys: str | None,
    tags: str | None,
    namesrv: str,
    as_json: bool,
) -> None:
    """Send BODY to TOPIC; a topic that does not exist is made."""
    from wheelmq.client.sync import SyncProducer
    from wheelmq.system.clock import SystemClock

    if sum(asked is not None for asked in (delay_ms, at, delay_in_seconds)) > 1:
        raise click.UsageError("--delay, --at and --delay-in-seconds say the same in several ways: give one of them")
    clock = SystemClock()
    with told_plainly(namesrv):
        deliver_at_ms = None
        if at is not None:
            deliver_at_ms = parse_time(at, clock.now_ms())
            past_ms = clock.now_ms() - deliver_at_ms
            if past_ms > 0:
                raise ValueError(
                    f"--at {at} lies {duration_text(past_ms)} in the past: leave it out to deliver at once"
                )
        with SyncProducer(namesrv, clock=clock) as producer:
            result = producer.send(
                topic,
                body.encode(),
                keys=keys or (),
                tags=tags,
                delay_ms=delay_ms,
                deliver_at_ms=deliver_at_ms,
                delay_in_seconds=delay_in_seconds,
            )
    if as_json:
        found = {
            "status": result.status,
            "topic": topic,
            "broker": result.queue.broker_name,
            "queue_id": result.queue.queue_id,
            "message_id": result.message_id,
            "unique_key": result.unique_key,
            "due_ms": result.due_ms,
            "recall_handle": result.recall_handle,
        }
        click.echo(json.dumps(found))
        return
    where = f"queue {result.queue.queue_id} of {topic} on {result.queue.broker_name}"
    when = "for delivery at once"
    if result.due_ms is not None:
        when = f"due {time_text(result.due_ms)} (in {duration_text(max(0, result.due_ms - clock.now_ms()))})"
    click.echo(f"Sent to {where}, {when}.")
    click.echo(f"  unique key {result.unique_key}")
    click.echo(f"  message id {result.message_id}")
    if result.status != "SEND_OK":
        click.echo(f"  status     {result.status}: stored, and less safe than asked for")
