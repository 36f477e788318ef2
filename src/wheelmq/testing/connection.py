"""A client without a socket: it collects what a broker sends it."""

from __future__ import annotations

from collections import Counter

from wheelmq.formats.disk.message import Host
from wheelmq.formats.wire import frame
from wheelmq.formats.wire.frame import Command


class FakeConnection:
    """One peer. What the broker sends becomes visible with `flush`, which a harness calls at the end of a tick, as the
    server writes to its sockets then; what a broker that dies in the tick had queued is never seen."""

    def __init__(self, peer: Host) -> None:
        self.peer = peer
        self.is_open = True
        self.is_full = False
        self.sends = True
        self.waiting_since: float | None = None
        self.last_request: tuple[int, int] | None = None
        self.is_lost = False
        """Whether the broker was told that the connection is gone."""
        self.answers: dict[int, Command] = {}
        """By opaque; of several requests with one opaque the last answer."""
        self.requests: list[Command] = []
        """What the broker asked or told of its own accord."""
        self.unread = bytearray()
        """Bytes received that are no whole frame yet."""
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
        """A number for a request that is about to be made."""
        self._opaque += 1
        if not oneway:
            self._unanswered[self._opaque] += 1
        return self._opaque

    def repeat_opaque(self, opaque: int) -> int:
        """The number of an earlier request, for another one that is about to be made."""
        self._unanswered[opaque] += 1
        return opaque

    def waits_for(self, opaque: int) -> int:
        """Answers to `opaque` that are still to come."""
        return self._unanswered[opaque]

    def flush(self) -> None:
        """Take what was queued. Asserts that each request is answered once at most, and a oneway one never."""
        raw = b"".join(self._queued)
        self._queued.clear()
        at = 0
        while (end := frame.frame_end(raw, at, len(raw))) is not None:
            self._take(frame.decode(raw, at, end))
            at = end
        assert at == len(raw), f"{len(raw) - at} bytes that are no whole frame"

    def drop(self) -> None:
        """The connection breaks: what was queued is not seen."""
        self._queued.clear()
        self.is_open = False

    def _take(self, command: Command) -> None:
        if not command.is_response:
            self.requests.append(command)
            return
        assert self._unanswered[command.opaque], f"an answer to {command.opaque}, which waits for none"
        self._unanswered[command.opaque] -= 1
        self.answers[command.opaque] = command
