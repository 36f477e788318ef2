"""The addresses on which the servers of `wheelmq up` listen: can local parts reach them, and can other machines?

A server that other machines can reach has no password, and TLS only with a certificate. `wheelmq up` warns of both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from wheelmq.cli.ports import HOST
from wheelmq.formats.hosts import is_loopback
from wheelmq.system.tls import TlsMode

EVERY: Final = ("0.0.0.0", "")
"""Hosts that mean all addresses of the machine. :: means IPv6 addresses alone: the event loop sets IPV6_V6ONLY."""


@dataclass(frozen=True)
class Listener:
    name: str
    host: str
    """The address that it listens on, as in the setting listen_host."""
    port: int
    tls: TlsMode = TlsMode.DISABLED
    needs_certificate: bool = False
    """Whether clients with TLS need a certificate."""

    @property
    def is_closed(self) -> bool:
        """Whether only clients with a certificate are accepted."""
        return self.tls is TlsMode.ENFORCING and self.needs_certificate

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
            "clients on other machines find no route. Start with --namesrv-host 0.0.0.0"
        )
    exposed = [one for one in (namesrv, broker) if one.is_exposed and not one.is_closed]
    if exposed:
        worst = min((one.tls for one in exposed), key=list(TlsMode).index)
        texts = ", ".join(one.text for one in exposed)
        found.append(
            f"other machines can connect to: {texts}. {_MISSING[worst]}: allow only trusted machines in the firewall"
        )
    return found


_MISSING: Final = {
    TlsMode.DISABLED: "There is no TLS and no password",
    TlsMode.PERMISSIVE: "Connections without TLS are accepted (tls_mode is permissive), and there is no password",
    TlsMode.ENFORCING: "There is no password, and no client needs a certificate (tls_client_auth)",
}
