"""Errors of the commands, with the remedy in each text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import click

DEFAULT_NAMESRV: Final = "127.0.0.1:9876"

namesrv_option = click.option(
    "--namesrv",
    envvar="WHEELMQ_NAMESRV",
    default=DEFAULT_NAMESRV,
    show_default=True,
    help="Name servers: HOST:PORT;HOST:PORT. A host without a port means port 9876. The variable WHEELMQ_NAMESRV sets "
    "them too.",
)


@contextmanager
def plain_errors(namesrv: str) -> Iterator[None]:
    """Convert errors of the client to click's errors, which end with exit code 1."""
    from wheelmq.client.routes import NoBroker, NoNameServer, NotWritable, TopicUnknown
    from wheelmq.net.errors import CallError, Refused
    from wheelmq.system.tls import TlsError

    try:
        yield
    except NoNameServer as error:
        raise click.ClickException(
            f"no name server answers: {error}. Start one with `wheelmq up`, or name another with --namesrv."
            f"{_tls_hint(error)}"
        ) from None
    except NotWritable as error:
        raise click.ClickException(
            f"{error}. `wheelmq topics` shows its permission, and `wheelmq admin updateTopic` changes it."
        ) from None
    except NoBroker as error:
        raise click.ClickException(
            f"{error}. Start a broker with `wheelmq up`, or see its log; or name another name server with --namesrv."
        ) from None
    except TopicUnknown as error:
        raise click.ClickException(str(error.args[0])) from None
    except Refused as error:
        raise click.ClickException(f"the server refused: {error}") from None
    except CallError as error:
        raise click.ClickException(f"{error}. Is the broker up? (name server {namesrv}){_tls_hint(error)}") from None
    except TlsError as error:
        raise click.ClickException(str(error)) from None
    except ValueError as error:
        raise click.ClickException(str(error)) from None


def _tls_hint(error: Exception) -> str:
    """Return a hint if a server may accept only encrypted connections."""
    was_closed = any(text in str(error) for text in ("closed the connection", "connection was closed"))
    return " A server that accepts only TLS does this too: try --tls." if was_closed else ""
