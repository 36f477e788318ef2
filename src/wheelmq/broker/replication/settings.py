"""The settings of replication."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from wheelmq.config.bounds import INT_MAX, Count, Port, Positive
from wheelmq.config.setting import Setting, SettingsTable

BATCH_BYTES_MAX = 1 << 20
"""A replica of Apache RocketMQ reads into a buffer of 4 MiB, which must hold a whole frame."""


class BrokerRole(StrEnum):
    """The role with which a broker starts."""

    ASYNC_MASTER = "ASYNC_MASTER"
    """Answers a send before a replica has it."""
    SYNC_MASTER = "SYNC_MASTER"
    """Answers a send once `in_sync_replicas` brokers have it, itself among them."""
    SLAVE = "SLAVE"
    """Follows the master of its broker name. Once promoted, it has the mode of the master that it replaced."""


class ReplicationSettings(SettingsTable, kw_only=True):
    """[replication]: the role of the broker, and the copies of its log on other machines."""

    role: Annotated[BrokerRole, Setting("broker_role", "brokerRole")] = BrokerRole.ASYNC_MASTER
    """A broker with an id other than 0 is a SLAVE, and only that."""
    ha_port: Annotated[Port, Setting("ha_listen_port", "haListenPort")] = 0
    """The port on which a master accepts replicas. 0 means listen_port + 1, or any free port if listen_port is 0."""
    in_sync_replicas: Annotated[int, Meta(ge=1, le=64), Setting("in_sync_replicas", "inSyncReplicas", mutable=True)] = 2
    """Brokers that must have a message before a SYNC_MASTER answers, the master among them. With 1 it waits for no
    replica. Apache's default is 1."""
    slave_timeout_ms: Annotated[Positive, Setting("slave_timeout_ms", "slaveTimeout", mutable=True)] = 3000
    """Time for the replicas of a SYNC_MASTER. After that the answer says FLUSH_SLAVE_TIMEOUT."""
    heartbeat_ms: Annotated[Positive, Setting("ha_heartbeat_ms", "haSendHeartbeatInterval")] = 5000
    """Time after which an idle connection gets a heartbeat."""
    silence_ms_max: Annotated[Positive, Setting("ha_silence_ms_max", "haHousekeepingInterval")] = 20_000
    """A connection is closed when its peer says nothing for this time."""
    batch_bytes: Annotated[int, Meta(ge=1, le=BATCH_BYTES_MAX), Setting("ha_batch_bytes", "haTransferBatchSize")] = (
        256 << 10
    )
    """Maximum bytes of the log in one frame. Apache's default is 32768."""
    gap_bytes_max: Annotated[Count, Setting("ha_gap_not_in_sync", "haMaxGapNotInSync", mutable=True)] = 256 << 20
    """A replica that lacks more bytes is not in sync."""
    limits_rate: Annotated[bool, Setting("ha_limits_rate", "haFlowControlEnable", mutable=True)] = False
    """Whether `ha_bytes_per_second_max` is in force."""
    bytes_per_second_max: Annotated[
        int,
        Meta(ge=1, le=INT_MAX),
        Setting("ha_bytes_per_second_max", "maxHaTransferByteInSecond", mutable=True),
    ] = 100 << 20
    """Maximum bytes per second that the master sends to one replica."""
    master_address: Annotated[str, Setting("ha_master_address", "haMasterAddress")] = ""
    """HA address of the master, HOST:PORT, in place of the one that the name servers give. If they know no master, its
    port for requests must be the one before."""

    def check(self) -> None:
        """Check the address of the master."""
        host, _, port = self.master_address.rpartition(":")
        if self.master_address and not (host and port.isdecimal() and 0 < int(port) < 65_536):
            raise ValueError(f"ha_master_address is {self.master_address!r}: write HOST:PORT of the master's HA port")
