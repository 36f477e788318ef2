"""The bodies of WheelMQ's own requests about replication."""

from __future__ import annotations

import msgspec


class ReplicationState(msgspec.Struct, kw_only=True):
    """The answer to WMQ_REPLICATION_STATE: the facts that a replica needs about a broker of its name."""

    broker_name: str
    cluster: str
    is_master: bool
    is_sync: bool
    """Whether it is a master that answers a send once its replicas have it."""
    broker_id: int
    free_id: int
    """The id for the former master that asks, which no other broker has."""
    epoch: int
    """The broker's last epoch; -1 without one."""
    ha_port: int
    log_start: int
    log_end: int
    confirmed: int
    """The log is on enough brokers up to here."""
    replicas: int
    """Number of replicas that are connected to the broker and have reported their progress."""
    lag_bytes: int
    """Bytes of the log that no replica has."""
    lag_ms: int
    """How long the oldest of them have waited."""
    lacking: dict[str, int]
    """Number of messages in blocks that each replica of the blocks lacks, by its broker id."""
    has_blocks: bool
    versions: dict[str, str]
    """A text for each table that changes with it: topics, groups, offsets, filters."""
    blocks: dict[str, int] = {}
    """Number of messages in each block by the block's number, if they were asked for."""
    ticket: str = ""
    """Lets a replica use the HA port once, if the broker has users and the replica asked for it."""
