"""The broker's settings. They are data only: clock, disk and network are components.

Names follow Apache's broker.conf in snake case. The limits are ours. The tables of store and delayed delivery are in
`store/settings.py` and `delay/settings.py`.
"""

from __future__ import annotations

import ipaddress
from enum import StrEnum
from typing import Annotated

from msgspec import Meta, field

from wheelmq.auth.settings import AuthSettings
from wheelmq.broker.replication.controller.settings import ControllerSettings
from wheelmq.broker.replication.settings import BrokerRole, ReplicationSettings
from wheelmq.config.bounds import Count, DurationMs, EpochMs, Name, Percent, Port, Positive, WaitMs
from wheelmq.config.setting import Setting, SettingsTable, SettingsTables
from wheelmq.config.tls import TlsSettings
from wheelmq.delay.settings import BlockSettings, LevelSettings, TimerSettings
from wheelmq.formats.disk import properties as props
from wheelmq.store.settings import ExpirySettings, IndexSettings, StoreSettings


class FlushMode(StrEnum):
    """Whether the broker answers a send before or after it is on disk."""

    ASYNC = "ASYNC_FLUSH"
    SYNC = "SYNC_FLUSH"


class MetricsExporter(StrEnum):
    """How the broker exports metrics."""

    DISABLE = "DISABLE"
    PROM = "PROM"
    """Prometheus fetches them over HTTP."""
    OTLP_GRPC = "OTLP_GRPC"
    """The broker sends them to a collector of OpenTelemetry."""


class NodeSettings(SettingsTable, kw_only=True):
    """[broker]: names and addresses of the broker, and its registration."""

    name: Annotated[Name, Setting("broker_name", "brokerName")] = "broker-a"
    cluster: Annotated[Name, Setting("cluster", "brokerClusterName")] = "DefaultCluster"
    id: Annotated[Count, Setting("broker_id", "brokerId")] = 0
    """0 for a master. With another id the broker is a slave: it follows the master of its name."""
    ip: Annotated[str, Setting("broker_ip", "brokerIP1", narrower="an IPv4 address")] = "127.0.0.1"
    """The address in routes and message ids. Clients connect to it. A broker that listens on all addresses chooses
    one of this machine."""
    advertised_host: Annotated[str, Setting("advertised_host", narrower="a name or an IPv4 address, or nothing")] = ""
    """The host in routes, instead of `broker_ip`. Message ids keep `broker_ip`: by default, the address of this
    host."""
    advertised_port: Annotated[Port, Setting("advertised_port")] = 0
    """The port in routes and message ids, if clients reach the broker through another port. 0 is `listen_port`."""
    listen_host: Annotated[str, Setting("listen_host", "bindAddress")] = "127.0.0.1"
    """The address to listen on. 0.0.0.0 means all addresses of the machine."""
    listen_port: Annotated[Port, Setting("listen_port", "listenPort")] = 10911
    """0 picks a free one."""
    listen_backlog: Annotated[Positive, Setting("listen_backlog", "serverSocketBacklog")] = 1024
    """Maximum number of connections that wait to be accepted."""
    socket_send_bytes: Annotated[Count, Setting("socket_send_bytes", "serverSocketSndBufSize")] = 0
    """Send buffer of a connection in the kernel. With 0 the kernel decides."""
    socket_receive_bytes: Annotated[Count, Setting("socket_receive_bytes", "serverSocketRcvBufSize")] = 0
    namesrv: Annotated[tuple[str, ...], Setting("namesrv", "namesrvAddr")] = ()
    """Name servers to register with, each HOST:PORT."""
    register_period_ms: Annotated[
        int, Meta(ge=10_000, le=60_000), Setting("register_period_ms", "registerNameServerPeriod", mutable=True)
    ] = 30_000
    """Time between two registrations, when nothing changes."""
    register_timeout_ms: Annotated[
        Positive, Setting("register_timeout_ms", "registerBrokerTimeoutMills", mutable=True)
    ] = 24_000
    """Time for a name server to answer a registration."""
    region_id: Annotated[Name, Setting("region_id", "regionId")] = "DefaultRegion"
    trace_on: Annotated[bool, Setting("trace_on", "traceOn", mutable=True)] = True
    permission: Annotated[int, Meta(ge=0, le=7), Setting("broker_permission", "brokerPermission", mutable=True)] = 6
    """4 allows reads, 2 writes, 6 both. The broker registers it with each topic, so clients obey it. The broker
    itself only rejects pulls, sends to ordered topics, and messages that a consumer sends back."""

    def __post_init__(self) -> None:
        try:
            ipaddress.IPv4Address(self.ip)
        except ValueError:
            raise ValueError(f"broker_ip is {self.ip!r}: it must be an IPv4 address, such as 10.0.0.7") from None

    @property
    def host(self) -> str:
        """The host in routes."""
        return self.advertised_host or self.ip

    @property
    def port(self) -> int:
        """The port in routes and message ids."""
        return self.advertised_port or self.listen_port

    @property
    def address(self) -> str:
        """The address in routes. Clients and replicas connect to it."""
        return f"{self.host}:{self.port}"

    def record_properties(self) -> dict[str, str]:
        """Return the properties that the broker adds at the end of a record, in their order."""
        return {
            props.MSG_REGION: self.region_id,
            props.TRACE_ON: "true" if self.trace_on else "false",
            props.CLUSTER: self.cluster,
        }

    def check(self) -> None:
        """Check the advertised host, and the addresses of the name servers."""
        if self.advertised_host and (":" in self.advertised_host or not _may_be_host(self.advertised_host)):
            raise ValueError(
                f"advertised_host is {self.advertised_host!r}: it must be a name or an address, without a port"
            )
        for address in self.namesrv:
            host, _, port = address.rpartition(":")
            if not _may_be_host(host) or not port.isdecimal() or not 0 < int(port) < 65_536:
                raise ValueError(
                    f"namesrv has {address!r}: write HOST:PORT, and separate several addresses by semicolons"
                )


def _may_be_host(name: str) -> bool:
    try:
        return bool(name.encode("idna"))
    except UnicodeError:  # a part is empty or too long, so no resolver accepts it
        return False


class FlushSettings(SettingsTable, kw_only=True):
    """[flush]: when the log is flushed."""

    mode: Annotated[FlushMode, Setting("flush_mode", "flushDiskType", mutable=True)] = FlushMode.ASYNC
    interval_ms: Annotated[Positive, Setting("flush_interval_ms", "flushIntervalCommitLog", mutable=True)] = 500
    """Milliseconds until the log is flushed, if no send waits for that. With ASYNC_FLUSH a burst of releases makes it
    ten times as long, up to 5000, because a flush reduces the speed of a burst to less than half."""
    least_pages: Annotated[Count, Setting("flush_commit_log_least_pages", "flushCommitLogLeastPages", mutable=True)] = 0
    """A flush waits for this number of whole pages. Apache has 4. Here it is 0, because the index and the pipeline
    only read flushed data."""
    thorough_interval_ms: Annotated[
        Count, Setting("flush_commit_log_thorough_interval", "flushCommitLogThoroughInterval", mutable=True)
    ] = 10_000
    """Milliseconds after which a flush does not wait for more pages."""
    sync_timeout_ms: Annotated[Positive, Setting("sync_flush_timeout_ms", "syncFlushTimeout", mutable=True)] = 5000


class TopicSettings(SettingsTable, kw_only=True):
    """[topics]: topics that the broker creates itself."""

    auto_create: Annotated[bool, Setting("auto_create_topic", "autoCreateTopicEnable", mutable=True)] = True
    default_queues: Annotated[int, Meta(ge=1, le=8192), Setting("default_topic_queues", "defaultTopicQueueNums")] = 8
    cluster_enable: Annotated[bool, Setting("cluster_topic_enable", "clusterTopicEnable")] = True
    """Whether clients may send to and read the topic with the name of the cluster."""
    broker_enable: Annotated[bool, Setting("broker_topic_enable", "brokerTopicEnable")] = True
    """Whether clients may send to and read the topic with the name of the broker."""
    trace_enable: Annotated[bool, Setting("trace_topic_enable", "traceTopicEnable")] = False
    """Create `trace_topic` at the start."""
    trace_name: Annotated[Name, Setting("trace_topic", "msgTraceTopicName")] = "RMQ_SYS_TRACE_TOPIC"


class RequestSettings(SettingsTable, kw_only=True):
    """[requests]: limits of requests and answers."""

    body_bytes_max: Annotated[Positive, Setting("body_bytes_max", "maxMessageSize", mutable=True)] = 4 << 20
    transfer_count_max: Annotated[
        Positive, Setting("transfer_count_max", "maxTransferCountOnMessageInMemory", mutable=True)
    ] = 32
    transfer_bytes_max: Annotated[
        Positive, Setting("transfer_bytes_max", "maxTransferBytesOnMessageInMemory", mutable=True)
    ] = 256 << 10
    query_count_max: Annotated[Positive, Setting("query_count_max", "maxMsgsNumBatch", mutable=True)] = 64
    """Maximum number of messages in the answer to a query by key."""
    query_unique_key_count_max: Annotated[
        Positive, Setting("query_unique_key_count_max", "defaultQueryMaxNum", mutable=True)
    ] = 32
    """Number of messages in the answer to a query by a unique key, whatever number it asks for."""
    tick_age_ms_max: Annotated[
        Positive, Setting("os_page_cache_busy_time_out_mills", "osPageCacheBusyTimeOutMills", mutable=True)
    ] = 1000
    """Age of a round above which the broker answers its remaining sends with SYSTEM_BUSY."""
    sends_from_ms: Annotated[
        EpochMs, Setting("start_accept_send_request_time_stamp", "startAcceptSendRequestTimeStamp", mutable=True)
    ] = 0
    """Epoch milliseconds before which all sends are rejected."""
    response_timeout_ms: Annotated[Positive, Setting("response_timeout_ms")] = 10_000
    frame_deadline_ms: Annotated[Positive, Setting("frame_deadline_ms")] = 30_000
    """Time in which an incomplete frame must become complete."""
    connection_buffer_bytes_max: Annotated[Positive, Setting("connection_buffer_bytes_max")] = 2 << 20
    """Bytes of answers that one peer has not read. Above it, the broker stops reading from that peer."""
    release_slice_ms: Annotated[float, Meta(ge=0, le=1000), Setting("release_slice_ms")] = 1.0
    """Time in which one tick releases messages, so that a burst leaves time for sends and pulls. If the requests
    since the last tick took longer, that time applies, so that a flood of sends leaves time for releases. While
    thousands of messages are due, the time is four times as long."""


class ConnectionSettings(SettingsTable, kw_only=True):
    """[connections]: limits of the connections of clients."""

    max: Annotated[Positive, Setting("connections_max")] = 50_000
    """Further connections are closed at once. The limit is lower if the process may open fewer files."""
    idle_seconds_max: Annotated[
        Count, Setting("server_channel_max_idle_time_seconds", "serverChannelMaxIdleTimeSeconds")
    ] = 120
    """Seconds without a byte to or from a connection after which it is closed. With 0 it stays open."""
    bytes_in_flight_max: Annotated[int, Meta(ge=64 << 20, le=1 << 40), Setting("bytes_in_flight_max")] = 512 << 20
    """Bytes in memory for all connections: incomplete frames and unread answers. Above it, the broker closes the
    connections that hold most."""
    fast_port: Annotated[bool, Setting("fast_port_enable")] = True
    """Also listen on `listen_port` - 2, for clients with a VIP channel. This port serves the same requests."""


class RequestQueueSettings(SettingsTable, kw_only=True):
    """[queues]: when the broker rejects requests because too many wait."""

    fast_failure: Annotated[bool, Setting("broker_fast_failure_enable", "brokerFastFailureEnable", mutable=True)] = True
    """Answer SYSTEM_BUSY to a request that has waited too long, because its client may have sent it again already."""
    send_max: Annotated[Positive, Setting("send_thread_pool_queue_capacity", "sendThreadPoolQueueCapacity")] = 10_000
    """Number of requests of this group that a round may serve. The next requests are answered SYSTEM_BUSY. The same
    applies to each group below."""
    pull_max: Annotated[Positive, Setting("pull_thread_pool_queue_capacity", "pullThreadPoolQueueCapacity")] = 100_000
    lite_pull_max: Annotated[
        Positive, Setting("lite_pull_thread_pool_queue_capacity", "litePullThreadPoolQueueCapacity")
    ] = 100_000
    reply_max: Annotated[Positive, Setting("reply_thread_pool_queue_capacity", "replyThreadPoolQueueCapacity")] = 10_000
    query_max: Annotated[Positive, Setting("query_thread_pool_queue_capacity", "queryThreadPoolQueueCapacity")] = 20_000
    heartbeat_max: Annotated[
        Positive, Setting("heartbeat_thread_pool_queue_capacity", "heartbeatThreadPoolQueueCapacity")
    ] = 50_000
    client_manager_max: Annotated[
        Positive, Setting("client_manager_thread_pool_queue_capacity", "clientManagerThreadPoolQueueCapacity")
    ] = 1_000_000
    consumer_manager_max: Annotated[
        Positive, Setting("consumer_manager_thread_pool_queue_capacity", "consumerManagerThreadPoolQueueCapacity")
    ] = 1_000_000
    end_transaction_max: Annotated[
        Positive, Setting("end_transaction_pool_queue_capacity", "endTransactionPoolQueueCapacity")
    ] = 100_000
    admin_max: Annotated[
        Positive, Setting("admin_broker_thread_pool_queue_capacity", "adminBrokerThreadPoolQueueCapacity")
    ] = 10_000
    send_wait_ms: Annotated[
        WaitMs, Setting("wait_time_mills_in_send_queue", "waitTimeMillsInSendQueue", mutable=True)
    ] = 200
    """Milliseconds that a request of this group may wait. The same applies to each group below."""
    pull_wait_ms: Annotated[
        WaitMs, Setting("wait_time_mills_in_pull_queue", "waitTimeMillsInPullQueue", mutable=True)
    ] = 5000
    lite_pull_wait_ms: Annotated[
        WaitMs, Setting("wait_time_mills_in_lite_pull_queue", "waitTimeMillsInLitePullQueue", mutable=True)
    ] = 5000
    heartbeat_wait_ms: Annotated[
        WaitMs, Setting("wait_time_mills_in_heartbeat_queue", "waitTimeMillsInHeartbeatQueue", mutable=True)
    ] = 31_000
    end_transaction_wait_ms: Annotated[
        WaitMs, Setting("wait_time_mills_in_transaction_queue", "waitTimeMillsInTransactionQueue", mutable=True)
    ] = 3000
    admin_wait_ms: Annotated[
        WaitMs, Setting("wait_time_mills_in_admin_broker_queue", "waitTimeMillsInAdminBrokerQueue", mutable=True)
    ] = 5000


class ConsumptionSettings(SettingsTable, kw_only=True):
    """[consumers]: consumer groups, pulls and filters."""

    auto_create_group: Annotated[bool, Setting("auto_create_group", "autoCreateSubscriptionGroup", mutable=True)] = True
    long_polling: Annotated[bool, Setting("long_polling", "longPollingEnable", mutable=True)] = True
    short_polling_ms: Annotated[Count, Setting("short_polling_ms", "shortPollingTimeMills", mutable=True)] = 1000
    notify_members_changed: Annotated[
        bool, Setting("notify_members_changed", "notifyConsumerIdsChangedEnable", mutable=True)
    ] = True
    """Notify the members of a group when one joins or leaves. Otherwise they detect it themselves."""
    lite_pull_enable: Annotated[bool, Setting("lite_pull_message_enable", "litePullMessageEnable", mutable=True)] = True
    """Whether the broker serves lite pull consumers."""
    reject_pull_enable: Annotated[
        bool, Setting("reject_pull_consumer_enable", "rejectPullConsumerEnable", mutable=True)
    ] = False
    """Serve only push consumers. A pull consumer is not registered, and its pulls are rejected."""
    reset_on_broker: Annotated[
        bool, Setting("use_server_side_reset_offset", "useServerSideResetOffset", mutable=True)
    ] = True
    """Keep a reset of offsets for the next pulls of the group. Otherwise the broker sends it to the clients, as
    clients before 5.0 expect."""
    slave_read_enable: Annotated[bool, Setting("slave_read_enable", "slaveReadEnable", mutable=True)] = False
    """Suggest another broker id, from the config of the group, to consumers with a large lag. Pulls stay here unless a
    broker with this name and that id exists."""
    in_memory_percent: Annotated[
        Percent, Setting("access_message_in_memory_max_ratio", "accessMessageInMemoryMaxRatio", mutable=True)
    ] = 40
    """Percent of the machine's memory that the end of the log is assumed to use. A consumer that reads before this
    part has a large lag."""
    store_replies: Annotated[bool, Setting("store_reply_message_enable", "storeReplyMessageEnable", mutable=True)] = (
        True
    )
    """Also store each reply to a request in the reply topic of the cluster."""
    client_expiry_ms: Annotated[Positive, Setting("client_expiry_ms", "channelExpiredTimeout", mutable=True)] = 120_000
    lock_expiry_ms: Annotated[Positive, Setting("lock_expiry_ms")] = 60_000
    offsets_persist_ms: Annotated[Positive, Setting("offsets_persist_ms", "flushConsumerOffsetInterval")] = 5000
    filter_by_properties: Annotated[bool, Setting("enable_property_filter", "enablePropertyFilter")] = False
    """Whether consumers may filter by SQL92. They may always filter by tags."""
    filter_retries: Annotated[bool, Setting("filter_support_retry", "filterSupportRetry")] = False
    """Whether a SQL92 subscription to a retry topic filters each message by the filter of its original topic."""
    filter_unit_bytes_max: Annotated[Positive, Setting("max_filter_message_size", "maxFilterMessageSize")] = 16_000
    """Bytes of queue units, of 20 bytes each, that a pull with a filter reads."""
    filter_kept_ms: Annotated[DurationMs, Setting("filter_data_clean_time_span", "filterDataCleanTimeSpan")] = (
        24 * 3600 * 1000
    )
    """Milliseconds after which the filter of a group without members is deleted."""


class TransactionSettings(SettingsTable, kw_only=True):
    """[transactions]: checks and counts of transactions."""

    reject: Annotated[bool, Setting("reject_transaction_message", "rejectTransactionMessage", mutable=True)] = False
    time_out_ms: Annotated[DurationMs, Setting("transaction_time_out", "transactionTimeOut")] = 6000
    """Age in milliseconds of a transaction at the first check with its producer, unless its message names another
    age."""
    check_max: Annotated[Count, Setting("transaction_check_max", "transactionCheckMax")] = 15
    """Maximum number of checks with the producer. Then the message is moved to TRANS_CHECK_MAX_TIME_TOPIC."""
    check_interval_ms: Annotated[Positive, Setting("transaction_check_interval", "transactionCheckInterval")] = 30_000
    """Milliseconds between two rounds of checks of the transactions that have not ended."""
    op_message_bytes_max: Annotated[Positive, Setting("transaction_op_msg_max_size", "transactionOpMsgMaxSize")] = 4096
    op_interval_ms: Annotated[Count, Setting("transaction_op_batch_interval", "transactionOpBatchInterval")] = 3000
    """Maximum milliseconds from the end of a transaction to the op message that stores it. An op message with
    `transaction_op_msg_max_size` bytes is written at once."""
    metrics_interval_ms: Annotated[
        Positive, Setting("transaction_metric_flush_interval", "transactionMetricFlushInterval")
    ] = 3000
    """Milliseconds between two writes of config/transactionMetrics while counts change."""


class PipelineSettings(SettingsTable, kw_only=True):
    """[pipeline]: the plans for the pipeline."""

    pace_ms: Annotated[Positive, Setting("pipeline_pace_ms")] = 1000
    """Time from one plan for the pipeline to the next. A plan with enough rows for a turn does not wait."""


class MetricsSettings(SettingsTable, kw_only=True):
    """[metrics]: the export of metrics."""

    exporter: Annotated[MetricsExporter, Setting("metrics_exporter_type", "metricsExporterType")] = (
        MetricsExporter.DISABLE
    )
    prom_host: Annotated[str, Setting("metrics_prom_exporter_host", "metricsPromExporterHost")] = "127.0.0.1"
    prom_port: Annotated[Port, Setting("metrics_prom_exporter_port", "metricsPromExporterPort")] = 5557
    prom_token_file: Annotated[str, Setting("metrics_prom_exporter_token_file")] = ""
    """A file with a token that a fetch must have as `Authorization: Bearer TOKEN`. Empty means that a fetch needs none.
    """
    otlp_target: Annotated[str, Setting("metrics_otlp_target", "metricsGrpcExporterTarget")] = ""
    """The address of a collector, such as http://127.0.0.1:4317. Without `http://` in front, the broker uses TLS."""
    otlp_header: Annotated[
        str, Setting("metrics_otlp_header", "metricsGrpcExporterHeader", narrower="NAME:VALUE,NAME:VALUE")
    ] = ""
    """Headers of each request to the collector. Secret."""
    otlp_timeout_ms: Annotated[Positive, Setting("metrics_otlp_timeout_ms", "metricGrpcExporterTimeOutInMills")] = 3000
    """Milliseconds in which the collector must accept the metrics, with all attempts."""
    otlp_interval_ms: Annotated[Positive, Setting("metrics_otlp_interval_ms", "metricGrpcExporterIntervalInMills")] = (
        60_000
    )

    def __repr__(self) -> str:
        return f"MetricsSettings(exporter={self.exporter})"

    def check(self) -> None:
        """Check the settings of the collector. No text contains a header."""
        if self.exporter is MetricsExporter.OTLP_GRPC and not self.otlp_target.strip():
            raise ValueError(
                "metrics_otlp_target is empty, and metrics_exporter_type is OTLP_GRPC: set it to the address "
                "of a collector, such as http://127.0.0.1:4317"
            )
        _ = self.otlp_headers

    @property
    def otlp_url(self) -> str:
        """The address of the collector as a URL. As in Apache's broker, one without a scheme gets https."""
        target = self.otlp_target.strip()
        return target if "://" in target else f"https://{target}"

    @property
    def otlp_headers(self) -> dict[str, str]:
        """The headers by name, in lower case as gRPC needs them. Raises ValueError."""
        found = {}
        for pair in filter(None, self.otlp_header.split(",")):
            name, colon, value = pair.partition(":")
            if not colon or not name.strip() or not value.strip():
                raise ValueError("metrics_otlp_header: write NAME:VALUE, with a comma between two of them")
            found[name.strip().lower()] = value.strip()
        return found


class BrokerSettings(SettingsTables, kw_only=True):
    """All settings of a broker, by the tables of a TOML file. Only `broker.configuration` sets fields of them."""

    broker: NodeSettings = field(default_factory=NodeSettings)
    store: StoreSettings
    flush: FlushSettings = field(default_factory=FlushSettings)
    index: IndexSettings = field(default_factory=IndexSettings)
    expiry: ExpirySettings = field(default_factory=ExpirySettings)
    topics: TopicSettings = field(default_factory=TopicSettings)
    requests: RequestSettings = field(default_factory=RequestSettings)
    connections: ConnectionSettings = field(default_factory=ConnectionSettings)
    queues: RequestQueueSettings = field(default_factory=RequestQueueSettings)
    consumers: ConsumptionSettings = field(default_factory=ConsumptionSettings)
    transactions: TransactionSettings = field(default_factory=TransactionSettings)
    levels: LevelSettings = field(default_factory=LevelSettings)
    timer: TimerSettings = field(default_factory=TimerSettings)
    blocks: BlockSettings = field(default_factory=BlockSettings)
    pipeline: PipelineSettings = field(default_factory=PipelineSettings)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    replication: ReplicationSettings = field(default_factory=ReplicationSettings)
    controller: ControllerSettings = field(default_factory=ControllerSettings)
    tls: TlsSettings = field(default_factory=TlsSettings)
    auth: AuthSettings = field(default_factory=AuthSettings)

    @property
    def starts_as_slave(self) -> bool:
        """Whether the settings name a slave."""
        return self.broker.id != 0 or self.replication.role is BrokerRole.SLAVE
