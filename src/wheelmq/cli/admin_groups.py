"""`wheelmq admin`: groups, their members and their offsets."""

from __future__ import annotations

import datetime
import re
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from wheelmq.cli.admin_options import AskAdmin, group_option, topic_option, with_admin
from wheelmq.cli.clients import each
from wheelmq.cli.groups import group_names
from wheelmq.cli.lag import LagRow, lag_rows, print_lags
from wheelmq.cli.tables import counted, json_option, print_structs, print_table
from wheelmq.cli.times import parse_past_time, time_text

if TYPE_CHECKING:
    from wheelmq.client.admin import Admin


class MemberRow(msgspec.Struct):
    """A row of `wheelmq admin consumerConnection`."""

    group: str
    client_id: str
    address: str
    language: str
    version: int


class OffsetRow(msgspec.Struct):
    """A row of `wheelmq admin resetOffsetByTime`."""

    group: str
    topic: str
    broker: str
    queue_id: int
    offset: int
    """The offset of the next message that the group gets."""


class PastTime(click.ParamType[int]):
    """mqadmin's times: now, milliseconds since 1970, 2031-05-04#13:30:00:000; and those of our other commands."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from wheelmq.system.clock import SystemClock

        now_ms = SystemClock().now_ms()
        if value == "now":
            return now_ms
        if re.fullmatch(r"-1|[0-9]{12,15}", value):
            return int(value)
        try:
            if re.fullmatch(r"\d{4}-\d{2}-\d{2}#\d{2}:\d{2}:\d{2}:\d{3}", value):
                moment = datetime.datetime.strptime(value + "000", "%Y-%m-%d#%H:%M:%S:%f")
                return round(moment.timestamp() * 1000)
            return parse_past_time(value, now_ms)
        except ValueError as error:
            self.fail(f"{error}, or now, or milliseconds since 1970", param, ctx)


@click.command(name="consumerProgress")
@click.option("-g", "--group", "--groupName", "group", help="Only this group.")
@click.option("-t", "--topic", "--topicName", "topic", help="Only this topic.")
@json_option
@with_admin
def consumer_progress(group: str | None, topic: str | None, as_json: bool, ask: AskAdmin[list[LagRow]]) -> None:
    """Show the messages that groups have not consumed. The rows are those of `wheelmq lag`."""

    async def work(admin: Admin) -> list[LagRow]:
        groups = await group_names(admin) if group is None else [group]
        return [row for rows in await each(groups, lambda one: lag_rows(admin, one, topic)) for row in rows]

    rows = ask(work)
    if as_json:
        print_structs(rows)
    else:
        print_lags(rows, by_queue=group is not None)


@click.command(name="consumerConnection")
@group_option
@json_option
@with_admin
def consumer_connection(group: str, as_json: bool, ask: AskAdmin[list[MemberRow]]) -> None:
    """List the connected members of a group."""

    async def work(admin: Admin) -> list[MemberRow]:
        found = await admin.consumers(group)
        return [MemberRow(group, one.client_id, one.client_addr, one.language, one.version) for one in found]

    rows = ask(work)
    if as_json:
        print_structs(rows)
    elif rows:
        cells = [(row.client_id, row.address, row.language, str(row.version)) for row in rows]
        title = f"{counted(len(rows), 'member')} of {group}"
        print_table(title, ("client id", "address", "language", "version"), cells)
    else:
        click.echo(f"No member of the group {group} is connected.")


@click.command(name="updateSubGroup")
@group_option
@click.option("-s", "--consume-enable", "--consumeEnable", "enable", type=bool, default=True, show_default=True)
@click.option("-d", "--broadcast-enable", "--consumeBroadcastEnable", "broadcast", type=bool, default=True)
@click.option("-q", "--retry-queues", "--retryQueueNums", "queues", type=click.IntRange(0, 1000), default=1)
@click.option("-r", "--retries", "--retryMaxTimes", "retries", type=click.IntRange(0, 10_000), default=16)
@with_admin
def update_group(group: str, enable: bool, broadcast: bool, queues: int, retries: int, ask: AskAdmin[None]) -> None:
    """Create a group, or replace its settings, at all brokers."""
    from wheelmq.formats.wire.bodies import GroupConfig

    config = GroupConfig(
        consume_enable=enable, consume_broadcast_enable=broadcast, retry_queue_nums=queues, retry_max_times=retries
    )
    ask(lambda admin: admin.create_group(group, config))
    click.echo(f"The group {group} has at most {retries} retries.")


@click.command(name="deleteSubGroup")
@group_option
@click.option("-r", "--remove-offset", "--removeOffset", "offsets", type=bool, default=False, show_default=True)
@with_admin
def delete_group(group: str, offsets: bool, ask: AskAdmin[None]) -> None:
    """Delete a group at all brokers. Its offsets stay, unless -r is true."""

    async def work(admin: Admin) -> None:
        if group not in await group_names(admin, every=True):
            raise ValueError(f"there is no group {group}: `wheelmq groups` lists the groups")
        await admin.delete_group(group, offsets_too=offsets)

    ask(work)
    click.echo(f"Deleted the group {group}{'' if offsets else '; its offsets stay'}.")


@click.command(name="resetOffsetByTime")
@group_option
@topic_option
@click.option(
    "-s",
    "--timestamp",
    "time_ms",
    type=PastTime(),
    required=True,
    help="now, ISO 8601, -1h, or milliseconds since 1970.",
)
@json_option
@with_admin
def reset_offsets(group: str, topic: str, time_ms: int, as_json: bool, ask: AskAdmin[list[OffsetRow]]) -> None:
    """Let a group continue with the messages of a topic that were stored at a time, or later."""

    async def work(admin: Admin) -> list[OffsetRow]:
        found = await admin.reset_offsets(group, topic, time_ms)
        rows = [OffsetRow(group, topic, queue.broker_name, queue.queue_id, offset) for queue, offset in found.items()]
        return sorted(rows, key=lambda row: (row.broker, row.queue_id))

    rows = ask(work)
    if as_json:
        print_structs(rows)
        return
    cells = [(row.broker, str(row.queue_id), str(row.offset)) for row in rows]
    when = "the end" if time_ms < 0 else time_text(time_ms)
    print_table(f"{group} continues in {topic} at {when}", ("broker", "queue", "offset"), cells)


COMMANDS: Final = (
    consumer_progress,
    consumer_connection,
    update_group,
    delete_group,
    reset_offsets,
)
