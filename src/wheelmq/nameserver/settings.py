"""The name server's settings, by every name they have."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from wheelmq.config.bounds import Count, Port, Positive
from wheelmq.config.namesrv_keys import CONTROLLER_KEYS, NAMESRV_KEYS
from wheelmq.config.net_keys import CLIENT_KEYS, SERVER_KEYS
from wheelmq.config.schema import Schema, by_name


class NameServerSettings(msgspec.Struct, kw_only=True):
    """Everything that can be chosen. Fields are set by `NameServer.configuration` alone, those that are mutable."""

    kv_config_path: Path
    """The file of the key-value config."""
    listen_host: str = "127.0.0.1"
    """The address that is listened on; 0.0.0.0 is every one of the machine."""
    listen_port: Port = 9876
    """0 picks a free one."""
    listen_backlog: Positive = 1024
    """Connections that wait to be accepted."""
    socket_send_bytes: Count = 0
    """Buffer of a connection in the system; 0 leaves it to the system."""
    socket_receive_bytes: Count = 0
    server_channel_max_idle_time_seconds: Count = 120
    """Seconds without a byte to or from a connection after which it is closed; 0 keeps it."""
    connections_max: Positive = 50_000
    """Connections beyond it are closed at once; fewer are taken where the process may open fewer files."""
    scan_interval_ms: Positive = 5000
    """How often brokers are looked for that registered too long ago."""
    order_message_enable: bool = True
    """Tell clients of a topic's queues that messages in order go to."""
    return_order_topic_config: bool = True
    """Tell a broker that registers the same of all topics."""
    enable_all_topic_list: bool = True
    """Tell the names of all topics to whoever asks."""
    enable_topic_list: bool = True
    """Tell the names of a cluster's topics, or a unit's."""
    delete_topic_with_broker_registration: bool = False
    """A broker that registers gives up the topics that it does not name then. Not for brokers of Apache's, which name
    one alone when that changes, unless their enableSingleTopicRegister is on."""
    waits_for_service: bool = False
    """Tell no routes until brokers had time to register."""
    wait_for_service_seconds: Count = 45
    """From the start, if it waits."""


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
