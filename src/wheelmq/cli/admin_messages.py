"""`wheelmq admin`: find messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click
import msgspec

from wheelmq.cli.admin_options import AskAdmin, topic_option, with_admin
from wheelmq.cli.bodies import body_fields, body_text
from wheelmq.cli.tables import json_option, print_structs, when_text

if TYPE_CHECKING:
    from wheelmq.client.admin import Admin
    from wheelmq.client.message import ReceivedMessage

SHOWN_CHARS: Final = 2000


class MessageRow(msgspec.Struct):
    """A row of `wheelmq admin queryMsgById`, `queryMsgByKey` and `queryMsgByUniqueKey`."""

    topic: str
    message_id: str
    unique_key: str | None
    keys: list[str]
    tags: str | None
    broker: str
    queue_topic: str
    """The topic of the queue that has the record: that of the timer for a message that is still delayed."""
    queue_id: int
    queue_offset: int
    born_ms: int
    stored_ms: int
    due_ms: int | None
    reconsume_times: int
    properties: dict[str, str]
    body: str | None
    body_hex: str | None


@click.command(name="queryMsgById")
@click.option("-i", "--id", "--msgId", "message_id", required=True, help="The message id of a send's result.")
@json_option
@with_admin
def by_id(message_id: str, as_json: bool, ask: AskAdmin[ReceivedMessage]) -> None:
    """Show the message with an offset message id, which names its broker and its place."""
    _print([ask(lambda admin: admin.view(message_id))], f"the message id {message_id}", as_json=as_json)


@click.command(name="queryMsgByKey")
@topic_option
@click.option("-k", "--key", "--msgKey", "key", required=True, help="A unique key or a business key.")
@click.option("-m", "--max", "--maxNum", "count", type=click.IntRange(min=1), default=64, show_default=True)
@json_option
@with_admin
def by_key(topic: str, key: str, count: int, as_json: bool, ask: AskAdmin[list[ReceivedMessage]]) -> None:
    """Show the messages of a topic with a unique or business key. Messages that are still delayed are left out."""

    async def work(admin: Admin) -> list[ReceivedMessage]:
        found = [*await admin.find(topic, key, count=count), *await admin.find_unique(topic, key)]
        return list({message.message_id: message for message in found}.values())

    _print(ask(work), f"the key {key} in {topic}", as_json=as_json)


@click.command(name="queryMsgByUniqueKey")
@topic_option
@click.option("-i", "--id", "--msgId", "unique_key", required=True, help="A unique key.")
@json_option
@with_admin
def by_unique_key(topic: str, unique_key: str, as_json: bool, ask: AskAdmin[list[ReceivedMessage]]) -> None:
    """Show the messages of a topic with a unique key. Messages that are still delayed are left out."""
    found = ask(lambda admin: admin.find_unique(topic, unique_key))
    _print(found, f"the unique key {unique_key} in {topic}", as_json=as_json)


def _print(messages: list[ReceivedMessage], asked: str, *, as_json: bool) -> None:
    """Print messages. Without any, end with exit code 1."""
    if as_json:
        print_structs(map(message_row, messages))
    for message in () if as_json else messages:
        click.echo(message_text(message))
    if not messages:
        raise click.ClickException(
            f"no message has {asked}. A delayed message is found by `wheelmq timers --topic TOPIC --key KEY`"
        )


def message_row(message: ReceivedMessage) -> MessageRow:
    return MessageRow(
        topic=message.topic,
        message_id=message.message_id,
        unique_key=message.unique_key,
        keys=message.keys,
        tags=message.tags,
        broker=message.broker_name,
        queue_topic=message.queue_topic,
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        born_ms=message.born_ms,
        stored_ms=message.stored_ms,
        due_ms=message.due_ms,
        reconsume_times=message.reconsume_times,
        properties=message.properties,
        **body_fields(message.body),
    )


def message_text(message: ReceivedMessage) -> str:
    """Return a message as lines for a terminal."""
    head = (
        ("message id", message.message_id),
        ("queue", f"{message.queue_topic}/{message.queue_id}@{message.queue_offset} on {message.broker_name}"),
        ("sent", when_text(message.born_ms)),
        ("stored", when_text(message.stored_ms)),
        ("due", when_text(message.due_ms) or "at once"),
    )
    lines = [f"{name:<12}{value}" for name, value in head]
    lines += [f"  {name}={value}" for name, value in sorted(message.properties.items())]
    return "\n".join((*lines, body_text(message.body, SHOWN_CHARS), ""))


COMMANDS: Final = (by_id, by_key, by_unique_key)
