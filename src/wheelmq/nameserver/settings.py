"""The settings of the name server, with all their names."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from wheelmq.config.bounds import Count, Port, Positive
from wheelmq.config.namesrv_keys import CONTROLLER_KEYS, NAMESRV_KEYS
from wheelmq.config.net_keys import CLIENT_KEYS, SERVER_KEYS
from wheelmq.config.schema import Schema, by_name


class NameServerSettings(msgspec.Struct, kw_only=True):
    """All settings. After the start, only `NameServer.configuration` sets fields, and only mutable ones."""

    kv_config_path: Path
    """The file of the key-value config."""
    listen_host: str = "127.0.0.1"
    """The address to listen on. 0.0.0.0 means all addresses of the machine."""
    listen_port: Port = 9876
    """0 picks a free one."""
    listen_backlog: Positive = 1024
    """Maximum number of connections that wait to be accepted."""
    socket_send_bytes: Count = 0
    """Send buffer of a connection in the kernel. With 0 the kernel decides."""
    socket_receive_bytes: Count = 0
    server_channel_max_idle_time_seconds: Count = 120
    """Seconds without a byte to or from a connection after which it is closed. With 0 it stays open."""
    connections_max: Positive = 50_000
    """Further connections are closed at once. The limit is lower if the process may open fewer files."""
    scan_interval_ms: Positive = 5000
    """Milliseconds between two scans for brokers whose last registration is too old."""
    order_message_enable: bool = True
    """Return to clients the queues of a topic for ordered messages."""
    return_order_topic_config: bool = True
    """Return the same for all topics to a broker that registers."""
    enable_all_topic_list: bool = True
    """Answer requests for the names of all topics."""
    enable_topic_list: bool = True
    """Answer requests for the names of the topics of a cluster or unit."""
    delete_topic_with_broker_registration: bool = False
    """Delete the route of each topic that a registration of its broker does not name. Not for brokers of Apache's,
    which register a changed topic alone, unless their enableSingleTopicRegister is on."""
    waits_for_service: bool = False
    """Return no routes until brokers have had time to register."""
    wait_for_service_seconds: Count = 45
    """Seconds from the start without routes, with `waits_for_service`."""


NAME_SERVER: Final = Schema(
    shape=NameServerSettings,
    keys=by_name(NAMESRV_KEYS, SERVER_KEYS, CLIENT_KEYS, CONTROLLER_KEYS),
    groups={"nameserver": {name: name for name in NameServerSettings.__struct_fields__}},
    check=lambda settings: None,
    mutable=frozenset(
        {
            "delete_topic_with_broker_registration",
            "enable_all_topic_list",
            "enable_topic_list",
            "order_message_enable",
            "return_order_topic_config",
            "scan_interval_ms",
            "waits_for_service",
            "wait_for_service_seconds",
        }
    ),
)
