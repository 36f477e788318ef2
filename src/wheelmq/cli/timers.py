"""`wheelmq timers`: list pending messages, of a running broker or of a store folder."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click

from wheelmq.cli import stores
from wheelmq.cli import timers_view as view
from wheelmq.cli.brokers import check_topic_is_known, find_brokers
from wheelmq.cli.credentials import own_sign
from wheelmq.cli.errors import namesrv_option, plain_errors
from wheelmq.cli.times import Time
from wheelmq.cli.tls_options import tls_options
from wheelmq.formats.units import NEVER_MS

if TYPE_CHECKING:
    from wheelmq.delay.pending_message import PendingMessage
    from wheelmq.formats.wire.codes import RequestCode
    from wheelmq.formats.wire.frame import Command
    from wheelmq.formats.wire.headers import Header
    from wheelmq.net.sync_connection import SyncConnection
    from wheelmq.system.tls_client import TlsOptions

F = TypeVar("F", bound=Callable[..., Any])

PAGE_COUNT: Final = 500
MINUTE_MS: Final = 60_000


class CannotList(click.ClickException):
    """The broker is not WheelMQ's. The text names the remedy."""


class ListQuery(NamedTuple):
    """The messages to show: due from `from_ms` to before `to_ms`, of one topic or of all."""

    topic: str | None
    from_ms: int
    to_ms: int

    def has(self, pending: PendingMessage) -> bool:
        return self.topic in (None, pending.topic) and self.from_ms <= pending.due_ms < self.to_ms


def query_options(command: F) -> F:
    """Add the options that choose pending messages, and the place where they are."""
    for option in reversed(_QUERY_OPTIONS):
        command = option(command)
    return command


_QUERY_OPTIONS: Final = (
    namesrv_option,
    click.option("--broker", help="Ask only this broker, HOST:PORT."),
    click.option(
        "--store",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        help="Read a store (HOME/store, or HOME) that no broker has open. The command changes nothing in it.",
    ),
    click.option("--topic", help="Only messages for this topic."),
    click.option(
        "--from", "from_ms", type=Time(), help="Only messages due then or later (tomorrow, 2031-05-04T13:30, +1h)."
    ),
    click.option("--to", "to_ms", type=Time(), help="Only messages due before then."),
    click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="Rows of the table."),
)


@click.command(name="timers", short_help="List pending messages.")
@query_options
@click.option("--per-minute", is_flag=True, hidden=True)
@click.option(
    "--key",
    help="Show the state of the messages for --topic with this unique or business key, settled ones too.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print all rows as a JSON array. Messages are not sorted by due time."
)
@tls_options
def command(
    namesrv: str,
    broker: str | None,
    store: Path | None,
    topic: str | None,
    from_ms: int | None,
    to_ms: int | None,
    per_minute: bool,
    key: str | None,
    limit: int,
    as_json: bool,
    tls: TlsOptions | None,
) -> None:
    """List pending delayed messages, or find one.

    `wheelmq timer-counts` counts them.

    \b
    Where a pending message is ("state"):
      parked    in the timer queue, not indexed yet
      indexed   in the timer wheel
      level     in the queue of its delay level
      block     in a block, sent with delayInSeconds
      armed     in the broker's memory; its release does not need the pipeline
    How a message was settled, with --key:
      released, cancelled
      rolled       parked again, because it is due beyond the wheel's window
      dead letter  it could not be delivered, and is in rmq_sys_wheelmq_dead_letter
      settled      one of these; the message index does not name the outcome, or not yet

    "in" is the time until the due time. It is "due" once the due time has come.
    """
    if per_minute:
        raise click.UsageError("`wheelmq timer-counts` counts the messages due in each minute")
    if key is not None and topic is None:
        raise click.UsageError("--key needs --topic too: a key is one of a topic")
    if key is not None and (store is not None or from_ms is not None or to_ms is not None):
        raise click.UsageError("--key asks a running broker: leave out --store, --from and --to")
    asked = list_query(broker, store, topic, from_ms, to_ms)
    with plain_errors(namesrv):
        addresses = [] if store is not None else find_addresses(namesrv, broker, tls)
        if key is not None:
            assert topic is not None
            found = view.show_states(
                (line for address in addresses for line in find(address, topic, key, tls)), as_json=as_json
            )
        elif store is None and not as_json:
            found = view.show_first(*list_soonest(addresses, asked, limit, tls))
        else:
            lines = (
                _from_store(store, asked)
                if store is not None
                else (line for address in addresses for line in list_pending(address, asked, tls))
            )
            found = view.show(lines, limit, as_json=as_json)
        if found:
            return
        if topic is not None and store is None and broker is None:
            asyncio.run(check_topic_is_known(namesrv, topic, tls))
    if not as_json:
        click.echo("Nothing is pending." if key is None else "No timer with this key was found.")


def list_query(
    broker: str | None, store: Path | None, topic: str | None, from_ms: int | None, to_ms: int | None
) -> ListQuery:
    """Return the messages that the options choose. Raises click.UsageError."""
    if store is not None and broker is not None:
        raise click.UsageError("--store and --broker exclude each other: give one of them")
    if from_ms is not None and to_ms is not None and from_ms >= to_ms:
        raise click.UsageError("nothing can be due between --from and --to: --from must be the earlier one")
    return ListQuery(topic, from_ms or 0, NEVER_MS if to_ms is None else to_ms)


def find_addresses(namesrv: str, broker: str | None, tls: TlsOptions | None) -> list[str]:
    from wheelmq.client.session import check_address

    if broker is not None:
        check_address(broker, "a broker", 10911)
    addresses = [broker] if broker is not None else sorted(asyncio.run(find_brokers(namesrv, tls)).values())
    if not addresses:
        raise click.ClickException(f"no broker is registered at {namesrv}: is it up?")
    return addresses


def list_pending(address: str, asked: ListQuery, tls: TlsOptions | None = None) -> Iterator[bytes]:
    """Yield the pending messages of a running broker, one JSON line each. The broker is asked page by page."""
    from wheelmq.formats.wire import headers
    from wheelmq.formats.wire.codes import RequestCode

    def header(place: int) -> headers.Header:
        return headers.ListTimersHeader(place=place, count=PAGE_COUNT, **asked._asdict())

    for body in _pages(address, RequestCode.WMQ_LIST_TIMERS, header, tls):
        yield from filter(None, body.split(b"\n"))


def list_soonest(
    addresses: list[str], asked: ListQuery, limit: int, tls: TlsOptions | None = None
) -> tuple[list[PendingMessage], int]:
    """Return the first `limit` pending messages of running brokers by due time, and the number of all pending ones."""
    import msgspec

    from wheelmq.delay.pending_message import PendingMessage
    from wheelmq.formats.wire import headers
    from wheelmq.formats.wire.codes import RequestCode

    first: list[PendingMessage] = []
    found = 0

    def header(place: int) -> headers.Header:
        before_ms = first[-1].due_ms if len(first) == limit else NEVER_MS
        return headers.ListTimersHeader(
            place=place, count=limit, soonest=True, listed_before_ms=before_ms, **asked._asdict()
        )

    for address in addresses:
        for answer in _answers(address, RequestCode.WMQ_LIST_TIMERS, header, tls):
            lines = list(filter(None, bytes(answer.body).split(b"\n")))
            found += int(answer.ext.get("found", len(lines)))  # an older broker lists all of them
            first += (msgspec.json.decode(line, type=PendingMessage) for line in lines)
            first.sort(key=lambda pending: (pending.due_ms, pending.queue_offset))
            del first[limit:]
    return first, found


def count(addresses: list[str], asked: ListQuery, step_ms: int, tls: TlsOptions | None = None) -> Counter[int]:
    """Return the number of messages due in each interval of `step_ms`, by the beginning of the interval."""
    import msgspec

    from wheelmq.formats.wire import headers
    from wheelmq.formats.wire.codes import RequestCode

    def header(place: int) -> headers.Header:
        return headers.CountTimersHeader(place=place, step_ms=step_ms, **asked._asdict())

    counts: Counter[int] = Counter()
    for address in addresses:
        for body in _pages(address, RequestCode.WMQ_COUNT_TIMERS, header, tls):
            counts.update(msgspec.json.decode(body, type=dict[int, int]))
    return counts


def find(address: str, topic: str, key: str, tls: TlsOptions | None = None) -> Iterator[bytes]:
    """Yield the state of each delayed message for `topic` with `key`, one JSON line each."""
    from wheelmq.formats.wire import headers
    from wheelmq.formats.wire.codes import RequestCode

    is_truncated = False

    def header(place: int) -> headers.Header:
        return headers.FindTimersHeader(topic=topic, key=key, place=place)

    for answer in _answers(address, RequestCode.WMQ_FIND_TIMERS, header, tls):
        is_truncated |= answer.ext["truncated"] == "true"
        yield from filter(None, bytes(answer.body).split(b"\n"))
    if is_truncated:
        click.echo(f"{address}: there may be more; the list has only the newest messages with this key", err=True)


def _pages(address: str, code: RequestCode, header: Callable[[int], Header], tls: TlsOptions | None) -> Iterator[bytes]:
    return (bytes(answer.body) for answer in _answers(address, code, header, tls))


def _answers(
    address: str, code: RequestCode, header: Callable[[int], Header], tls: TlsOptions | None
) -> Iterator[Command]:
    """Yield the answers up to the last. Each request continues at the place that the previous answer named."""
    from wheelmq.net.sync_connection import SyncConnection
    from wheelmq.system.tls_client import client_tls

    with closing(SyncConnection(address, tls=client_tls(tls), sign=own_sign())) as link:
        place = 0
        while True:
            answer = _call(link, code, header(place))
            yield answer
            if answer.ext.get("isLast", "true") == "true":
                return
            place = int(answer.ext["nextPlace"])


def _call(link: SyncConnection, code: RequestCode, header: Header) -> Command:
    from wheelmq.formats.wire import headers
    from wheelmq.formats.wire.codes import ResponseCode
    from wheelmq.formats.wire.frame import Command
    from wheelmq.net.errors import Refused

    answer = link.call(Command(code=code, ext=headers.write(header)))
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        raise CannotList(
            f"the broker at {link.address} cannot list pending messages, as it is no WheelMQ broker or an older one: "
            "stop it, and read its store folder with --store"
        )
    if answer.code != ResponseCode.SUCCESS:
        raise Refused(answer)
    return answer


def _from_store(store: Path, asked: ListQuery) -> Iterator[bytes]:
    """Yield the pending messages of a store folder, one JSON line each."""
    import msgspec

    from wheelmq.delay.offline import pending_in
    from wheelmq.system.disk import StoreLocked

    store = stores.store_in(store)
    try:
        for pending in pending_in(store):
            if asked.has(pending):
                yield msgspec.json.encode(pending)
    except StoreLocked as error:
        who = stores.lock_holder(Path(error.filename))
        raise click.ClickException(
            f"a broker has the store {store} open{f', {who[1]}' if who is not None else ''}: stop it first, or ask it "
            "with `wheelmq timers --namesrv HOST:PORT`"
        ) from None
    except OSError as error:
        raise click.ClickException(f"{error.filename or store}: {error.strerror or error}") from None


def counts_in(store: Path, asked: ListQuery) -> Counter[int]:
    import msgspec

    from wheelmq.delay.pending_message import PendingMessage

    pending = (msgspec.json.decode(line, type=PendingMessage) for line in _from_store(store, asked))
    return Counter(one.due_ms // MINUTE_MS * MINUTE_MS for one in pending)
