"""`wheelmq groups`: list the consumer groups of a cluster."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click
import msgspec

from wheelmq.cli.clients import check_brokers, each, open_admin
from wheelmq.cli.errors import namesrv_option, plain_errors
from wheelmq.cli.names import NameKind, every_option, group_kind
from wheelmq.cli.tables import counted, json_option, print_structs, print_table
from wheelmq.cli.tls_options import tls_options
from wheelmq.cli.topics import count_messages, stored_queues
from wheelmq.formats import names

if TYPE_CHECKING:
    from wheelmq.client.admin import Admin
    from wheelmq.system.tls_client import TlsOptions


class GroupRow(msgspec.Struct):
    """A row of `wheelmq groups`."""

    group: str
    kind: NameKind
    """user or system."""
    members: int
    """The number of connected consumers."""
    topics: list[str]
    """The topics that the group has consumed, without its retry topic."""
    lag: int
    """The number of messages that the group has not consumed, retries included."""
    dead_letters: int
    """The number of stored messages in the dead letter topic of the group."""


@click.command(name="groups", short_help="List consumer groups.")
@namesrv_option
@every_option
@json_option
@tls_options
def command(namesrv: str, every: bool, as_json: bool, tls: TlsOptions | None) -> None:
    """List the consumer groups of all brokers, with their members, their lag and their dead letters.

    `wheelmq lag` lists the lag per topic, and `wheelmq dead-letters list` the dead letters.
    """
    with plain_errors(namesrv):
        rows = asyncio.run(_groups(namesrv, tls, every=every))
    if as_json:
        print_structs(rows)
    elif rows:
        cells = [
            (row.group, str(row.members), str(row.lag), str(row.dead_letters), ", ".join(row.topics)) for row in rows
        ]
        columns = ("group", "members", "lag", "dead letters", "topics")
        print_table(counted(len(rows), "group"), columns, cells, may_go=("topics",))
    else:
        click.echo("There is no consumer group. The first consumer of a group creates it.")


async def _groups(namesrv: str, tls: TlsOptions | None, *, every: bool) -> list[GroupRow]:
    async with open_admin(namesrv, tls) as admin:
        wanted = await group_names(admin, every=every)
        return await each(wanted, lambda group: group_row(admin, group))


async def group_names(admin: Admin, *, every: bool = False) -> list[str]:
    """Return the names of the groups. Raises the errors of an Admin."""
    await check_brokers(admin)
    found = {group for table in (await admin.group_configs()).values() for group in table}
    return sorted(group for group in found if every or group_kind(group) is NameKind.USER)


async def group_row(admin: Admin, group: str) -> GroupRow:
    progress = await admin.consumer_progress(group)
    return GroupRow(
        group=group,
        kind=group_kind(group),
        members=len(await admin.consumers(group)),
        topics=sorted({queue.topic for queue in progress} - {names.retry_topic(group)}),
        lag=sum(max(0, offsets.behind) for offsets in progress.values()),
        dead_letters=count_messages(await stored_queues(admin, names.dead_letter_topic(group))),
    )
