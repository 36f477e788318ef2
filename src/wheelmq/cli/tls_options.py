"""The options for TLS of the commands that connect to servers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:
    from wheelmq.system.tls_client import TlsOptions

F = TypeVar("F", bound=Callable[..., Any])

_FILE: Final = click.Path(dir_okay=False)
_OPTIONS: Final = (
    click.option(
        "--tls/--no-tls",
        "tls_use",
        default=None,
        envvar="WHEELMQ_USE_TLS",
        show_envvar=True,
        help="Encrypt the connections. Each option below implies it.",
    ),
    click.option(
        "--tls-ca",
        "tls_ca_file",
        type=_FILE,
        envvar="WHEELMQ_TLS_CA",
        show_envvar=True,
        help="PEM file with the certificates to trust, instead of the system's authorities.",
    ),
    click.option(
        "--tls-verify",
        type=click.Choice(["full", "chain", "none"]),
        envvar="WHEELMQ_TLS_VERIFY",
        show_envvar=True,
        help="Check authority and name of servers (full, the default), only the authority (chain), or nothing (none).",
    ),
    click.option(
        "--tls-name",
        "tls_server_name",
        envvar="WHEELMQ_TLS_NAME",
        show_envvar=True,
        help="The name that the certificate of each server must have, instead of its address.",
    ),
    click.option(
        "--tls-certificate",
        "tls_certificate_file",
        type=_FILE,
        envvar="WHEELMQ_TLS_CERTIFICATE",
        show_envvar=True,
        help="PEM file with the certificate of this client, for servers that require one.",
    ),
    click.option(
        "--tls-key",
        "tls_key_file",
        type=_FILE,
        envvar="WHEELMQ_TLS_KEY",
        show_envvar=True,
        help="PEM file with its private key.",
    ),
    click.option(
        "--tls-key-password-file",
        type=_FILE,
        envvar="WHEELMQ_TLS_KEY_PASSWORD_FILE",
        show_envvar=True,
        help="File with the password of the key.",
    ),
)
_NAMES: Final = ("ca_file", "verify", "server_name", "certificate_file", "key_file", "key_password_file")


def tls_options(command: F) -> F:
    """Add the options to a command, which gets them together as its argument `tls`: TlsOptions, or None."""

    @functools.wraps(command)
    def with_tls(*args: Any, **values: Any) -> Any:
        use = values.pop("tls_use")
        chosen = {name: values.pop(f"tls_{name}") for name in _NAMES}
        return command(*args, tls=options_of(use, chosen), **values)

    decorated: Any = with_tls
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    found: F = decorated
    return found


def options_of(use: bool | None, chosen: dict[str, Any]) -> TlsOptions | None:
    """Return the TLS that the user chose, or None for plain connections. Raises click.UsageError."""
    from wheelmq.system.tls_client import TlsOptions

    given = {name: value for name, value in chosen.items() if value is not None}
    if use is False or (use is None and not given):
        return None
    try:
        return TlsOptions(**given)
    except ValueError:
        raise click.UsageError("a client certificate needs a key: give both --tls-certificate and --tls-key") from None
