"""A client without a socket that collects the frames of a broker."""

from __future__ import annotations

from collections import Counter

from wheelmq.formats.disk.message import Host
from wheelmq.formats.wire import frame
from wheelmq.formats.wire.frame import Command


class FakeConnection:
    """One peer of a broker.

    Frames of the broker become visible with `flush`, at the end of a tick, where the server writes to its sockets.
    Frames that a broker had queued when it died are never seen.
    """

    def __init__(self, peer: Host) -> None:
        self.peer = peer
        self.is_open = True
        self.is_full = False
        self.sends = True
        self.user: str | None = None
        self.waiting_since: float | None = None
        self.last_request: tuple[int, int] | None = None
        self.is_lost = False
        """Whether the broker knows that the connection is lost."""
        self.answers: dict[int, Command] = {}
        """The answers by opaque. The last answer counts if several requests share one opaque."""
        self.requests: list[Command] = []
        self.unread = bytearray()
        """Received bytes that are not a whole frame yet."""
        self._queued: list[bytes] = []
        self._opaque = 0
        self._unanswered: Counter[int] = Counter()

    @property
    def must_wait(self) -> bool:
        return self.is_full

    # The broker's side ---------------------------------------------------------------------------------------------

    def send(self, frame: bytes) -> None:
        if self.is_open:
            self._queued.append(bytes(frame))

    def close(self) -> None:
        if self.is_open:
            self.flush()
            self.is_open = False

    # The client's side ---------------------------------------------------------------------------------------------

    def next_opaque(self, *, oneway: bool = False) -> int:
        self._opaque += 1
        if not oneway:
            self._unanswered[self._opaque] += 1
        return self._opaque

    def repeat_opaque(self, opaque: int) -> int:
        self._unanswered[opaque] += 1
        return opaque

    def waits_for(self, opaque: int) -> int:
        return self._unanswered[opaque]

    def flush(self) -> None:
        """Receive the queued frames. Asserts that each request has at most one answer, and a oneway request none."""
        raw = b"".join(self._queued)
        self._queued.clear()
        at = 0
        while (end := frame.frame_end(raw, at, len(raw))) is not None:
            self._take(frame.decode(raw, at, end))
            at = end
        assert at == len(raw), f"{len(raw) - at} bytes are not a whole frame"

    def drop(self) -> None:
        """Break the connection and lose the queued frames."""
        self._queued.clear()
        self.is_open = False

    def _take(self, command: Command) -> None:
        if not command.is_response:
            self.requests.append(command)
            return
        assert self._unanswered[command.opaque], f"an answer to request {command.opaque}, which is not waiting for one"
        self._unanswered[command.opaque] -= 1
        self.answers[command.opaque] = command
