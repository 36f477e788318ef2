"""The address that a broker registers at its name servers: `--advertise`, or an address of this machine.

ADR 37 has the rule and the reasons.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from wheelmq.cli.exposure import EVERY
from wheelmq.cli.part import CannotStart
from wheelmq.formats.hosts import is_loopback

if TYPE_CHECKING:
    from wheelmq.broker.settings import BrokerSettings, NodeSettings

OPTION: Final = "--advertise"
REMEDY: Final = "Name the address that clients connect to, as in --advertise 10.0.0.7"


@dataclass(frozen=True)
class Address:
    """The value of `--advertise`."""

    host: str
    port: int | None

    @property
    def text(self) -> str:
        return self.host if self.port is None else f"{self.host}:{self.port}"

    def settings(self) -> dict[str, tuple[Any, str]]:
        """Return the settings that the option sets, each with the name of the option."""
        found = {"advertised_host": self.host, "advertised_port": self.port}
        found |= {"broker_ip": self.host} if is_ipv4(self.host) else {}
        return {name: (value, OPTION) for name, value in found.items()}


class AddressType(click.ParamType[Address]):
    name = "HOST[:PORT]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Address:
        if isinstance(value, Address):
            return value
        host, sign, port = str(value).partition(":")
        if not host or ":" in port or (sign and not (port.isdecimal() and 0 < int(port) < 65_536)):
            self.fail(f"{value!r}: write HOST or HOST:PORT. HOST is a name or an IPv4 address", param, ctx)
        return Address(host, int(port) if sign else None)


advertise_option = click.option(
    OPTION,
    type=AddressType(),
    help="The address at which clients reach the broker, for routes. By default it is broker_ip, or an address of this "
    "machine, with the port that the broker listens on.",
)


def is_ipv4(host: str) -> bool:
    try:
        ipaddress.IPv4Address(host)
    except ValueError:
        return False
    return True


def with_own_address(settings: BrokerSettings, given: Mapping[str, Any]) -> BrokerSettings:
    """Return `settings` with an address for clients. `given` has the names of the settings that the user chose.

    Raises CannotStart if the machine has several addresses, and nothing says which one clients can reach.
    """
    node = settings.broker
    if "broker_ip" in given:
        return settings
    if node.advertised_host:
        return _with_ip(settings, _resolve(node.advertised_host))
    if is_ipv4(node.listen_host) and node.listen_host not in EVERY:
        return _with_ip(settings, node.listen_host)
    if node.listen_host in EVERY:
        return _with_ip(settings, choose(own_addresses(), routes_to(node.namesrv)) or node.ip)
    return settings


def choose(own: Sequence[str], routes: Sequence[str]) -> str | None:
    """Return the address that clients can reach, or None for a machine without a network.

    `own` are the addresses of this machine, and `routes` the ones from which it reaches the name servers. Raises
    CannotStart if there are several.
    """
    found = {address for address in routes if not is_loopback(address)} or set(own)
    if len(found) > 1:
        raise CannotStart(
            f"the broker listens on all addresses of this machine, and clients need one of them: "
            f"{', '.join(sorted(found))}. {REMEDY}"
        )
    return next(iter(found), None)


def own_addresses() -> list[str]:
    """Return the IPv4 addresses of this machine that other machines may reach."""
    import psutil

    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    found = (
        address.address
        for name, addresses in psutil.net_if_addrs().items()
        for address in addresses
        if name in up and address.family == socket.AF_INET
    )
    return [text for text in found if not is_loopback(text) and not ipaddress.ip_address(text).is_link_local]


def routes_to(servers: Sequence[str]) -> list[str]:
    """Return the addresses of this machine from which it reaches `servers`. An unknown name is left out."""
    found = []
    for server in servers:
        host, _, port = server.rpartition(":")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((host, int(port)))  # chooses a route, and sends no packet
            except OSError:
                continue
            found.append(probe.getsockname()[0])
    return found


def _resolve(name: str) -> str:
    """Return the IPv4 address of `name`, for message ids. Raises CannotStart."""
    try:
        found = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise CannotStart(
            f"{OPTION} {name}: this machine finds no IPv4 address of that name ({why}), and message ids need one. Add "
            "`--set broker_ip=` and the address"
        ) from None
    return str(found[0][4][0])


def _with_ip(settings: BrokerSettings, address: str) -> BrokerSettings:
    node: NodeSettings = msgspec.structs.replace(settings.broker, ip=address)
    return msgspec.structs.replace(settings, broker=node)
