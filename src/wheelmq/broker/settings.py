"""The broker's settings. They are data only: clock, disk and network are components.

Names follow Apache's broker.conf in snake case. The limits are ours.
"""

from __future__ import annotations

import ipaddress
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from wheelmq.broker import timer_settings
from wheelmq.broker.size_settings import (
    TIMER_SLOTS_MAX,
    BlockLogFileBytes,
    BlockQueueFileBytes,
    LogFileBytes,
    QueueFileBytes,
    TimerLogFileBytes,
    TimerSlots,
)
from wheelmq.config.bounds import INT_MAX, Count, DurationMs, EpochMs, Name, Percent, Port, Positive, WaitMs
from wheelmq.delay.levels.table import DEFAULT_LEVELS
from wheelmq.delay.timer.congestion import NO_LIMIT
from wheelmq.formats.disk.block import BLOCK_LOG_FILE_BYTES, BLOCK_UNIT
from wheelmq.formats.disk.block import UNITS_PER_FILE as BLOCK_UNITS_PER_FILE
from wheelmq.formats.disk.index import SLOTS, UNITS


class FlushMode(StrEnum):
    """Whether the broker answers a send before or after it is on disk."""

    ASYNC = "ASYNC_FLUSH"
    SYNC = "SYNC_FLUSH"


class MetricsExporter(StrEnum):
    """How the broker exports metrics."""

    DISABLE = "DISABLE"
    PROM = "PROM"
    """Prometheus fetches them over HTTP."""


class BrokerSettings(msgspec.Struct, kw_only=True):
    """All settings of a broker. Only `broker.configuration` sets fields, and only those that it lists as mutable."""

    store_path: Path
    cluster: Name = "DefaultCluster"
    broker_name: Name = "broker-a"
    broker_id: Count = 0
    """0 is a master. With another id the broker is a slave for clients: it rejects sends, and nothing replicates to
    it."""
    broker_ip: str = "127.0.0.1"
    """The address in routes and message ids. Clients connect to it."""
    listen_host: str = "127.0.0.1"
    """The address to listen on. 0.0.0.0 means all addresses of the machine."""
    listen_port: Port = 10911
    """0 picks a free one."""
    listen_backlog: Positive = 1024
    """Maximum number of connections that wait to be accepted."""
    socket_send_bytes: Count = 0
    """Send buffer of a connection in the kernel. With 0 the kernel decides."""
    socket_receive_bytes: Count = 0
    namesrv: tuple[str, ...] = ()
    """Name servers to register with, each HOST:PORT."""
    register_period_ms: Annotated[int, Meta(ge=10_000, le=60_000)] = 30_000
    """Time between two registrations, when nothing changes."""
    register_timeout_ms: Positive = 24_000
    """Time for a name server to answer a registration."""
    region_id: Name = "DefaultRegion"
    trace_on: bool = True
    broker_permission: Annotated[int, Meta(ge=0, le=7)] = 6
    """4 allows reads, 2 writes, 6 both. The broker registers it with each topic, so clients obey it. The broker
    itself only rejects pulls, sends to ordered topics, and messages that a consumer sends back."""

    flush_mode: FlushMode = FlushMode.ASYNC
    flush_interval_ms: Positive = 500
    """Milliseconds until the log is flushed, if no send waits for that. With ASYNC_FLUSH a burst of releases makes it
    ten times as long, up to 5000, because a flush reduces the speed of a burst to less than half."""
    flush_commit_log_least_pages: Count = 0
    """A flush waits for this number of whole pages. Apache has 4. Here it is 0, because the index and the pipeline
    only read flushed data."""
    flush_commit_log_thorough_interval: Count = 10_000
    """Milliseconds after which a flush does not wait for more pages."""
    sync_flush_timeout_ms: Positive = 5000
    checkpoint_ms: Positive = 3000
    snapshot_ms: Positive = 30_000
    snapshot_log_bytes: Annotated[int, Meta(ge=1, le=1 << 50)] = 16 << 20
    """Growth of the log after which the broker writes a new snapshot for the next start. With less growth it writes
    one after `snapshot_ms`. Two snapshots are at least `checkpoint_ms` apart."""
    log_file_bytes: LogFileBytes = 1 << 30
    queue_file_bytes: QueueFileBytes = 300_000 * 20
    log_files_ahead: Annotated[int, Meta(ge=0, le=2)] = 2
    """Number of log files that are created before the log reaches them. Fewer files leave more space on a small disk.
    """
    mapped_queue_files_max: Positive = 4096
    """Number of unused consume queue files that stay mapped."""
    warm_maped_file_enable: bool = False
    """Populate whole log files when they are created ahead, and lock them in memory until the log has left them.
    Without the permission to lock (ulimit -l) the broker logs a WARNING, and only populates them."""
    message_index_enable: bool = True
    max_hash_slot_num: Positive = SLOTS
    max_index_num: Annotated[int, Meta(ge=2, le=INT_MAX)] = UNITS
    """Number of entries in an index file. With Apache's numbers of slots and entries a file has 420 MB. The maximum
    is 2147483647 bytes."""
    file_reserved_time: Count = 72
    """Minimum age in hours of a deleted log file, unless the disk is nearly full."""
    delete_when: str = "04"
    disk_max_used_space_ratio: Percent = 75
    disk_space_clean_forcibly_ratio: Percent = 85
    disk_space_warning_level_ratio: Percent = 90
    """Percent of the disk in use above which sends are rejected. Due messages are still released."""
    clean_file_forcibly_enable: bool = True
    """Delete log files of any age from `disk_space_clean_forcibly_ratio` on. Otherwise only old files are deleted."""
    delete_file_batch_max: Positive = 10
    clean_resource_interval_ms: Positive = 10_000

    os_page_cache_busy_time_out_mills: Positive = 1000
    """Age of a round above which the broker answers its remaining sends with SYSTEM_BUSY."""
    start_accept_send_request_time_stamp: EpochMs = 0
    """Epoch milliseconds before which all sends are rejected."""
    metrics_exporter_type: MetricsExporter = MetricsExporter.DISABLE
    metrics_prom_exporter_host: str = "127.0.0.1"
    metrics_prom_exporter_port: Port = 5557

    auto_create_topic: bool = True
    auto_create_group: bool = True
    default_topic_queues: Annotated[int, Meta(ge=1, le=8192)] = 8
    cluster_topic_enable: bool = True
    """Whether clients may send to and read the topic with the name of the cluster."""
    broker_topic_enable: bool = True
    """Whether clients may send to and read the topic with the name of the broker."""
    trace_topic_enable: bool = False
    """Create `trace_topic` at the start."""
    trace_topic: Name = "RMQ_SYS_TRACE_TOPIC"
    body_bytes_max: Positive = 4 << 20
    long_polling: bool = True
    short_polling_ms: Count = 1000
    transfer_count_max: Positive = 32
    transfer_bytes_max: Positive = 256 << 10
    query_count_max: Positive = 64
    """Maximum number of messages in the answer to a query by key."""
    query_unique_key_count_max: Positive = 32
    """Number of messages in the answer to a query by a unique key, whatever number it asks for."""
    notify_members_changed: bool = True
    """Notify the members of a group when one joins or leaves. Otherwise they detect it themselves."""
    lite_pull_message_enable: bool = True
    """Whether the broker serves lite pull consumers."""
    reject_pull_consumer_enable: bool = False
    """Serve only push consumers. A pull consumer is not registered, and its pulls are rejected."""
    use_server_side_reset_offset: bool = True
    """Keep a reset of offsets for the next pulls of the group. Otherwise the broker sends it to the clients, as
    clients before 5.0 expect."""
    slave_read_enable: bool = False
    """Suggest another broker id, from the config of the group, to consumers with a large lag. The broker has no
    replicas yet, so pulls stay here unless another broker with this name and that id exists."""
    access_message_in_memory_max_ratio: Percent = 40
    """Percent of the machine's memory that the end of the log is assumed to use. A consumer that reads before this
    part has a large lag."""
    store_reply_message_enable: bool = True
    """Also store each reply to a request in the reply topic of the cluster."""
    recall_enable: bool = True

    reject_transaction_message: bool = False
    transaction_time_out: DurationMs = 6000
    """Age in milliseconds of a transaction at the first check with its producer, unless its message names another
    age."""
    transaction_check_max: Count = 15
    """Maximum number of checks with the producer. Then the message is moved to TRANS_CHECK_MAX_TIME_TOPIC."""
    transaction_check_interval: Positive = 30_000
    """Milliseconds between two rounds of checks of the transactions that have not ended."""
    transaction_op_msg_max_size: Positive = 4096
    transaction_op_batch_interval: Count = 3000
    """Maximum milliseconds from the end of a transaction to the op message that stores it. An op message with
    `transaction_op_msg_max_size` bytes is written at once."""
    transaction_metric_flush_interval: Positive = 3000
    """Milliseconds between two writes of config/transactionMetrics while counts change."""
    enable_property_filter: bool = False
    """Whether consumers may filter by SQL92. They may always filter by tags."""
    filter_support_retry: bool = False
    """Whether a SQL92 subscription to a retry topic filters each message by the filter of its original topic."""
    max_filter_message_size: Positive = 16_000
    """Bytes of queue units, of 20 bytes each, that a pull with a filter reads."""
    filter_data_clean_time_span: DurationMs = 24 * 3600 * 1000
    """Milliseconds after which the filter of a group without members is deleted."""

    message_delay_level: str = DEFAULT_LEVELS
    flush_delay_offset_interval: Positive = 10_000
    """Milliseconds between two writes of delayOffset.json, if it has changed."""
    timer_max_delay_seconds: Count = 3 * 24 * 3600
    timer_precision_ms: int = 1000
    timer_roll_window_slots: Annotated[int, Meta(ge=2, le=TIMER_SLOTS_MAX)] = 2 * 24 * 3600
    timer_congest_num_each_slot: Count = NO_LIMIT
    """Number of messages in a slot above which some sends for it are rejected by chance. From twice this number on,
    all are rejected."""
    timer_slots: TimerSlots = 7 * 24 * 3600
    timer_log_file_bytes: TimerLogFileBytes = 100 << 20
    timer_wheel_enable: bool = True
    timer_lead_ms: Positive = 30_000
    timer_stop_enqueue: bool = False
    """Index and arm nothing of the timer queue until this is off again."""
    timer_stop_dequeue: bool = False
    """Release no message of the timer queue until this is off again."""
    disappear_time_after_start: Annotated[int, Meta(ge=-1, le=INT_MAX)] = -1
    """Milliseconds from the start without releases of timers and without registration."""
    timer_warm_enable: bool = False
    """Read the messages that are due within three seconds into memory, so that their release does not wait for the
    disk."""
    timer_enable_check_metrics: bool = True
    """Count the pending messages again from their records, at the hours of `timer_check_metrics_when`."""
    timer_check_metrics_when: str = "05"
    """Hours of the day, separated by `;`."""
    timer_flush_interval_ms: Count = 10_000
    """Milliseconds between two writes of config/timermetrics while counts change. Apache: 1000."""
    timer_progress_log_interval_ms: Count = 10_000
    """Milliseconds between two log lines about the progress of the timer, while it works."""
    block_enable: bool = True
    """Whether the property delayInSeconds delays a message in a block. Otherwise it has no meaning for the broker."""
    block_length_seconds: Positive = 3600
    block_max_delay_seconds: Count = 366 * 24 * 3600
    block_log_file_bytes: BlockLogFileBytes = BLOCK_LOG_FILE_BYTES
    block_queue_file_bytes: BlockQueueFileBytes = BLOCK_UNITS_PER_FILE * BLOCK_UNIT.size
    pipeline_pace_ms: Positive = 1000
    """Time from one plan for the pipeline to the next. A plan with enough rows for a turn does not wait."""

    release_slice_ms: Annotated[float, Meta(ge=0, le=1000)] = 1.0
    """Time in which one tick releases messages, so that a burst leaves time for sends and pulls. If the requests
    since the last tick took longer, that time applies, so that a flood of sends leaves time for releases. While
    thousands of messages are due, the time is four times as long."""
    client_expiry_ms: Positive = 120_000
    lock_expiry_ms: Positive = 60_000
    offsets_persist_ms: Positive = 5000
    response_timeout_ms: Positive = 10_000
    frame_deadline_ms: Positive = 30_000
    """Time in which an incomplete frame must become complete."""
    connection_buffer_bytes_max: Positive = 2 << 20
    """Bytes of answers that one peer has not read. Above it, the broker stops reading from that peer."""
    send_thread_pool_queue_capacity: Positive = 10_000
    """Number of requests of this group that a round may serve. The next requests are answered SYSTEM_BUSY. The same
    applies to each group below."""
    pull_thread_pool_queue_capacity: Positive = 100_000
    lite_pull_thread_pool_queue_capacity: Positive = 100_000
    reply_thread_pool_queue_capacity: Positive = 10_000
    query_thread_pool_queue_capacity: Positive = 20_000
    heartbeat_thread_pool_queue_capacity: Positive = 50_000
    client_manager_thread_pool_queue_capacity: Positive = 1_000_000
    consumer_manager_thread_pool_queue_capacity: Positive = 1_000_000
    end_transaction_pool_queue_capacity: Positive = 100_000
    admin_broker_thread_pool_queue_capacity: Positive = 10_000
    broker_fast_failure_enable: bool = True
    """Answer SYSTEM_BUSY to a request that has waited too long, because its client may have sent it again already."""
    wait_time_mills_in_send_queue: WaitMs = 200
    """Milliseconds that a request of this group may wait. The same applies to each group below."""
    wait_time_mills_in_pull_queue: WaitMs = 5000
    wait_time_mills_in_lite_pull_queue: WaitMs = 5000
    wait_time_mills_in_heartbeat_queue: WaitMs = 31_000
    wait_time_mills_in_transaction_queue: WaitMs = 3000
    wait_time_mills_in_admin_broker_queue: WaitMs = 5000
    server_channel_max_idle_time_seconds: Count = 120
    """Seconds without a byte to or from a connection after which it is closed. With 0 it stays open."""
    fast_port_enable: bool = True
    """Also listen on `listen_port` - 2, for clients with a VIP channel. This port serves the same requests."""
    connections_max: Positive = 50_000
    """Further connections are closed at once. The limit is lower if the process may open fewer files."""
    bytes_in_flight_max: Annotated[int, Meta(ge=64 << 20, le=1 << 40)] = 512 << 20
    """Bytes in memory for all connections: incomplete frames and unread answers. Above it, the broker closes the
    connections that hold most."""

    @classmethod
    def of(cls, **values: Any) -> BrokerSettings:
        """Return settings with `values`, by the names for `--set`. The others have their defaults."""
        return cls(**values)

    @property
    def is_master(self) -> bool:
        """Whether clients take the broker for a master, by its id."""
        return self.broker_id == 0

    @property
    def holds_dequeue(self) -> bool:
        """Whether the broker releases no timers after its start."""
        return self.timer_stop_dequeue or self.disappear_time_after_start > 0

    def __post_init__(self) -> None:
        try:
            ipaddress.IPv4Address(self.broker_ip)
        except ValueError:
            raise ValueError(f"broker_ip is {self.broker_ip!r}: it must be an IPv4 address, such as 10.0.0.7") from None
        timer_settings.check(
            precision_ms=self.timer_precision_ms,
            roll_window_slots=self.timer_roll_window_slots,
            slots=self.timer_slots,
            max_delay_seconds=self.timer_max_delay_seconds,
            congest_num_each_slot=self.timer_congest_num_each_slot,
        )
