"""Headers of requests to the name server."""

from __future__ import annotations

from typing import Final

from wheelmq.formats.wire.headers.base import Header, Int32, Int64

REPLACED_ADDRESS: Final = "replacedBrokerAddr"
"""Field of the answer to REGISTER_BROKER, ours: the live broker of the same name and id that this one replaces in
the routes. Other brokers ignore it."""


class RegisterBrokerHeader(Header):
    """REGISTER_BROKER, sent to the name server."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: Int64
    heartbeat_timeout_millis: Int64 | None = None
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: Int32 = 0


class UnregisterBrokerHeader(Header):
    """UNREGISTER_BROKER, sent to the name server."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class DeleteTopicHeader(Header):
    """DELETE_TOPIC_IN_NAMESRV."""

    topic: str
    cluster_name: str | None = None


class BrokerNameHeader(Header):
    """WIPE_WRITE_PERM_OF_BROKER, ADD_WRITE_PERM_OF_BROKER."""

    broker_name: str


class ClusterHeader(Header):
    """GET_TOPICS_BY_CLUSTER."""

    cluster: str


class MemberGroupHeader(Header):
    """GET_BROKER_MEMBER_GROUP."""

    cluster_name: str
    broker_name: str


class BrokerAddressHeader(Header):
    """BROKER_HEARTBEAT."""

    broker_addr: str


class KvHeader(Header):
    """PUT_KV_CONFIG, GET_KV_CONFIG, DELETE_KV_CONFIG."""

    namespace: str
    key: str
    value: str | None = None


class NamespaceHeader(Header):
    """GET_KVLIST_BY_NAMESPACE."""

    namespace: str
