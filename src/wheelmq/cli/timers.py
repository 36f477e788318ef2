"""`wheelmq timers`: list pending messages, of a running broker or of a store folder."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

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
    from wheelmq.formats.wire.frame import Command
    from wheelmq.formats.wire.timer_requests import TimerQuery
    from wheelmq.net.sync_connection import SyncConnection
    from wheelmq.system.tls_client import TlsOptions

F = TypeVar("F", bound=Callable[..., Any])

MINUTE_MS: Final = 60_000


class CannotList(click.ClickException):
    """The broker is not WheelMQ's. The text names the remedy."""


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
) -> TimerQuery:
    """Return the messages that the options choose. Raises click.UsageError."""
    from wheelmq.formats.wire.timer_requests import TimerQuery

    if store is not None and broker is not None:
        raise click.UsageError("--store and --broker exclude each other: give one of them")
    if from_ms is not None and to_ms is not None and from_ms >= to_ms:
        raise click.UsageError("nothing can be due between --from and --to: --from must be the earlier one")
    return TimerQuery(topic, from_ms or 0, NEVER_MS if to_ms is None else to_ms)


def find_addresses(namesrv: str, broker: str | None, tls: TlsOptions | None) -> list[str]:
    from wheelmq.client.session import check_address

    if broker is not None:
        check_address(broker, "a broker", 10911)
    addresses = [broker] if broker is not None else sorted(asyncio.run(find_brokers(namesrv, tls)).values())
    if not addresses:
        raise click.ClickException(f"no broker is registered at {namesrv}: is it up?")
    return addresses


def list_pending(address: str, asked: TimerQuery, tls: TlsOptions | None = None) -> Iterator[bytes]:
    """Yield the pending messages of a running broker, one JSON line each. The broker is asked page by page."""
    from wheelmq.formats.wire.timer_requests import list_request

    for answer in _answers(address, partial(list_request, asked), tls):
        yield from _lines(answer)


def list_soonest(
    addresses: list[str], asked: TimerQuery, limit: int, tls: TlsOptions | None = None
) -> tuple[list[PendingMessage], int]:
    """Return the first `limit` pending messages of running brokers by due time, and the number of all pending ones."""
    import msgspec

    from wheelmq.delay.pending_message import PendingMessage
    from wheelmq.formats.wire.timer_requests import soonest_request

    first: list[PendingMessage] = []
    found = 0

    def request(place: int) -> Command:
        before_ms = first[-1].due_ms if len(first) == limit else NEVER_MS
        return soonest_request(asked, place, limit, before_ms)

    for address in addresses:
        for answer in _answers(address, request, tls):
            lines = _lines(answer)
            found += int(answer.ext.get("found", len(lines)))  # an older broker lists all of them
            first += (msgspec.json.decode(line, type=PendingMessage) for line in lines)
            first.sort(key=lambda pending: (pending.due_ms, pending.queue_offset))
            del first[limit:]
    return first, found


def count(addresses: list[str], asked: TimerQuery, step_ms: int, tls: TlsOptions | None = None) -> Counter[int]:
    """Return the number of messages due in each interval of `step_ms`, by the beginning of the interval."""
    import msgspec

    from wheelmq.formats.wire.timer_requests import count_request

    counts: Counter[int] = Counter()
    for address in addresses:
        for answer in _answers(address, partial(count_request, asked, step_ms=step_ms), tls):
            counts.update(msgspec.json.decode(bytes(answer.body), type=dict[int, int]))
    return counts


def find(address: str, topic: str, key: str, tls: TlsOptions | None = None) -> Iterator[bytes]:
    """Yield the state of each delayed message for `topic` with `key`, one JSON line each."""
    from wheelmq.formats.wire.timer_requests import find_request

    is_truncated = False
    for answer in _answers(address, partial(find_request, topic, key), tls):
        is_truncated |= answer.ext["truncated"] == "true"
        yield from _lines(answer)
    if is_truncated:
        click.echo(f"{address}: there may be more; the list has only the newest messages with this key", err=True)


def _lines(answer: Command) -> list[bytes]:
    return list(filter(None, bytes(answer.body).split(b"\n")))


def _answers(address: str, request: Callable[[int], Command], tls: TlsOptions | None) -> Iterator[Command]:
    """Yield the answers up to the last. Each request continues at the place that the previous answer named."""
    from wheelmq.formats.wire.timer_requests import FIRST_PLACE, next_place
    from wheelmq.net.sync_connection import SyncConnection
    from wheelmq.system.tls_client import client_tls

    with closing(SyncConnection(address, tls=client_tls(tls), sign=own_sign())) as link:
        place: int | None = FIRST_PLACE
        while place is not None:
            answer = _call(link, request(place))
            yield answer
            place = next_place(answer)


def _call(link: SyncConnection, request: Command) -> Command:
    from wheelmq.formats.wire.codes import ResponseCode
    from wheelmq.net.errors import Refused

    answer = link.call(request)
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        raise CannotList(
            f"the broker at {link.address} cannot list pending messages, as it is no WheelMQ broker or an older one: "
            "stop it, and read its store folder with --store"
        )
    if answer.code != ResponseCode.SUCCESS:
        raise Refused(answer)
    return answer


def _from_store(store: Path, asked: TimerQuery) -> Iterator[bytes]:
    """Yield the pending messages of a store folder, one JSON line each."""
    import msgspec

    from wheelmq.delay.offline import pending_in
    from wheelmq.system.disk import StoreLocked

    store = stores.store_in(store)
    try:
        for pending in pending_in(store):
            if asked.has(pending.topic, pending.due_ms):
                yield msgspec.json.encode(pending)
    except StoreLocked as error:
        who = stores.lock_holder(Path(error.filename))
        raise click.ClickException(
            f"a broker has the store {store} open{f', {who[1]}' if who is not None else ''}: stop it first, or ask it "
            "with `wheelmq timers --namesrv HOST:PORT`"
        ) from None
    except OSError as error:
        raise click.ClickException(f"{error.filename or store}: {error.strerror or error}") from None


def counts_in(store: Path, asked: TimerQuery) -> Counter[int]:
    import msgspec

    from wheelmq.delay.pending_message import PendingMessage

    pending = (msgspec.json.decode(line, type=PendingMessage) for line in _from_store(store, asked))
    return Counter(one.due_ms // MINUTE_MS * MINUTE_MS for one in pending)
