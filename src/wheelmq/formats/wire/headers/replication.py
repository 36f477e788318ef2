"""Headers of WheelMQ's requests about replication."""

from __future__ import annotations

from wheelmq.formats.wire.headers.base import Header, Int32, Int64


class ReplicationStateHeader(Header):
    """WMQ_REPLICATION_STATE."""

    wants_ticket: bool = False
    """Whether the answer shall have a ticket for the HA port."""
    former_master: str | None = None
    """The address of a former master that needs an id as the slave of this broker."""
    own_id: int = 0
    """The id that the former master had before its promotion; 0 if it had none, or if another broker has it now."""
    wants_blocks: bool = False
    """Whether the answer shall have the number of messages in each block."""


class PromoteHeader(Header):
    """WMQ_PROMOTE."""

    least_log_end: Int64 = 0
    """The request is rejected if the slave's log ends before."""


class HandOverHeader(Header):
    """WMQ_HAND_OVER."""

    successor: str
    """Address of the slave that will be the master, HOST:PORT."""


class ReadBlocksHeader(Header):
    """WMQ_READ_BLOCKS: progress of a replica, and the request for more."""

    replica_id: Int64
    """The broker id of the replica."""
    epoch: Int64
    """The epoch of the master that has checked the replica's blocks."""
    session: Int64 = 0
    """The session that the first answer names; 0 in the first request."""
    is_complete: bool = True
    """Whether the report is complete with this request. Only then the master sends parts."""
    bytes_max: Int32 = 0
    """Maximum bytes of records in the answer, if no single record is longer."""
    timeout_ms: Int64 = 0
    """Time that the master may wait for new messages."""


class BlocksHeader(Header):
    """The answers to WMQ_CHECK_BLOCKS and WMQ_READ_BLOCKS."""

    epoch: Int64
    """The epoch of the master."""
    log_end: Int64
    """End of the master's log. Each record that settles a message of a flagged unit is before it."""
    file_bytes: Int64
    """Size of a file of a block's log."""
    session: Int64 = 0
