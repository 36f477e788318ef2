"""`wheelmq consume`: print received messages with due time and lateness."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from typing import TYPE_CHECKING

import click

from wheelmq.cli.bodies import body_fields, body_text
from wheelmq.cli.brokers import find_brokers
from wheelmq.cli.clients import open_admin
from wheelmq.cli.credentials import own_access_key
from wheelmq.cli.errors import namesrv_option, plain_errors
from wheelmq.cli.times import clock_text, time_text
from wheelmq.cli.tls_options import tls_options

if TYPE_CHECKING:
    from wheelmq.cli.due import Due
    from wheelmq.client.message import ReceivedMessage
    from wheelmq.system.tls_client import TlsOptions

SHOWN_CHARS = 200


@click.command(name="consume", short_help="Print received messages with due time and lateness.")
@click.argument("topic")
@click.option("--group", required=True, help="The consumer group. Its members share the messages.")
@click.option("--count", type=click.IntRange(min=1), help="End after this number of messages.")
@click.option("--tags", default="*", show_default=True, help="Receive only these tags: A||B.")
@namesrv_option
@click.option("--json", "as_json", is_flag=True, help="Print each message as a JSON line.")
@tls_options
def command(
    topic: str, group: str, count: int | None, tags: str, namesrv: str, as_json: bool, tls: TlsOptions | None
) -> None:
    """Consume TOPIC as a member of a group, until Ctrl-C or --count.

    A new group starts with the oldest message. If TOPIC does not exist yet, the command waits for it.

    Lateness is the time from the due time until this command has the message. A message with a delay level does not
    carry its due time. The command then computes it from the producer's time stamp and the broker's table of levels,
    and prints "about" before it.
    """
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(message)s")
    with plain_errors(namesrv):
        asyncio.run(_consume(topic, group, count, tags, namesrv, tls, as_json=as_json))


async def _consume(
    topic: str, group: str, count: int | None, tags: str, namesrv: str, tls: TlsOptions | None, *, as_json: bool
) -> None:
    from wheelmq.cli.due import Levels, due_of_received
    from wheelmq.client import ConsumerSettings, PushConsumer

    settings = ConsumerSettings(concurrency=1, access_key=own_access_key())
    consumer = PushConsumer(namesrv, group, settings, tls=tls)
    over = asyncio.Event()
    seen = 0

    admin = open_admin(namesrv, tls)
    levels = Levels(admin.broker_config)

    async def show(message: ReceivedMessage) -> None:
        nonlocal seen
        due = await due_of_received(message, levels)
        seen += 1
        click.echo(json.dumps(message_fields(message, due)) if as_json else message_text(message, due))
        sys.stdout.flush()
        if seen == count:
            consumer.end()
            over.set()

    consumer.subscribe(topic, show, tags)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, over.set)
    if not await find_brokers(namesrv, tls):  # raises if no name server answers: the command does not wait for one
        click.echo(f"No broker is registered at {namesrv} yet. The command waits for one; is it up?", err=True)
    async with admin, consumer:
        if not as_json:
            click.echo(f"Group {group} waits for messages of {topic}; Ctrl-C ends it.", err=True)
        await over.wait()


def _late_ms(message: ReceivedMessage, due: Due) -> int | None:
    return None if due.at_ms is None else message.received_ms - due.at_ms


def message_fields(message: ReceivedMessage, due: Due) -> dict[str, object]:
    """Return the JSON fields of a message. A body that is not UTF-8 is hexadecimal."""
    return {
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "received_ms": message.received_ms,
        "due_ms": due.at_ms,
        "due_is_exact": due.is_exact,
        "lateness_ms": _late_ms(message, due),
        "level": due.level,
        "unique_key": message.unique_key,
        "message_id": message.message_id,
        "keys": message.keys,
        "tags": message.tags,
        "reconsume_times": message.reconsume_times,
        **body_fields(message.body),
    }


def message_text(message: ReceivedMessage, due: Due) -> str:
    where = f"{message.topic}/{message.queue_id}@{message.queue_offset}"
    marks = [f"level={due.level}"] if due.level is not None else []
    marks += [f"retry={message.reconsume_times}"] if message.reconsume_times else []
    marks += [f"keys={' '.join(message.keys)}"] if message.keys else []
    marks += [f"tags={message.tags}"] if message.tags else []
    shown = body_text(message.body, SHOWN_CHARS)
    return "  ".join((clock_text(message.received_ms), _timing(message, due), where, *marks, shown))


def _timing(message: ReceivedMessage, due: Due) -> str:
    late_ms = _late_ms(message, due)
    if due.at_ms is None or late_ms is None:
        if due.level is not None:
            return f"delayed by {due.level_text}"
        return "sent again after a failure" if message.reconsume_times else "not delayed"
    at = clock_text(due.at_ms) if abs(late_ms) < 12 * 3_600_000 else time_text(due.at_ms)
    return f"due {due.about}{at}  late {due.about}{late_ms:>4} ms"
