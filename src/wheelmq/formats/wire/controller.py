"""Headers and bodies of the requests between a broker and Apache RocketMQ's controller.

Sources: rocketmq-all-5.3.3, packages remoting.protocol.header.controller and remoting.protocol.body.
"""

from __future__ import annotations

from wheelmq.formats.wire.bodies import Body
from wheelmq.formats.wire.headers import Header, Int64


class ControllerMetadata(Header):
    """The answer to CONTROLLER_GET_METADATA_INFO."""

    controller_leader_address: str | None = None
    is_leader: bool = False


class NextBrokerId(Header):
    """The answer to CONTROLLER_GET_NEXT_BROKER_ID."""

    next_broker_id: Int64


class MasterHeader(Header):
    """The master in answers of a controller and in NOTIFY_BROKER_ROLE_CHANGED. All fields may be absent."""

    master_broker_id: Int64 | None = None
    master_address: str | None = None
    master_epoch: Int64 | None = None
    sync_state_set_epoch: Int64 | None = None


class SyncStateSetBody(Body):
    """The replicas in sync. The answer to CONTROLLER_ELECT_MASTER has no number of the set."""

    sync_state_set: list[Int64] = []
    sync_state_set_epoch: Int64 | None = None


class EpochEntry(Body):
    epoch: int
    start_offset: int
    end_offset: int


class EpochCache(Body):
    """The answer to GET_BROKER_EPOCH_CACHE."""

    cluster_name: str
    broker_name: str
    broker_id: int
    epoch_list: list[EpochEntry]
    max_offset: int
