"""The settings of a broker whose master a controller elects."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from wheelmq.config.bounds import INT_MAX, Positive
from wheelmq.config.setting import Setting, SettingsTable


class ControllerSettings(SettingsTable, kw_only=True):
    """[controller]: the controllers of Apache RocketMQ that elect the master."""

    enable: Annotated[bool, Setting("controller_mode", "enableControllerMode")] = False
    """Whether a controller elects the master of the broker name. The master is then a SYNC_MASTER. `broker_id` and
    `broker_role` have no effect: the controller assigns the id."""
    addresses: Annotated[tuple[str, ...], Setting("controller_addresses", "controllerAddr")] = ()
    """The controllers, each HOST:PORT."""
    heartbeat_ms: Annotated[Positive, Setting("controller_heartbeat_ms", "brokerHeartbeatInterval")] = 1000
    """Time between two heartbeats to each controller."""
    heartbeat_timeout_ms: Annotated[
        Positive, Setting("controller_heartbeat_timeout_ms", "controllerHeartBeatTimeoutMills")
    ] = 10_000
    """Time after the last heartbeat after which a controller elects another master. A closed connection counts at
    once. The controllers check each 5 s (their scanNotActiveBrokerInterval)."""
    poll_ms: Annotated[Positive, Setting("controller_poll_ms", "syncBrokerMetadataPeriod")] = 5000
    """Time between two questions for the present master. Notices of the controller and a lost master cause one at
    once."""
    election_priority: Annotated[
        int, Meta(ge=0, le=INT_MAX), Setting("election_priority", "brokerElectionPriority")
    ] = INT_MAX
    """Of several candidates with equal logs, the controller elects the one with the smallest number."""
    catch_up_ms_max: Annotated[Positive, Setting("ha_catch_up_ms_max", "haMaxTimeSlaveNotCatchup", mutable=True)] = (
        15_000
    )
    """A slave that has not caught up for this time leaves the replicas in sync."""
    min_in_sync_replicas: Annotated[
        int, Meta(ge=1, le=64), Setting("min_in_sync_replicas", "minInSyncReplicas", mutable=True)
    ] = 1
    """With fewer replicas in sync, the master among them, the broker rejects sends."""

    def check(self) -> None:
        """Check the addresses of the controllers."""
        if self.enable and not self.addresses:
            raise ValueError("controller_mode needs controller_addresses: write HOST:PORT of each controller")
        for address in self.addresses:
            host, _, port = address.rpartition(":")
            if not (host and port.isdecimal() and 0 < int(port) < 65_536):
                raise ValueError(
                    f"controller_addresses has {address!r}: write HOST:PORT, and separate several by semicolons"
                )
