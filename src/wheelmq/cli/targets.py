"""Targets of `wheelmq ship`, `backup` and `restore`: a folder, or a URL of an object store."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from wheelmq.cli import stores
from wheelmq.cli.part import CannotStart, say

if TYPE_CHECKING:
    from wheelmq.backup.target import Target

target_argument = click.argument("target")
storage_option = click.option(
    "--storage",
    "pairs",
    multiple=True,
    metavar="KEY=VALUE",
    help="An option of the object store's package, such as endpoint_url=http://127.0.0.1:9000. Repeat it for more. "
    "Keys and passwords belong into the environment.",
)
store_option = click.option(
    "--store",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the store, instead of HOME/store.",
)
_LOCAL: Final = ("file://", "local://")
_ERRORS: Final = frozenset({"failed", "problem"})
"""Events that are errors."""


def open_target(name: str, pairs: tuple[str, ...]) -> Target:
    """Return the target that a folder or a URL names. Raises CannotStart, and OSError if it cannot be reached now."""
    from wheelmq.backup.object_store import ObjectStoreTarget, TargetUnusable
    from wheelmq.backup.target import FolderTarget
    from wheelmq.store.ship_status import has_raw_password
    from wheelmq.system.disk import Disk

    if "://" not in name or name.startswith(_LOCAL):
        if pairs:
            raise CannotStart("--storage is for object stores, and the target is a folder")
        return FolderTarget(Disk(), Path(name.partition("://")[2] or name).absolute())
    if has_raw_password(name):
        raise CannotStart(
            "the password in the URL of the target has a / or a space: percent-encode / as %2F in the password, and a "
            "space as %20"
        )
    options: dict[str, Any] = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign:
            raise CannotStart(f"{pair!r} is no option of a storage: write KEY=VALUE")
        options[key] = value
    try:
        return ObjectStoreTarget.open(name, options)
    except TargetUnusable as error:
        raise CannotStart(f"{error.filename}: {error.strerror}") from None


def find_store(home: Path, store: Path | None) -> Path:
    """Return the store of a home, or the one that is named. Raises CannotStart."""
    folder = (home if store is None else store).absolute()
    for found in (folder, folder / stores.STORE):
        if (found / "commitlog").is_dir() or (found / "lock").is_file():
            return found
    raise CannotStart(f"{folder} is no store, and has none: name one with --home or --store")


def error_text(error: Exception, target: str) -> str:
    """Return the text of an error, with the file or object that it is about, and without the password of `target`."""
    from wheelmq.store.ship_status import public_text

    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        text = error.strerror + (f": {error.filename}" if error.filename else "")
    return public_text(text, target)


def print_event(as_json: bool, event: str, text: str, **fields: object) -> None:
    """Print an event of a copy: a JSON line, or a sentence. The sentence of an error goes to the standard error."""
    if as_json or event not in _ERRORS:
        say(as_json, event, text, **fields)
    else:
        click.echo(text, err=True)


def end_failed(as_json: bool, error: Exception, target: str, code: int) -> NoReturn:
    """Print the reason of a failed copy on the standard error, also as an event with `as_json`, and exit."""
    why = error_text(error, target)
    if as_json:
        say(as_json, "failed", "", why=why)
    click.echo(f"Error: {why}", err=True)
    sys.exit(code)
