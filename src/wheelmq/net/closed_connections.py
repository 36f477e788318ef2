"""The connections that a server closed or rejected because of their peers: their numbers, and a log line for each."""

from __future__ import annotations

import logging

from wheelmq.formats.disk.message import Host
from wheelmq.formats.wire.frame import FrameError
from wheelmq.net.limits import Limits
from wheelmq.system.rate_limited_log import RateLimitedLog


class ClosedConnections:
    """Counts and logs closed connections by reason."""

    def __init__(self, log: RateLimitedLog, limits: Limits) -> None:
        self._log = log
        self._limits = limits
        self.bad_frames = 0
        """Connections that were closed because they sent no frame, or one that could not be served."""
        self.slow_frames = 0
        self.rejected = 0
        """Connections that were closed at once because there were too many."""
        self.idle = 0
        """Connections that were closed because they made no progress."""

    def note_bad_frame(self, peer: Host, error: Exception) -> None:
        """Note the exception that is being handled, in the request of `peer`."""
        if isinstance(error, FrameError):
            self._log.log(logging.INFO, "frame", "closing %s: %s", peer, str(error)[:200])
        else:
            self._log.exception("unserved", "closing %s: serving its request failed", peer)
        self.bad_frames += 1

    def note_slow_frame(self, peer: Host) -> None:
        text = "closing %s: a frame is incomplete after %s s"
        self._log.log(logging.INFO, "slow", text, peer, self._limits.frame_deadline_s)
        self.slow_frames += 1

    def note_rejected(self) -> None:
        self.rejected += 1
        text = "a new connection is rejected: there are already %d connections"
        self._log.warn("crowded", text, self._limits.connections_max)

    def note_idle(self, peer: Host) -> None:
        self.idle += 1
        text = "closing %s: the connection was idle for %g s"
        self._log.log(logging.INFO, "idle", text, peer, self._limits.idle_s)

    def figures(self) -> dict[str, int]:
        return {
            "bad_frames": self.bad_frames,
            "slow_frames": self.slow_frames,
            "refused_connections": self.rejected,
            "idle_connections": self.idle,
        }
