"""`wheelmq admin`: list, create, change and delete topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click
import msgspec

from wheelmq.cli.admin_options import AskAdmin, broker_option, chosen_brokers, cluster_option, topic_option, with_admin
from wheelmq.cli.tables import counted, json_option, print_structs, print_table, when_text
from wheelmq.cli.topics import TopicRow, perm_text, print_topics, topic_rows

if TYPE_CHECKING:
    from wheelmq.client.admin import Admin
    from wheelmq.client.routes import TopicRoute

QUEUES: Final = 8
"""The number of queues that mqadmin gives a topic by default."""


class RouteRow(msgspec.Struct):
    """A row of `wheelmq admin topicRoute`."""

    topic: str
    broker: str
    address: str
    read_queues: int
    write_queues: int
    perm: str


class QueueRow(msgspec.Struct):
    """A row of `wheelmq admin topicStatus`."""

    topic: str
    broker: str
    queue_id: int
    min_offset: int
    max_offset: int
    """The offset after the last message."""
    last_stored_ms: int | None


@click.command(name="topicList")
@json_option
@with_admin
def topic_list(as_json: bool, ask: AskAdmin[list[TopicRow]]) -> None:
    """List all topics, those of brokers and groups too."""
    rows = ask(lambda admin: topic_rows(admin, every=True))
    if as_json:
        print_structs(rows)
    else:
        print_topics(rows)


@click.command(name="topicRoute")
@topic_option
@json_option
@with_admin
def topic_route(topic: str, as_json: bool, ask: AskAdmin[TopicRoute]) -> None:
    """Show the brokers of a topic, and its queues at each of them."""
    route = ask(lambda admin: admin.route(topic))
    rows = [_route_row(route, broker) for broker in sorted(route.masters)]
    if as_json:
        print_structs(rows)
        return
    cells = [(row.broker, row.address, str(row.read_queues), str(row.write_queues), row.perm) for row in rows]
    print_table(topic, ("broker", "address", "read queues", "write queues", "perm"), cells)


def _route_row(route: TopicRoute, broker: str) -> RouteRow:
    from wheelmq.formats.wire.bodies import PERM_READ, PERM_WRITE

    read, written = (
        sum(queue.broker_name == broker for queue in queues) for queues in (route.readable, route.writable)
    )
    perm = perm_text((PERM_READ if read else 0) | (PERM_WRITE if written else 0))
    return RouteRow(route.topic, broker, route.masters[broker], read, written, perm)


@click.command(name="topicStatus")
@topic_option
@json_option
@with_admin
def topic_status(topic: str, as_json: bool, ask: AskAdmin[list[QueueRow]]) -> None:
    """Show the offsets of each queue of a topic, and the time of its last message."""

    async def work(admin: Admin) -> list[QueueRow]:
        stats = sorted((await admin.topic_stats(topic)).items(), key=lambda one: (one[0].broker_name, one[0].queue_id))
        return [
            QueueRow(
                topic,
                queue.broker_name,
                queue.queue_id,
                span.min_offset,
                span.max_offset,
                span.last_update_timestamp or None,
            )
            for queue, span in stats
        ]

    rows = ask(work)
    if as_json:
        print_structs(rows)
        return
    cells = [
        (row.broker, str(row.queue_id), str(row.min_offset), str(row.max_offset), when_text(row.last_stored_ms))
        for row in rows
    ]
    columns = ("broker", "queue", "min offset", "max offset", "last message (local time)")
    print_table(topic, columns, cells)


@click.command(name="updateTopic")
@topic_option
@broker_option
@cluster_option
@click.option(
    "-r", "--read-queues", "--readQueueNums", "read", type=click.IntRange(1, 65535), default=QUEUES, show_default=True
)
@click.option(
    "-w",
    "--write-queues",
    "--writeQueueNums",
    "write",
    type=click.IntRange(1, 65535),
    default=QUEUES,
    show_default=True,
)
@click.option("-p", "--perm", type=click.Choice(["2", "4", "6"]), default="6", help="2 is W, 4 is R, 6 is RW.")
@click.option("-o", "--order", type=bool, default=False, help="Whether the topic is ordered: true or false.")
@with_admin
def update_topic(
    topic: str,
    broker: str | None,
    cluster: str | None,
    read: int,
    write: int,
    perm: str,
    order: bool,
    ask: AskAdmin[list[str]],
) -> None:
    """Create a topic, or change it, at the brokers that -b or -c names."""

    async def work(admin: Admin) -> list[str]:
        chosen = await chosen_brokers(admin, broker, cluster)
        for one in chosen:
            await admin.create_topic(
                topic, queues=write, read_queues=read, perm=int(perm), order=order, broker_name=one
            )
        return chosen

    if broker is None and cluster is None:
        raise click.UsageError("name a broker with -b, or the brokers of a cluster with -c")
    click.echo(f"The topic {topic} has {counted(write, 'queue')} at {', '.join(ask(work))}.")


@click.command(name="deleteTopic")
@topic_option
@cluster_option
@with_admin
def delete_topic(topic: str, cluster: str | None, ask: AskAdmin[None]) -> None:
    """Delete a topic and its messages at all brokers and name servers. Delayed messages are still delivered.

    -c must name the cluster if there are several. Then the command refuses, because a name server has one topic of a
    name for all clusters.
    """

    async def work(admin: Admin) -> None:
        await chosen_brokers(admin, None, cluster)
        clusters = await admin.clusters()
        if cluster is not None and len(clusters) > 1:
            raise ValueError(
                f"the name servers have the clusters {', '.join(sorted(clusters))}: leave -c out to delete {topic} at "
                "all of them"
            )
        await admin.route(topic)
        await admin.delete_topic(topic)

    ask(work)
    click.echo(f"Deleted the topic {topic}.")


COMMANDS: Final = (topic_list, topic_route, topic_status, update_topic, delete_topic)
