"""A connection as the broker sees it: a peer that sends requests and gets answers. net/ adds the socket."""

from __future__ import annotations

from typing import Protocol

from wheelmq.formats.disk.message import Host


class Connection(Protocol):
    peer: Host
    is_open: bool
    sends: bool
    """Whether the last request was a send. The kernel then gets the next frames first."""
    user: str | None
    """The user whose signature the last request has; None without authentication."""
    last_request: tuple[int, int] | None
    """Code and opaque of the last request that the plain code served."""
    waiting_since: float | None
    """Monotonic seconds since which its received requests wait, because the peer does not read its answers."""

    @property
    def is_full(self) -> bool:
        """Whether the queued output is too large to serve more requests of the peer now."""
        ...

    @property
    def must_wait(self) -> bool:
        """Whether the next request waits: the connection is full, or it is the turn of other connections."""
        ...

    def send(self, frame: bytes) -> None:
        """Queue a frame. It leaves at the end of the round or tick. A closed connection ignores it."""
        ...

    def close(self) -> None:
        """Close the connection. Frames queued before are still sent."""
        ...


def peer_text(connection: Connection) -> str:
    return host_text(connection.peer)


def host_text(host: Host) -> str:
    """Return a host as ip:port."""
    address, port = host
    if len(address) == 4:
        return f"{'.'.join(map(str, address))}:{port}"
    groups = (address[i : i + 2].hex() for i in range(0, 16, 2))
    return f"[{':'.join(groups)}]:{port}"
