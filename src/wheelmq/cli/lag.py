"""`wheelmq lag`: the messages that groups have not consumed yet."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click
import msgspec

from wheelmq.cli.clients import each, open_admin
from wheelmq.cli.errors import namesrv_option, plain_errors
from wheelmq.cli.groups import group_names
from wheelmq.cli.tables import counted, json_option, print_structs, print_table, when_text
from wheelmq.cli.tls_options import tls_options

if TYPE_CHECKING:
    from wheelmq.client.admin import Admin
    from wheelmq.formats.wire.administration import GroupQueueOffsets
    from wheelmq.formats.wire.bodies import QueueName
    from wheelmq.system.tls_client import TlsOptions


class QueueLag(msgspec.Struct):
    """The lag of a group in one queue, in a row of `wheelmq lag`."""

    broker: str
    queue_id: int
    committed_offset: int
    """The offset of the next message that the group has to consume."""
    end_offset: int
    """The offset after the last message of the queue."""
    lag: int


class LagRow(msgspec.Struct):
    """A row of `wheelmq lag`: a group in a topic."""

    group: str
    topic: str
    lag: int
    """The number of messages that the group has not consumed."""
    last_consumed_ms: int | None
    """The store time of the last consumed message; null if there is none."""
    queues: list[QueueLag]


@click.command(name="lag", short_help="Show how far groups lag.")
@namesrv_option
@click.option("--group", help="Only this group.")
@click.option("--topic", help="Only this topic.")
@click.option("--queues", "by_queue", is_flag=True, help="Show each queue in the table. The JSON always has them.")
@json_option
@tls_options
def command(
    namesrv: str, group: str | None, topic: str | None, by_queue: bool, as_json: bool, tls: TlsOptions | None
) -> None:
    """Show the number of messages that groups have not consumed, per topic.

    Messages that are still delayed do not count.
    """
    with plain_errors(namesrv):
        rows = asyncio.run(_lags(namesrv, tls, group, topic))
    if as_json:
        print_structs(rows)
    elif rows:
        print_lags(rows, by_queue=by_queue)
    else:
        click.echo("No group has consumed anything." if group is None else f"Group {group} has consumed nothing here.")


def print_lags(rows: list[LagRow], *, by_queue: bool) -> None:
    """Print the lag per topic, or per queue."""
    (_print_queues if by_queue else _print_topics)(rows)


def _print_topics(rows: list[LagRow]) -> None:
    cells = [(row.group, row.topic, str(row.lag), when_text(row.last_consumed_ms)) for row in rows]
    columns = ("group", "topic", "lag", "last consumed was stored (local time)")
    print_table(_title(rows), columns, cells, may_go=(columns[-1],))


def _print_queues(rows: list[LagRow]) -> None:
    cells = [
        (row.group, row.topic, one.broker, *map(str, (one.queue_id, one.committed_offset, one.end_offset, one.lag)))
        for row in rows
        for one in row.queues
    ]
    columns = ("group", "topic", "broker", "queue", "committed", "end", "lag")
    print_table(_title(rows), columns, cells, may_go=("broker",))


def _title(rows: list[LagRow]) -> str:
    return f"{counted(sum(row.lag for row in rows), 'message')} in all"


async def _lags(namesrv: str, tls: TlsOptions | None, group: str | None, topic: str | None) -> list[LagRow]:
    async with open_admin(namesrv, tls) as admin:
        known = await group_names(admin, every=group is not None)
        if group is not None and group not in known:
            raise ValueError(f"there is no group {group}: `wheelmq groups` lists the groups")
        if topic is not None:
            await admin.route(topic)  # raises TopicUnknown
        chosen = known if group is None else [group]
        return [row for rows in await each(chosen, lambda one: lag_rows(admin, one, topic)) for row in rows]


async def lag_rows(admin: Admin, group: str, topic: str | None = None) -> list[LagRow]:
    """Return the lag of a group in each topic that it has consumed, or in one. Raises the errors of an Admin."""
    progress = await admin.consumer_progress(group, topic)
    topics = sorted({queue.topic for queue in progress})
    return [lag_row(group, one, {queue: progress[queue] for queue in progress if queue.topic == one}) for one in topics]


def lag_row(group: str, topic: str, progress: Mapping[QueueName, GroupQueueOffsets]) -> LagRow:
    queues = [
        QueueLag(
            broker=queue.broker_name,
            queue_id=queue.queue_id,
            committed_offset=offsets.consumer_offset,
            end_offset=offsets.broker_offset,
            lag=max(0, offsets.behind),
        )
        for queue, offsets in sorted(progress.items(), key=lambda item: (item[0].broker_name, item[0].queue_id))
    ]
    consumed_ms = max((offsets.last_timestamp for offsets in progress.values()), default=0)
    return LagRow(group, topic, sum(queue.lag for queue in queues), consumed_ms if consumed_ms > 0 else None, queues)
