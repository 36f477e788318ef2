"""`wheelmq up --network`: the address that clients of other machines use, and the ports that are open to them."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Final, NamedTuple

import click

from wheelmq.cli.advertise import routes_to
from wheelmq.cli.exposure import EVERY
from wheelmq.cli.ports import HOST
from wheelmq.config.bounds import FAST_PORT_BELOW
from wheelmq.formats.hosts import is_loopback

DEFAULT_ROUTE: Final = "auto"
"""The value of --network without an address."""
_FAR: Final = "192.0.2.1:9"
"""An address that belongs to no machine, so the route to it is the default route."""


class ExposedPort(NamedTuple):
    """A port on which a part listens, and other machines can connect to it."""

    part: str
    host: str
    port: int

    @property
    def text(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.part:<20} {host}:{self.port}"


def network_address(given: str) -> str:
    """Return the IPv4 address for clients that --network names, or that of the default route.

    Raises click.BadParameter.
    """
    if given != DEFAULT_ROUTE:
        try:
            found = ipaddress.IPv4Address(given)
        except ValueError:
            raise click.BadParameter(f"{given!r} is no IPv4 address: {_REMEDY}", param_hint="--network") from None
        if found.is_unspecified or found.is_loopback:
            raise click.BadParameter(
                f"clients on other machines cannot connect to {given}: {_REMEDY}", param_hint="--network"
            )
        return str(found)
    address = next(iter(routes_to((_FAR,))), HOST)
    if is_loopback(address):
        raise click.BadParameter(f"this machine has no route to other machines: {_REMEDY}", param_hint="--network")
    return address


_REMEDY: Final = "name an address of this machine, as in --network=10.0.0.7"


def network_pairs(address: str) -> tuple[str, ...]:
    """Return settings of the broker as NAME=VALUE: it listens on all addresses, and clients use `address`."""
    return f"listen_host={EVERY[0]}", f"broker_ip={address}"


def open_ports(parts: Iterable[tuple[str, int | None]], broker_port: int) -> list[ExposedPort]:
    """Return the ports of parts and of their child processes that other machines can connect to, as the system has
    them. `parts` are names and process ids."""
    import psutil

    found = set()
    for part, pid in parts:
        if pid is None:
            continue
        try:
            process = psutil.Process(pid)
            for one in (process, *process.children(recursive=True)):
                found |= {
                    ExposedPort(
                        _purpose(part, connection.laddr.port, broker_port), connection.laddr.ip, connection.laddr.port
                    )
                    for connection in one.net_connections("tcp")
                    if connection.status == psutil.CONN_LISTEN and not is_loopback(connection.laddr.ip)
                }
        except psutil.Error:
            continue  # it has just ended, or belongs to another user
    return sorted(found, key=lambda one: one.port)


def _purpose(part: str, port: int, broker_port: int) -> str:
    """Return the name of a port. A broker has further ones at a fixed distance from its own."""
    if part != "broker":
        return part
    return {
        broker_port: part,
        broker_port - FAST_PORT_BELOW: "broker, fast port",
        broker_port + 1: "broker, replicas",
    }.get(port, "broker, other port")
