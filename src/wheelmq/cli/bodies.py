"""The bodies and properties of messages that a command line gives: an argument, a file, or the standard input."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Final

import click

STDIN: Final = "-"
_OPTION_OF: Final = {
    "KEYS": "--key",
    "TAGS": "--tags",
    "DELAY": "--level",
    "TIMER_DELAY_MS": "--delay",
    "TIMER_DELAY_SEC": "--delay",
    "TIMER_DELIVER_MS": "--at",
    "delayInSeconds": "--delay-in-seconds",
}
"""Properties that have an option of their own."""


def given_bodies(body: str | None, file: str | None, *, by_line: bool) -> Iterator[bytes]:
    """Yield the bodies of the messages to send: the argument, a file, or with `by_line` each line of the file.

    Lines are yielded while they arrive, without their ends; empty ones are left out. Raises click.UsageError.
    """
    if body is not None and file is not None:
        raise click.UsageError("BODY and --file exclude each other: give one of them")
    if body is None and file is None:
        raise click.UsageError("Missing argument 'BODY': give a text, - for the standard input, or --file PATH")
    if by_line and body not in (None, STDIN):
        raise click.UsageError("--lines reads a file or the standard input: give --file PATH, or - for BODY")
    if body is not None and body != STDIN:
        if not body:
            raise click.UsageError("BODY is empty: a message needs one byte at least")
        yield body.encode()
        return
    name = file or STDIN
    with _opened(name) as source:
        if by_line:
            yield from filter(None, (line.rstrip(b"\r\n") for line in source))
            return
        whole = source.read()
    if not whole:
        raise click.UsageError(f"{'the standard input' if name == STDIN else name} is empty: a message needs a byte")
    yield whole


def _opened(name: str) -> IO[bytes]:
    try:
        return click.open_file(name, "rb")
    except OSError as error:
        raise click.BadParameter(f"{name} cannot be read: {error.strerror}", param_hint="--file") from None


def given_properties(pairs: tuple[str, ...]) -> dict[str, str]:
    """Return the properties that --property gives. Raises click.BadParameter."""
    found = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign or not name or not value:
            raise click.BadParameter(f"{pair!r}: write NAME=VALUE, both not empty", param_hint="--property")
        if name in _OPTION_OF:
            raise click.BadParameter(f"{name} is set by {_OPTION_OF[name]}", param_hint="--property")
        found[name] = value
    return found


def given_keys(keys: tuple[str, ...], words: str | None) -> list[str]:
    """Return the business keys of --key and --keys. Raises click.BadParameter for a key with a blank."""
    for key in keys:
        if not key or key.split() != [key]:
            raise click.BadParameter(f"{key!r}: a key is not empty and has no blanks. Repeat --key", param_hint="--key")
    return [*keys, *(words or "").split()]


def body_fields(body: bytes) -> dict[str, str | None]:
    """Return the JSON fields of a body: `body` if it is UTF-8, else `body_hex`. The other one is None."""
    try:
        return {"body": body.decode(), "body_hex": None}
    except UnicodeDecodeError:
        return {"body": None, "body_hex": body.hex()}


def body_text(body: bytes, chars_max: int) -> str:
    """Return the beginning of a body for a terminal, without control characters."""
    text = body[: chars_max * 4].decode("utf-8", "replace")
    shown = "".join(sign if sign.isprintable() else "\ufffd" for sign in text[:chars_max])
    return shown + ("…" if len(text) > chars_max else "")
