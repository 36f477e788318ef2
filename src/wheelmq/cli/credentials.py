"""The access key of a command: from the environment, or from a file that it names. Never from the command line, which
other users of the machine can read."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from wheelmq.system.credentials import CREDENTIALS_VARIABLE, HalfCredentials, access_key_in

if TYPE_CHECKING:
    from wheelmq.client.producer import ProducerSettings
    from wheelmq.formats.wire.frame import Command
    from wheelmq.formats.wire.signature import AccessKey

LINE_CHARS_MAX = 4096


def own_access_key() -> AccessKey | None:
    """Return the access key of the environment; None without one. Raises click.ClickException."""
    try:
        found = access_key_in(os.environ)
    except HalfCredentials as problem:
        raise click.ClickException(str(problem)) from None
    path = os.environ.get(CREDENTIALS_VARIABLE)
    return found if found is not None or not path else key_of_file(Path(path))


def key_of_file(path: Path) -> AccessKey:
    """Return the access key in a file. Raises click.ClickException."""
    from wheelmq.auth.credentials_file import BadCredentials, read_credentials
    from wheelmq.system.disk import Disk

    try:
        return read_credentials(Disk(), path)
    except BadCredentials as problem:
        raise click.ClickException(str(problem)) from None
    except OSError as error:
        raise click.ClickException(f"{path} cannot be read: {error.strerror}") from None


def own_sign() -> Callable[[Command], None] | None:
    """Return the function that signs requests with the access key of the environment."""
    key = own_access_key()
    return None if key is None else key.sign


def own_settings() -> ProducerSettings:
    """Return the settings of a producer with the access key of the environment."""
    from wheelmq.client.producer import ProducerSettings

    return ProducerSettings(access_key=own_access_key())


def ask_secret(what: str) -> str:
    """Return a secret from the terminal, typed twice, or the first line of the standard input."""
    if sys.stdin.isatty():
        found: str = click.prompt(what, hide_input=True, confirmation_prompt=True)
        return found
    return sys.stdin.readline(LINE_CHARS_MAX).rstrip("\r\n")
