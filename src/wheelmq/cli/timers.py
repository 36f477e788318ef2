"""`wheelmq timers`: what is pending, from a running broker or from a store folder."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from wheelmq.cli.brokers import find_brokers
from wheelmq.cli.errors import namesrv_option, told_plainly
from wheelmq.cli.times import duration_text, time_text

if TYPE_CHECKING:
    from wheelmq.delay.pending import Pending

PAGE_COUNT = 1000


@click.command(name="timers", short_help="List what is pending.")
@namesrv_option
@click.option("--broker", help="Ask this broker, HOST:PORT, and no other.")
@click.option(
    "--store",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Read a store folder that no broker has open; nothing in it is changed.",
)
@click.option("--topic", help="Only what is meant for this topic.")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="Rows of the table.")
@click.option("--json", "as_json", is_flag=True, help="Print every pending message as a JSON line.")
def command(namesrv: str, broker: str | None, store: Path | None, topic: str | None, limit: int, as_json: bool) -> None:
    """List the delayed messages that wait for their time."""
    if store is not None and broker is not None:
        raise click.UsageError("--store and --broker name two places to look in: give one of them")
    with told_plainly(namesrv):
        if store is not None:
            _show(_from_store(store, topic), limit, as_json=as_json)
            return
        addresses = [broker] if broker is not None else sorted(asyncio.run(find_brokers(namesrv)).values())
        if not addresses:
            raise click.ClickException(f"no broker is registered at {namesrv}: is it up?")
        lines = (line for address in addresses for line in _from_broker(address, topic))
        _show(lines, limit, as_json=as_json)


def _from_broker(address: str, topic: str | None) -> Iterator[bytes]:
    """Lines of JSON from a running broker, page by page."""
    from wheelmq.formats.wire import headers
    from wheelmq.formats.wire.codes import RequestCode, ResponseCode
    from wheelmq.formats.wire.frame import Command
    from wheelmq.net.errors import Refused
    from wheelmq.net.link import Link

    with closing(Link(address)) as link:
        offset = 0
        while True:
            header = headers.ListTimersHeader(queue_offset=offset, count=PAGE_COUNT, topic=topic)
            answer = link.call(Command(code=RequestCode.WMQ_LIST_TIMERS, ext=headers.write(header)))
            if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise click.ClickException(
                    f"the broker at {address} cannot list what is pending, for it is no WheelMQ broker: stop it, and "
                    "read its store folder with --store"
                )
            if answer.code != ResponseCode.SUCCESS:
                raise Refused(answer)
            yield from filter(None, bytes(answer.body).split(b"\n"))
            offset = int(answer.ext["nextQueueOffset"])
            if offset >= int(answer.ext["endQueueOffset"]):
                return


def _from_store(store: Path, topic: str | None) -> Iterator[bytes]:
    """Lines of JSON from a store folder."""
    import msgspec

    from wheelmq.delay.offline import pending_in
    from wheelmq.system.disk import StoreLocked

    try:
        for pending in pending_in(store):
            if topic in (None, pending.topic):
                yield msgspec.json.encode(pending)
    except StoreLocked:
        raise click.ClickException(
            f"a broker has the store {store} open: stop it first, or ask it with `wheelmq timers --namesrv HOST:PORT`"
        ) from None
    except OSError as error:
        raise click.ClickException(f"{error.filename or store}: {error.strerror or error}") from None


def _show(lines: Iterator[bytes], limit: int, *, as_json: bool) -> None:
    if as_json:
        for line in lines:
            click.echo(line.decode())
        return
    import msgspec

    from wheelmq.delay.pending import Pending
    from wheelmq.system.clock import SystemClock

    count = 0

    def counted() -> Iterator[Pending]:
        nonlocal count
        for line in lines:
            count += 1
            yield msgspec.json.decode(line, type=Pending)

    first = heapq.nsmallest(limit, counted(), key=lambda pending: (pending.due_ms, pending.queue_offset))
    if not first:
        click.echo("Nothing is pending.")
        return
    _print_table(first, count, SystemClock().now_ms())


def _print_table(first: list[Pending], count: int, now_ms: int) -> None:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{count} pending" + (f", the first {len(first)}" if count > len(first) else ""), box=SIMPLE)
    table.add_column("due", no_wrap=True)
    table.add_column("in", justify="right", no_wrap=True)
    table.add_column("topic", overflow="fold", min_width=5)
    table.add_column("keys", overflow="fold", min_width=4)
    table.add_column("unique key", overflow="fold", min_width=16)
    table.add_column("state", no_wrap=True)
    for one in first:
        left = duration_text(one.due_ms - now_ms) if one.due_ms > now_ms else "due"
        due = time_text(one.due_ms)[:23].replace("T", " ")
        table.add_row(due, left, one.topic, one.keys or "", one.unique_key or "", one.state.value)
    Console().print(table)
