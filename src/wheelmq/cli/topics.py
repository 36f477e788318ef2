"""`wheelmq topics`: list the topics of a cluster."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click
import msgspec

from wheelmq.cli.clients import check_brokers, each, open_admin
from wheelmq.cli.errors import namesrv_option, plain_errors
from wheelmq.cli.names import NameKind, every_option, topic_kind
from wheelmq.cli.tables import counted, json_option, print_structs, print_table, when_text
from wheelmq.cli.tls_options import tls_options

if TYPE_CHECKING:
    from wheelmq.client.admin import Admin
    from wheelmq.formats.wire.administration import QueueSpan
    from wheelmq.formats.wire.bodies import QueueName, TopicConfig
    from wheelmq.system.tls_client import TlsOptions


class TopicRow(msgspec.Struct):
    """A row of `wheelmq topics`."""

    topic: str
    kind: NameKind
    """user, retry, dead letters or system."""
    brokers: list[str]
    queues: int
    """The number of readable queues at all brokers."""
    perm: str
    """RW, R, W or -: whether consumers may read and producers write. Different values have a slash between them."""
    messages: int
    """The number of messages that are still stored."""
    last_stored_ms: int | None
    """The store time of the last message; null without one."""


@click.command(name="topics", short_help="List topics.")
@namesrv_option
@every_option
@json_option
@tls_options
def command(namesrv: str, every: bool, as_json: bool, tls: TlsOptions | None) -> None:
    """List the topics of all brokers, with their queues and their number of stored messages.

    Topics of brokers, and those with retries and dead letters of groups, are left out without --all. `wheelmq admin
    topicStatus` lists the queues of one topic.
    """
    with plain_errors(namesrv):
        rows = asyncio.run(_topics(namesrv, tls, every=every))
    if as_json:
        print_structs(rows)
    elif rows:
        print_topics(rows)
    else:
        click.echo("There is no topic. The first message to a topic creates it. --all lists the topics of brokers.")


def print_topics(rows: list[TopicRow]) -> None:
    cells = [
        (row.topic, str(row.queues), row.perm, ", ".join(row.brokers), str(row.messages), when_text(row.last_stored_ms))
        for row in rows
    ]
    columns = ("topic", "queues", "perm", "brokers", "messages", "last message (local time)")
    title = counted(len(rows), "topic")
    print_table(title, columns, cells, may_go=("brokers", "perm", "last message (local time)"))


async def _topics(namesrv: str, tls: TlsOptions | None, *, every: bool) -> list[TopicRow]:
    async with open_admin(namesrv, tls) as admin:
        return await topic_rows(admin, every=every)


async def topic_rows(admin: Admin, *, every: bool) -> list[TopicRow]:
    """Return the topics by name. Raises the errors of an Admin."""
    await check_brokers(admin)
    by_broker = await admin.topic_configs()
    system_topics = await admin.system_topics()
    kinds = {topic: topic_kind(topic, system_topics) for table in by_broker.values() for topic in table}
    wanted = sorted(topic for topic, kind in kinds.items() if every or kind is NameKind.USER)
    stats = await each(wanted, lambda topic: stored_queues(admin, topic))
    configs = {
        topic: {name: by_broker[name][topic] for name in sorted(by_broker) if topic in by_broker[name]}
        for topic in wanted
    }
    return [topic_row(topic, kinds[topic], configs[topic], found) for topic, found in zip(wanted, stats, strict=True)]


async def stored_queues(admin: Admin, topic: str) -> dict[QueueName, QueueSpan]:
    """Return the queues of a topic; none if it was deleted meanwhile, or the name server does not know it yet."""
    from wheelmq.client.routes import TopicUnknown
    from wheelmq.formats.wire.codes import ResponseCode
    from wheelmq.net.errors import Refused

    try:
        return await admin.topic_stats(topic)
    except TopicUnknown:
        return {}
    except Refused as error:
        if error.code != ResponseCode.TOPIC_NOT_EXIST:
            raise
        return {}


def topic_row(
    topic: str, kind: NameKind, configs: dict[str, TopicConfig], queues: dict[QueueName, QueueSpan]
) -> TopicRow:
    stored_ms = max((span.last_update_timestamp for span in queues.values()), default=0)
    return TopicRow(
        topic=topic,
        kind=kind,
        brokers=list(configs),
        queues=sum(config.read_queue_nums for config in configs.values()),
        perm="/".join(dict.fromkeys(perm_text(config.perm) for config in configs.values())),
        messages=count_messages(queues),
        last_stored_ms=stored_ms or None,
    )


def count_messages(queues: dict[QueueName, QueueSpan]) -> int:
    return sum(span.max_offset - span.min_offset for span in queues.values())


def perm_text(perm: int) -> str:
    from wheelmq.formats.wire.bodies import PERM_READ, PERM_WRITE

    return ("R" if perm & PERM_READ else "") + ("W" if perm & PERM_WRITE else "") or "-"
