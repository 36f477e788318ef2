"""The check whether a connection is idle, from the bytes that have come and left. It knows no sockets and no clocks."""

from __future__ import annotations

from wheelmq.net.limits import IDLE_LOOKS


class IdleCheck:
    """Counts the checks of one connection without progress."""

    __slots__ = ("_bytes_drained", "_bytes_received", "_looks")

    def __init__(self) -> None:
        self._bytes_received = -1  # so a new connection has made progress
        self._bytes_drained = 0
        self._looks = 0

    def check(self, *, bytes_received: int, bytes_drained: int, must_read: bool) -> bool:
        """Check for progress since the last check. Return whether IDLE_LOOKS checks in a row found none.

        A peer that must read answers makes no progress by requests.
        """
        has_sent = bytes_received != self._bytes_received
        if bytes_drained != self._bytes_drained or (has_sent and not must_read):
            self._looks = 0
        else:
            self._looks += 1
        self._bytes_received, self._bytes_drained = bytes_received, bytes_drained
        return self._looks >= IDLE_LOOKS
