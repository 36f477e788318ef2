"""Where the commands `users` and `acl` make their changes: at running brokers, or in the store of a stopped one."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from wheelmq.cli import stores
from wheelmq.cli.brokers import find_masters_and_slaves
from wheelmq.cli.credentials import own_sign
from wheelmq.cli.errors import namesrv_option
from wheelmq.cli.tls_options import tls_options

if TYPE_CHECKING:
    from wheelmq.auth.offline import OfflineAccess
    from wheelmq.formats.wire.codes import RequestCode
    from wheelmq.formats.wire.frame import Command
    from wheelmq.system.tls_client import TlsOptions

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class AccessPlace:
    """Where a command works."""

    namesrv: str
    broker: str | None = None
    """The only broker that gets the requests; None for all brokers of the name servers."""
    tls: TlsOptions | None = None
    store: Path | None = None
    """The store of a stopped broker, which the command changes instead of sending requests."""
    key_file: str = ""


def place_options(command: F) -> F:
    """Add the options that say where a command works. The command gets them together as its argument `place`."""

    @functools.wraps(command)
    def with_place(*args: Any, **values: Any) -> Any:
        place = AccessPlace(**{one.name: values.pop(one.name) for one in fields(AccessPlace)})
        return command(*args, place=place, **values)

    decorated: Any = tls_options(with_place)
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    found: F = namesrv_option(decorated)
    return found


_OPTIONS: Final = (
    click.option("--broker", help="HOST:PORT of one broker, instead of all brokers of the name servers."),
    click.option(
        "--store",
        type=click.Path(file_okay=False, path_type=Path),
        help="The store of a stopped broker, such as HOME/store. So the first user exists before the first start.",
    ),
    click.option(
        "--key-file", default="", help="With --store: the file of the key that encrypts secrets, if it is elsewhere."
    ),
)


class AccessRequests:
    """Sends requests to brokers, each with the signature of the access key in the environment."""

    def __init__(self, place: AccessPlace) -> None:
        """Raises the errors of `find_masters_and_slaves`, and ValueError for an address that is none."""
        from wheelmq.client.session import check_address
        from wheelmq.system.tls_client import client_tls

        if place.broker is not None:
            check_address(place.broker, "a broker", 10911)
            self._addresses = [place.broker]
        else:
            self._addresses = asyncio.run(find_masters_and_slaves(place.namesrv, place.tls))
        if not self._addresses:
            raise click.ClickException(f"no broker is registered at {place.namesrv}: is it up?")
        self._sign, self._tls = own_sign(), client_tls(place.tls)

    def ask_all(self, code: RequestCode, body: object = None, **fields: object) -> list[Command]:
        """Return the answer of each broker. Raises the first CallError or Refused after all brokers got the request."""
        from wheelmq.net.errors import CallError, Refused

        found: list[Command] = []
        problems: list[CallError | Refused] = []
        for address in self._addresses:
            try:
                found.append(self._ask(address, code, body, fields))
            except (CallError, Refused) as error:
                problems.append(error)
        if problems:
            raise problems[0]
        return found

    def ask_first(self, code: RequestCode, body: object = None, **fields: object) -> Command:
        """Return the answer of the first broker. All brokers of a cluster get the same changes."""
        return self._ask(self._addresses[0], code, body, fields)

    def _ask(self, address: str, code: RequestCode, body: object, fields: dict[str, object]) -> Command:
        from wheelmq.formats.wire import bodies, headers
        from wheelmq.formats.wire.frame import Command
        from wheelmq.net.sync_connection import SyncConnection

        raw = b"" if body is None else bodies.write(body)
        with closing(SyncConnection(address, tls=self._tls, sign=self._sign)) as link:
            return link.ask(Command(code=code, ext=headers.texts(**fields), body=raw))


@contextmanager
def offline(place: AccessPlace) -> Iterator[OfflineAccess]:
    """Open the users and lists of a stopped broker. Converts errors to those of click."""
    from wheelmq.auth.offline import OfflineAccess
    from wheelmq.config.errors import ConfigError
    from wheelmq.system.disk import StoreLocked

    store = place.store
    assert store is not None
    try:
        with OfflineAccess(stores.store_in(store), place.key_file) as found:
            yield found
    except StoreLocked as error:
        raise click.ClickException(
            f"a broker has the store {store} open. Leave --store out to send the change to the broker "
            f"({Path(error.filename).parent})"
        ) from None
    except (ConfigError, ValueError) as problem:
        raise click.ClickException(str(problem)) from None
    except OSError as error:
        raise click.ClickException(f"{error.filename or store}: {error.strerror or error}") from None
