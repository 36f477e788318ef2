"""A connection as the broker sees it: someone who asks and is answered. The shell in net/ gives it a socket."""

from __future__ import annotations

from typing import Protocol

from wheelmq.formats.disk.message import Host


class Connection(Protocol):
    """One peer."""

    peer: Host
    is_open: bool
    sends: bool
    """Whether its last request was a send, as the kernel serves them: then the kernel looks at the next ones first."""
    last_request: tuple[int, int] | None
    """Code and opaque of the last request that the plain code served."""
    waiting_since: float | None
    """Since when, in monotonic seconds, requests of it wait that were read: it does not read its answers."""

    @property
    def is_full(self) -> bool:
        """Whether so much is queued for the peer that nothing more should be served to it for now."""
        ...

    @property
    def must_wait(self) -> bool:
        """Whether the next request waits: the connection is full, or other connections have their turn first."""
        ...

    def send(self, frame: bytes) -> None:
        """Queue a frame; it leaves at the end of the round, or of the tick. Ignored once the connection is closed."""
        ...

    def close(self) -> None:
        """Close the connection; what was queued before is still sent."""
        ...


def peer_text(connection: Connection) -> str:
    """The peer as ip:port."""
    return host_text(connection.peer)


def host_text(host: Host) -> str:
    """A host as ip:port."""
    address, port = host
    if len(address) == 4:
        return f"{'.'.join(map(str, address))}:{port}"
    groups = (address[i : i + 2].hex() for i in range(0, 16, 2))
    return f"[{':'.join(groups)}]:{port}"
