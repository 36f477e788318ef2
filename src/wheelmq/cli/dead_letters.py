"""`wheelmq dead-letters`: list, inspect and resend the messages that groups could not process."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import json
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from wheelmq.cli.bodies import body_fields, body_text
from wheelmq.cli.clients import open_admin, open_dead_letters
from wheelmq.cli.errors import namesrv_option, plain_errors
from wheelmq.cli.tables import counted, json_option, print_structs, print_table, when_text
from wheelmq.cli.tls_options import tls_options
from wheelmq.formats import names

if TYPE_CHECKING:
    from wheelmq.client.dead_letters import DeadLetter, DeadLetters
    from wheelmq.client.message import ReceivedMessage
    from wheelmq.system.tls_client import TlsOptions

SHOWN_CHARS: Final = 2000


class LetterRow(msgspec.Struct):
    """A row of `wheelmq dead-letters list`."""

    group: str
    topic: str | None
    """The topic that the message was sent to; null if the letter does not name it."""
    message_id: str
    """The id of the letter, for --id."""
    unique_key: str | None
    keys: list[str]
    tags: str | None
    reconsume_times: int
    """The number of deliveries before the message became a dead letter."""
    stored_ms: int
    born_ms: int
    broker: str
    queue_id: int
    """The queue of the dead letter topic: 0, unless the topic has more queues than brokers give it."""
    queue_offset: int
    resent: bool
    """Whether a copy of the letter was resent."""


class LetterDetails(LetterRow):
    """A row of `wheelmq dead-letters inspect`."""

    properties: dict[str, str]
    body: str | None
    """The body as text; null if it is not UTF-8."""
    body_hex: str | None
    """The body in hexadecimal digits if it is not UTF-8; else null."""
    problem: str | None
    """The reason why the body cannot be decoded; else null."""


@click.group(name="dead-letters", short_help="List, inspect and resend dead letters.")
def command() -> None:
    """List, inspect and resend dead letters: messages that a group could not process.

    A message becomes a dead letter after its last retry (16 by default). It stays in the topic %DLQ%GROUP until the
    broker deletes old log files.
    """


group_option = click.option("--group", required=True, help="The consumer group.")
key_option = click.option("--key", help="The letters with this unique or business key.")
id_option = click.option("--id", "ids", multiple=True, help="The letter with this message id. Repeat it for more.")


@command.command(name="list")
@click.option("--group", help="Only this group. Otherwise all groups.")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="Rows of the table.")
@namesrv_option
@json_option
@tls_options
def list_(group: str | None, limit: int, namesrv: str, as_json: bool, tls: TlsOptions | None) -> None:
    """List dead letters. The table has the newest ones; the JSON has all, by group, broker and queue."""
    with plain_errors(namesrv):
        rows = _rows(namesrv, tls, group)
        if as_json:
            print_structs(rows)
            return
        counter = itertools.count()
        numbered = ((row.stored_ms, next(counter), row) for row in rows)
        newest = [row for _, _, row in sorted(heapq.nlargest(limit, numbered))]
        count = next(counter)
    if not newest:
        click.echo("There are no dead letters." if group is None else f"The group {group} has no dead letters.")
        return
    cells = [
        (
            when_text(row.stored_ms),
            row.group,
            row.topic or "",
            " ".join(row.keys),
            row.message_id,
            "resent" if row.resent else "dead",
        )
        for row in newest
    ]
    columns = ("since (local time)", "group", "topic", "keys", "message id", "state")
    title = counted(count, "dead letter")
    more = f", the newest {len(newest)}" if count > len(newest) else ""
    print_table(title + more, columns, cells, may_go=("keys", "topic", "since (local time)"))


@command.command(name="inspect")
@group_option
@key_option
@id_option
@namesrv_option
@json_option
@tls_options
def inspect(
    group: str, key: str | None, ids: tuple[str, ...], namesrv: str, as_json: bool, tls: TlsOptions | None
) -> None:
    """Show the body and the properties of dead letters."""
    chosen = _chosen(key, ids, every=False)
    with plain_errors(namesrv):
        found = asyncio.run(_found(namesrv, tls, group, chosen))
    details = [letter_details(group, letter) for letter in found]
    if as_json:
        print_structs(details)
        return
    for one in details:
        click.echo(details_text(one))


@command.command(name="resend")
@group_option
@key_option
@id_option
@click.option("--all", "every", is_flag=True, help="All letters of the group that are not resent yet.")
@namesrv_option
@click.option("--json", "as_json", is_flag=True, help="Print a JSON line for each letter.")
@tls_options
def resend(
    group: str, key: str | None, ids: tuple[str, ...], every: bool, namesrv: str, as_json: bool, tls: TlsOptions | None
) -> None:
    """Deliver dead letters again, to the members of the group and to no other group.

    For each letter the command appends a copy to the retry topic of the group. The letter stays where it is. A letter
    with a stored copy is left out, so a letter is resent at most once. If the copy becomes a dead letter again, that is
    another letter.

    \b
    When the command dies, or a connection breaks, in the middle:
      - each letter has one copy or none, and none is lost;
      - run the same command again: it reads the stored copies first, and continues with the other letters.

    Two resends of a group exclude each other.
    """
    run = _Resend(group, _chosen(key, ids, every=every), as_json=as_json)
    try:
        with plain_errors(namesrv):
            asyncio.run(run.run(namesrv, tls))
    except click.ClickException as error:
        if not run.resent:
            raise
        raise click.ClickException(f"{error.message} ({run.resent} letters were resent before it)") from None


class _Choice(msgspec.Struct, frozen=True):
    key: str | None
    ids: frozenset[str]

    def has(self, letter: DeadLetter) -> bool:
        if self.ids:
            return letter.message_id in self.ids
        if self.key is None:
            return True
        from wheelmq.formats.disk import properties as props

        found = letter.record.message.properties
        return self.key == found.get(props.UNIQ_KEY) or self.key in found.get(props.KEYS, "").split()

    def missing_text(self, group: str, found: set[str]) -> str | None:
        """Return the error if no letter is found, or an id belongs to none."""
        if self.key is None and not self.ids and not found:
            return f"the group {group} has no dead letters"
        where = f"`wheelmq dead-letters list --group {group}` lists them"
        if self.key is not None and not found:
            return f"the group {group} has no dead letter with the key {self.key}: {where}"
        missing = sorted(self.ids - found)
        return f"the group {group} has no dead letter {', '.join(missing)}: {where}" if missing else None


def _chosen(key: str | None, ids: tuple[str, ...], *, every: bool) -> _Choice:
    given = [bool(key), bool(ids), every].count(True)
    if given == 1:
        return _Choice(key, frozenset(one.upper() for one in ids))
    raise click.UsageError("give one of --key, --id and --all" if given else "choose letters with --key or --id")


def _rows(namesrv: str, tls: TlsOptions | None, group: str | None) -> Iterator[LetterRow]:
    """Yield the letters of a group, or of all groups."""
    groups = asyncio.run(_groups_with_letters(namesrv, tls)) if group is None else [group]
    with asyncio.Runner() as runner:
        for one in groups:
            letters = _letters(namesrv, tls, one)
            while (letter := runner.run(_next(letters))) is not None:
                yield letter_row(one, letter)


async def _next(letters: AsyncIterator[DeadLetter]) -> DeadLetter | None:
    return await anext(letters, None)


async def _groups_with_letters(namesrv: str, tls: TlsOptions | None) -> list[str]:
    async with open_admin(namesrv, tls) as admin:
        prefix = names.DEAD_LETTER_PREFIX
        return [topic.removeprefix(prefix) for topic in await admin.topics() if topic.startswith(prefix)]


async def _letters(namesrv: str, tls: TlsOptions | None, group: str) -> AsyncIterator[DeadLetter]:
    async with open_dead_letters(namesrv, tls, group) as letters:
        async for letter in letters.read():
            yield letter


async def _found(namesrv: str, tls: TlsOptions | None, group: str, chosen: _Choice) -> list[DeadLetter]:
    found = [letter async for letter in _letters(namesrv, tls, group) if chosen.has(letter)]
    problem = chosen.missing_text(group, {letter.message_id for letter in found})
    if problem is not None:
        raise click.ClickException(problem)
    return found


class _Resend:
    """Resends the chosen letters of a group, and prints a line for each."""

    def __init__(self, group: str, chosen: _Choice, *, as_json: bool) -> None:
        self._group = group
        self._chosen = chosen
        self._as_json = as_json
        self.resent = 0

    async def run(self, namesrv: str, tls: TlsOptions | None) -> None:
        """Raises click.ClickException, Refused."""
        from wheelmq.client.dead_letters import ResendRejected
        from wheelmq.net.errors import CallError

        found = set()
        async with open_dead_letters(namesrv, tls, self._group) as letters:
            try:
                await letters.begin_resend()
                async for letter in letters.read():
                    if self._chosen.has(letter):
                        found.add(letter.message_id)
                        await self._one(letters, letter)
            except ResendRejected as error:
                raise click.ClickException(str(error)) from None
            except CallError as error:
                if not found:
                    raise
                raise click.ClickException(
                    f"{error}. Run the command again: it first reads the copies that are stored"
                ) from None
        problem = self._chosen.missing_text(self._group, found)
        if problem is not None:
            raise click.ClickException(problem)
        if not self._as_json:
            click.echo(f"{self.resent} of {len(found)} letters were resent to the group {self._group}.")

    async def _one(self, letters: DeadLetters, letter: DeadLetter) -> None:
        """Resend a letter that is not resent yet, and print the result."""
        copy = None if letter.is_resent else await letters.resend(letter)
        self.resent += copy is not None
        if self._as_json:
            line = {
                "group": self._group,
                "topic": letter.topic,
                "message_id": letter.message_id,
                "result": "already resent" if copy is None else "resent",
                "copy_message_id": None if copy is None else copy.message_id,
                "status": None if copy is None else copy.status,
            }
            click.echo(json.dumps(line))
        elif copy is None:
            click.echo(f"{letter.message_id}  was resent before")
        else:
            click.echo(f"{letter.message_id}  resent as {copy.message_id}")


def letter_row(group: str, letter: DeadLetter) -> LetterRow:
    return LetterRow(**_row_fields(group, letter))


def _row_fields(group: str, letter: DeadLetter) -> dict[str, Any]:
    from wheelmq.formats.disk import properties as props

    record, found = letter.record, letter.record.message.properties
    return {
        "group": group,
        "topic": letter.topic,
        "message_id": letter.message_id,
        "unique_key": found.get(props.UNIQ_KEY),
        "keys": found.get(props.KEYS, "").split(),
        "tags": found.get(props.TAGS),
        "reconsume_times": record.message.reconsume_times,
        "stored_ms": record.store_ms,
        "born_ms": record.message.born_ms,
        "broker": letter.broker_name,
        "queue_id": record.message.queue_id,
        "queue_offset": record.queue_offset,
        "resent": letter.is_resent,
    }


def letter_details(group: str, letter: DeadLetter) -> LetterDetails:
    from wheelmq.client.message import MessageError, received

    fields: dict[str, Any] = {"body": None, "body_hex": None}
    problem = None
    try:
        message: ReceivedMessage = received(letter.record, letter.broker_name, letter.record.store_ms)
        fields = body_fields(message.body)
    except MessageError as error:
        problem = str(error)
    properties = letter.record.message.properties
    return LetterDetails(**_row_fields(group, letter), properties=properties, problem=problem, **fields)


def details_text(one: LetterDetails) -> str:
    """Return a letter as lines for a terminal."""
    raw = one.body.encode() if one.body is not None else bytes.fromhex(one.body_hex or "")
    head = (
        ("message id", one.message_id),
        ("topic", one.topic or "unknown"),
        ("sent", when_text(one.born_ms)),
        ("dead since", when_text(one.stored_ms)),
        ("deliveries", str(one.reconsume_times)),
        ("state", "resent" if one.resent else "dead"),
    )
    lines = [f"{name:<12}{value}" for name, value in head]
    lines += [f"  {name}={value}" for name, value in sorted(one.properties.items())]
    body = f"the body cannot be decoded: {one.problem}" if one.problem else body_text(raw, SHOWN_CHARS)
    return "\n".join((*lines, body, ""))
