"""The settings of the name server, with all their names."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

from msgspec import field

from wheelmq.config.bounds import Count, Port, Positive
from wheelmq.config.namesrv_keys import CONTROLLER_KEYS, NAMESRV_KEYS
from wheelmq.config.net_keys import CLIENT_KEYS, SERVER_KEYS
from wheelmq.config.schema import Schema, by_name
from wheelmq.config.setting import Setting, SettingsTable, SettingsTables
from wheelmq.config.tls import TlsSettings
from wheelmq.config.tls_keys import TLS_KEYS


class NameServerSettings(SettingsTable, kw_only=True):
    """[nameserver]: routes, limits and addresses. Only `NameServer.configuration` sets mutable ones."""

    kv_config_path: Annotated[Path, Setting("kv_config_path", "kvConfigPath")]
    """The file of the key-value config."""
    listen_host: Annotated[str, Setting("listen_host", "bindAddress")] = "127.0.0.1"
    """The address to listen on. 0.0.0.0 means all addresses of the machine."""
    listen_port: Annotated[Port, Setting("listen_port", "listenPort")] = 9876
    """0 picks a free one."""
    listen_backlog: Annotated[Positive, Setting("listen_backlog", "serverSocketBacklog")] = 1024
    """Maximum number of connections that wait to be accepted."""
    socket_send_bytes: Annotated[Count, Setting("socket_send_bytes", "serverSocketSndBufSize")] = 0
    """Send buffer of a connection in the kernel. With 0 the kernel decides."""
    socket_receive_bytes: Annotated[Count, Setting("socket_receive_bytes", "serverSocketRcvBufSize")] = 0
    server_channel_max_idle_time_seconds: Annotated[
        Count, Setting("server_channel_max_idle_time_seconds", "serverChannelMaxIdleTimeSeconds")
    ] = 120
    """Seconds without a byte to or from a connection after which it is closed. With 0 it stays open."""
    connections_max: Annotated[Positive, Setting("connections_max")] = 50_000
    """Further connections are closed at once. The limit is lower if the process may open fewer files."""
    scan_interval_ms: Annotated[Positive, Setting("scan_interval_ms", "scanNotActiveBrokerInterval", mutable=True)] = (
        5000
    )
    """Milliseconds between two scans for brokers whose last registration is too old."""
    order_message_enable: Annotated[bool, Setting("order_message_enable", "orderMessageEnable", mutable=True)] = True
    """Return to clients the queues of a topic for ordered messages."""
    return_order_topic_config: Annotated[
        bool, Setting("return_order_topic_config", "returnOrderTopicConfigToBroker", mutable=True)
    ] = True
    """Return the same for all topics to a broker that registers."""
    enable_all_topic_list: Annotated[bool, Setting("enable_all_topic_list", "enableAllTopicList", mutable=True)] = True
    """Answer requests for the names of all topics."""
    enable_topic_list: Annotated[bool, Setting("enable_topic_list", "enableTopicList", mutable=True)] = True
    """Answer requests for the names of the topics of a cluster or unit."""
    delete_topic_with_broker_registration: Annotated[
        bool, Setting("delete_topic_with_broker_registration", "deleteTopicWithBrokerRegistration", mutable=True)
    ] = False
    """Delete the route of each topic that a registration of its broker does not name. Not for brokers of Apache's,
    which register a changed topic alone, unless their enableSingleTopicRegister is on."""
    waits_for_service: Annotated[bool, Setting("waits_for_service", "needWaitForService", mutable=True)] = False
    """Return no routes until brokers have had time to register."""
    wait_for_service_seconds: Annotated[
        Count, Setting("wait_for_service_seconds", "waitSecondsForService", mutable=True)
    ] = 45
    """Seconds from the start without routes, with `waits_for_service`."""
    authentication_enabled: Annotated[bool, Setting("authentication_enabled")] = False
    """Whether each request needs the signature of a user. Brokers then need inner_client_authentication_credentials."""
    authorization_enabled: Annotated[bool, Setting("authorization_enabled")] = False
    """Whether each user, except super users, needs the rights that its requests need. Needs
    `authentication_enabled`."""
    auth_folder: Annotated[str, Setting("auth_folder")] = ""
    """The folder with the users and access lists: the config folder of the store of a broker, or a copy of its
    users.json and acls.json. The name server reads changed files within a second."""
    auth_key_file: Annotated[str, Setting("auth_key_file")] = ""
    """The file of the key that encrypts the secrets of the users. If it is empty, the name server uses the path
    of the store that contains `auth_folder`, with `.key` at its end."""
    auth_cluster: Annotated[str, Setting("auth_cluster")] = "DefaultCluster"
    """The name of the resource of administration, as in `Cluster:DefaultCluster`."""
    allow_unauthenticated: Annotated[bool, Setting("allow_unauthenticated")] = False
    """Whether the name server starts without users although other machines can reach it. Then protect the network."""
    audit_file: Annotated[str, Setting("audit_file")] = ""
    """The file of the audit log, one JSON line per request of an administrator. Empty means no audit log;
    `wheelmq nameserver` then writes HOME/logs/audit-nameserver.log."""

    def check(self) -> None:
        """Check that the users can be found."""
        if self.authentication_enabled and not self.auth_folder:
            raise ValueError(
                "authentication_enabled needs auth_folder: name the config folder of the store of a broker, or a "
                "folder with copies of its users.json and acls.json"
            )


class NameServerTables(SettingsTables, kw_only=True):
    """All settings of a name server, by the tables of a TOML file."""

    nameserver: NameServerSettings
    tls: TlsSettings = field(default_factory=TlsSettings)


NAME_SERVER: Final = Schema(
    NameServerTables, by_name(NAMESRV_KEYS, SERVER_KEYS, CLIENT_KEYS, CONTROLLER_KEYS, TLS_KEYS)
)
