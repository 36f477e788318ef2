"""`wheelmq send`: send messages, now or for later."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import click

from wheelmq.cli.bodies import given_bodies, given_keys, given_properties
from wheelmq.cli.clients import open_admin, open_producer
from wheelmq.cli.errors import namesrv_option, plain_errors
from wheelmq.cli.tables import counted
from wheelmq.cli.times import Duration, Seconds, duration_text, is_clock_time, parse_time, remaining_text, time_text
from wheelmq.cli.tls_options import tls_options
from wheelmq.formats.units import Millis

if TYPE_CHECKING:
    from wheelmq.cli.due import Due
    from wheelmq.client.delays import TooFarAhead
    from wheelmq.client.outgoing import OutgoingMessage
    from wheelmq.client.results import SendResult, SendStatus
    from wheelmq.system.clock import Clock
    from wheelmq.system.tls_client import TlsOptions

LOOK_MS: Final = 2000
"""How long a broker may take to answer what it stored."""
LESS_SAFE: Final = 3
"""Exit code if all messages are stored, and some of them less safely than requested. An error gives 1."""


@click.command(name="send", short_help="Send messages, now or for later.")
@click.argument("topic")
@click.argument("body", required=False)
@click.option("--file", type=click.Path(allow_dash=True, dir_okay=False), help="Read the body from this file.")
@click.option("--lines", "by_line", is_flag=True, help="Send each line of the file or standard input as a message.")
@click.option("--count", type=click.IntRange(min=1), default=1, help="Send each body this number of times.")
@click.option("--delay", "delay_ms", type=Duration(), help="Deliver it after this time: 500ms, 10s, 5m, 2h, 1d.")
@click.option(
    "--at",
    "at",
    help="Deliver it at this time: +10s, 18:30, tomorrow, monday 09:00, or ISO 8601. The zone is the local one.",
)
@click.option(
    "--delay-in-seconds",
    type=Seconds(),
    help="Deliver it after this number of seconds. A block stores it: up to a year ahead.",
)
@click.option(
    "--level", type=click.IntRange(min=1), help="Deliver it after the delay of this level, as RocketMQ 4 does."
)
@click.option("--key", "keys", multiple=True, help="A business key of the message. Repeat it for more.")
@click.option("--keys", "words", help="Business keys, separated by spaces.")
@click.option("--tags", help="A tag by which consumers can filter.")
@click.option("--property", "pairs", multiple=True, metavar="NAME=VALUE", help="A property. Repeat it for more.")
@namesrv_option
@click.option("--json", "as_json", is_flag=True, help="Print a JSON line for each message.")
@tls_options
def command(
    topic: str,
    body: str | None,
    file: str | None,
    by_line: bool,
    count: int,
    delay_ms: int | None,
    at: str | None,
    delay_in_seconds: int | None,
    level: int | None,
    keys: tuple[str, ...],
    words: str | None,
    tags: str | None,
    pairs: tuple[str, ...],
    namesrv: str,
    as_json: bool,
    tls: TlsOptions | None,
) -> None:
    """Send BODY to TOPIC. A topic that does not exist is created.

    BODY is a text, or - for the standard input. --file reads a file instead.

    \b
    The latest due time:
      --delay, --at       3 days, or the broker's timer_max_delay_seconds
      --delay-in-seconds  a year, or the broker's block_max_delay_seconds
      --level             1s 5s 10s 30s 1m 2m ... 10m 20m 30m 1h 2h are levels 1 to 18, or the broker's own table;
                          a level above the highest counts as the highest

    The printed due time is the one that the broker stored. "about" before it marks an estimate from this machine's
    clock: the broker could not be asked, or the message is in a block, where the broker cannot find it by its id.

    Several messages are sent one after the other, in order. An error ends the command and prints the number of
    messages that were sent before it.
    """
    from wheelmq.client.outgoing import OutgoingMessage
    from wheelmq.formats.disk import properties as props
    from wheelmq.system.clock import SystemClock

    if sum(asked is not None for asked in (delay_ms, at, delay_in_seconds, level)) > 1:
        raise click.UsageError("--delay, --at, --delay-in-seconds and --level exclude each other: give one of them")
    clock = SystemClock()
    message = OutgoingMessage(
        body=b"",
        keys=given_keys(keys, words),
        tags=tags,
        properties=given_properties(pairs) | ({} if level is None else {props.DELAY: str(level)}),
        delay_ms=delay_ms,
        deliver_at_ms=None if at is None else _due_ms(at, clock.now_ms()),
        delay_in_seconds=delay_in_seconds,
    )
    bodies = (one for one in given_bodies(body, file, by_line=by_line) for _ in range(count))
    sending = _MessageSender(topic, message, level, clock, as_json=as_json, is_one=count == 1 and not by_line)
    try:
        with plain_errors(namesrv):
            asyncio.run(sending.run(namesrv, tls, bodies))
    except click.ClickException as error:
        if not sending.sent:
            raise
        were = "was" if sending.sent == 1 else "were"
        before = f"{counted(sending.sent, 'message')} {were} sent before it{sending.less_safe_text()}"
        raise click.ClickException(f"{error.message} ({before})") from None
    sys.exit(LESS_SAFE if sending.less_safe_text() else 0)


class _MessageSender:
    """Sends bodies with the options of one message, and prints each result."""

    def __init__(
        self, topic: str, message: OutgoingMessage, level: int | None, clock: Clock, *, as_json: bool, is_one: bool
    ) -> None:
        self._topic = topic
        self._message = message
        self._level = level
        self._clock = clock
        self._as_json = as_json
        self._is_one = is_one
        self._statuses: Counter[SendStatus] = Counter()

    @property
    def sent(self) -> int:
        """The number of stored messages."""
        return self._statuses.total()

    def less_safe_text(self) -> str:
        """Return the number of messages of each status other than SEND_OK; an empty text without any."""
        found = [f"{count} {status}" for status, count in sorted(self._statuses.items()) if status != "SEND_OK"]
        return f"; stored less safely than requested: {', '.join(found)}" if found else ""

    async def run(self, namesrv: str, tls: TlsOptions | None, bodies: Iterable[bytes]) -> None:
        """Send all bodies. Raises click.ClickException, and the errors of a send."""
        from wheelmq.cli.due import Due, Levels, due_of_sent
        from wheelmq.client.delays import TooFarAhead

        async with (
            open_producer(namesrv, tls, self._clock) as producer,
            open_admin(namesrv, tls, timeout_ms=LOOK_MS) as admin,
        ):
            levels = Levels(admin.broker_config)
            options = {name: getattr(self._message, name) for name in self._message.__struct_fields__ if name != "body"}
            try:
                for body in bodies:
                    result = await producer.send(self._topic, body, **options)
                    self._statuses[result.status] += 1
                    is_delayed = self._level is not None or result.due_ms is not None
                    self._show(result, await due_of_sent(admin, levels, result) if is_delayed else Due(None))
            except TooFarAhead as error:
                raise click.ClickException(_too_far_text(error)) from None
        if not self._as_json and not self._is_one:
            click.echo(f"Sent {counted(self.sent, 'message')}{self.less_safe_text()}.")

    def _show(self, result: SendResult, due: Due) -> None:
        if self._as_json:
            click.echo(_as_json(self._topic, result, due))
        elif self._is_one:
            click.echo(sent_text(self._topic, result, due, self._level, self._clock.now_ms()))
        else:
            status = "" if result.status == "SEND_OK" else f"  {result.status}"
            click.echo(f"{result.unique_key}  {when_text(due, self._level, self._clock.now_ms())}{status}")


def _due_ms(at: str, now_ms: Millis) -> Millis:
    try:
        deliver_at_ms = parse_time(at, now_ms)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--at") from None
    if deliver_at_ms < now_ms:
        past = duration_text(now_ms - deliver_at_ms)
        raise click.BadParameter(
            f"{at} lies {past} in the past: it is {time_text(deliver_at_ms)}. Leave --at out to deliver at once"
            + (f", or write 'tomorrow {at.strip()}'" if is_clock_time(at) else ""),
            param_hint="--at",
        )
    return deliver_at_ms


def _too_far_text(error: TooFarAhead) -> str:
    """Return the error and the remedies for a due time beyond the reach of the timer or the blocks."""
    asked, limit = duration_text(error.asked_ms), duration_text(error.limit_ms)
    if error.is_in_block:
        return (
            f"that is {asked} ahead, and this broker's blocks reach {limit}: start the broker with "
            f"`wheelmq up --set block_max_delay_seconds={error.seconds}` or more"
        )
    block = f"send it with --delay-in-seconds {error.seconds}, which reaches a year, or " if error.fits_block else ""
    return f"that is {asked} ahead, and this broker's timer reaches {limit}: {block}{error.longer_timer}"


def _as_json(topic: str, result: SendResult, due: Due) -> str:
    return json.dumps(
        {
            "status": result.status,
            "topic": topic,
            "broker": result.queue.broker_name,
            "queue_id": result.queue.queue_id,
            "message_id": result.message_id,
            "unique_key": result.unique_key,
            "due_ms": due.at_ms,
            "due_is_exact": due.is_exact,
            "level": due.level,
            "recall_handle": result.recall_handle,
        }
    )


def sent_text(topic: str, result: SendResult, due: Due, asked_level: int | None, now_ms: Millis) -> str:
    found = [
        f"Sent to queue {result.queue.queue_id} of {topic} on {result.queue.broker_name}, "
        f"{when_text(due, asked_level, now_ms)}.",
        f"  unique key {result.unique_key}",
        f"  message id {result.message_id}",
    ]
    if due.level is not None and asked_level is not None and due.level != asked_level:
        found.append(f"  level      {due.level}, the broker's highest: it has no level {asked_level}")
    if result.status != "SEND_OK":
        found.append(f"  status     {result.status}: stored, but less safely than requested")
    return "\n".join(found)


def when_text(due: Due, asked_level: int | None, now_ms: Millis) -> str:
    if due.at_ms is not None:
        left = remaining_text(max(0, due.at_ms - now_ms))
        level = "" if due.level is None else f", by {due.level_text}"
        return f"due {due.about}{time_text(due.at_ms)} (in {left}){level}"
    if asked_level is None:
        return "for delivery at once"
    level = f"level {asked_level}" if due.level is None else due.level_text
    return f"for delivery after {level}, whose delay is unknown"
