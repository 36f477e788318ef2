"""The addresses on which the servers of `wheelmq up` listen: can local parts reach them, and can other machines?

A server that other machines can reach may lack TLS, users, or both. `wheelmq up` warns of what it lacks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from wheelmq.cli.ports import HOST
from wheelmq.formats.hosts import is_loopback
from wheelmq.system.tls import TlsMode

EVERY: Final = ("0.0.0.0", "")
"""Hosts that mean all addresses of the machine. :: means IPv6 addresses alone: the event loop sets IPV6_V6ONLY."""

_WITHOUT_USERS: Final = {
    TlsMode.DISABLED: "There is no TLS and no password",
    TlsMode.PERMISSIVE: "Connections without TLS are accepted (tls_mode is permissive), and there is no password",
    TlsMode.ENFORCING: "There is no password, and no client needs a certificate (tls_client_auth)",
}
_WITH_USERS: Final = {
    TlsMode.DISABLED: "There is no TLS",
    TlsMode.PERMISSIVE: "Connections without TLS are accepted (tls_mode is permissive)",
}


@dataclass(frozen=True)
class Listener:
    name: str
    host: str
    """The address that it listens on, as in the setting listen_host."""
    port: int
    tls: TlsMode = TlsMode.DISABLED
    needs_certificate: bool = False
    """Whether clients with TLS need a certificate."""
    has_users: bool = False
    """Whether each request needs the signature of a user."""

    @property
    def lacks(self) -> str:
        """The protection that it lacks. An empty text if it encrypts all traffic and knows its clients."""
        is_enforcing = self.tls is TlsMode.ENFORCING
        if is_enforcing and (self.has_users or self.needs_certificate):
            return ""
        return (_WITH_USERS if self.has_users else _WITHOUT_USERS)[self.tls]

    @property
    def is_exposed(self) -> bool:
        """Whether other machines can connect to it."""
        return not is_loopback(self.host)

    @property
    def is_local(self) -> bool:
        return self.host in (*EVERY, HOST, "localhost")

    @property
    def text(self) -> str:
        every = " (all addresses of this machine)" if self.host in EVERY else ""
        return f"{self.name} {self.host}:{self.port}{every}"


def unreachable_text(listener: Listener) -> str:
    return (
        f"the {listener.name} listens on {listener.host} alone, and the other parts of `wheelmq up` connect to {HOST}: "
        f"set its listen_host to 0.0.0.0, or run the parts one by one (`wheelmq nameserver`, `wheelmq broker`, "
        "`wheelmq pipeline`)"
    )


def warnings(namesrv: Listener, broker: Listener) -> list[str]:
    found = []
    if broker.is_exposed and not namesrv.is_exposed:
        found.append(
            f"the broker listens on {broker.host}:{broker.port}, but the name server on {namesrv.host}:{namesrv.port}: "
            "clients on other machines find no route. Start with --network, or with --namesrv-host 0.0.0.0"
        )
    exposed = [one for one in (namesrv, broker) if one.is_exposed and one.lacks]
    for lacks in dict.fromkeys(one.lacks for one in exposed):
        texts = ", ".join(one.text for one in exposed if one.lacks == lacks)
        found.append(f"other machines can connect to: {texts}. {lacks}: allow only trusted machines in the firewall")
    return found
