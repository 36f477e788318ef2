"""Headers of WheelMQ's requests about replication."""

from __future__ import annotations

from wheelmq.formats.wire.headers.base import Header, Int64


class PromoteHeader(Header):
    """WMQ_PROMOTE."""

    least_log_end: Int64 = 0
    """The request is rejected if the slave's log ends before."""


class HandOverHeader(Header):
    """WMQ_HAND_OVER."""

    successor: str
    """Address of the slave that will be the master, HOST:PORT."""
