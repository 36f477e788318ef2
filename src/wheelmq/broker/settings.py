"""The broker's settings. Data only: clock, disk and network are components.

Names follow Apache's broker.conf in snake case; the limits are ours.
"""

from __future__ import annotations

import ipaddress
from enum import StrEnum
from pathlib import Path
from typing import Annotated

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
from wheelmq.delay.levels import DEFAULT_LEVELS
from wheelmq.delay.timer.congestion import NO_LIMIT
from wheelmq.formats.disk.block import BLOCK_LOG_FILE_BYTES, BLOCK_UNIT
from wheelmq.formats.disk.block import UNITS_PER_FILE as BLOCK_UNITS_PER_FILE
from wheelmq.formats.disk.index import SLOTS, UNITS


class FlushMode(StrEnum):
    """Whether a send is answered before or after it is on disk."""

    ASYNC = "ASYNC_FLUSH"
    SYNC = "SYNC_FLUSH"


class MetricsExporter(StrEnum):
    """How metrics leave the broker."""

    DISABLE = "DISABLE"
    PROM = "PROM"
    """Prometheus fetches them over HTTP."""


class BrokerSettings(msgspec.Struct, kw_only=True):
    """All settings of a broker. Only `broker.configuration` sets fields, and only those that it lists as mutable."""

    store_path: Path
    cluster: Name = "DefaultCluster"
    broker_name: Name = "broker-a"
    broker_id: Count = 0
    """0 is a master. With another id the broker is a slave for clients: it rejects sends, and nothing replicates to it.
    """
    broker_ip: str = "127.0.0.1"
    """The address that routes and message ids name: clients dial it."""
    listen_host: str = "127.0.0.1"
    """The address that is listened on; 0.0.0.0 is every one of the machine."""
    listen_port: Port = 10911
    """0 picks a free one."""
    listen_backlog: Positive = 1024
    """Connections that wait to be accepted."""
    socket_send_bytes: Count = 0
    """Buffer of a connection in the system; 0 leaves it to the system."""
    socket_receive_bytes: Count = 0
    namesrv: tuple[str, ...] = ()
    """Name servers to register at, HOST:PORT each."""
    register_period_ms: Annotated[int, Meta(ge=10_000, le=60_000)] = 30_000
    """From one registration to the next, when nothing changes."""
    register_timeout_ms: Positive = 24_000
    """How long a name server may take to answer one."""
    region_id: str = "DefaultRegion"
    trace_on: bool = True
    broker_permission: Annotated[int, Meta(ge=0, le=7)] = 6
    """4 lets read, 2 write, 6 both. It is registered with every topic, so clients keep away; the broker itself refuses
    pulls, and sends to topics in order and of messages that come back."""

    flush_mode: FlushMode = FlushMode.ASYNC
    flush_interval_ms: Positive = 500
    """Milliseconds until what is in the log, and nobody waits for it, is flushed; with ASYNC_FLUSH ten times that, 5000
    at most, while a burst of what is due leaves, which a flush slows down to less than half."""
    flush_commit_log_least_pages: Count = 0
    """Whole pages that a flush waits for. Apache has 4; here the index and the pipeline follow what is on disk."""
    flush_commit_log_thorough_interval: Count = 10_000
    """Milliseconds that it waits for them at most."""
    sync_flush_timeout_ms: Positive = 5000
    checkpoint_ms: Positive = 3000
    snapshot_ms: Positive = 30_000
    snapshot_log_bytes: Annotated[int, Meta(ge=1, le=1 << 50)] = 16 << 20
    """A snapshot for the next start is written when the log has grown since the last one for so long, or by so much;
    no two of them in less than `checkpoint_ms`."""
    log_file_bytes: LogFileBytes = 1 << 30
    queue_file_bytes: QueueFileBytes = 300_000 * 20
    log_files_ahead: Annotated[int, Meta(ge=0, le=2)] = 2
    """Log files that are made before the log reaches them. Fewer leave more room on a small disk."""
    mapped_queue_files_max: Positive = 4096
    """Files of consume queues that stay mapped when nothing is asked of them."""
    warm_maped_file_enable: bool = False
    """Populate log files whole when they are made ahead, and lock them in memory until the log has left them. Without
    the permission to lock (ulimit -l) the broker logs a WARNING, and they are only populated."""
    message_index_enable: bool = True
    max_hash_slot_num: Positive = SLOTS
    max_index_num: Annotated[int, Meta(ge=2, le=INT_MAX)] = UNITS
    """Hash slots and entries of an index file. With Apache's numbers it has 420 MB; it may have 2147483647 bytes."""
    file_reserved_time: Count = 72
    """Hours for which log files are kept at least, unless the disk is nearly full."""
    delete_when: str = "04"
    disk_max_used_space_ratio: Percent = 75
    disk_space_clean_forcibly_ratio: Percent = 85
    disk_space_warning_level_ratio: Percent = 90
    """Percent of the disk used at which sends are refused; what is due still goes out."""
    clean_file_forcibly_enable: bool = True
    """Remove log files of any age from `disk_space_clean_forcibly_ratio` on; else those that are old alone."""
    delete_file_batch_max: Positive = 10
    clean_resource_interval_ms: Positive = 10_000

    os_page_cache_busy_time_out_mills: Positive = 1000
    """Age of a round of requests past which its remaining sends are told to come again."""
    start_accept_send_request_time_stamp: EpochMs = 0
    """Epoch milliseconds before which nothing is taken."""
    metrics_exporter_type: MetricsExporter = MetricsExporter.DISABLE
    metrics_prom_exporter_host: str = "127.0.0.1"
    metrics_prom_exporter_port: Port = 5557

    auto_create_topic: bool = True
    auto_create_group: bool = True
    default_topic_queues: Annotated[int, Meta(ge=1, le=8192)] = 8
    cluster_topic_enable: bool = True
    """Whether the topic named like the cluster may be sent to and read."""
    broker_topic_enable: bool = True
    """Whether the topic named like the broker may be sent to and read."""
    trace_topic_enable: bool = False
    """Make `trace_topic` at the start."""
    trace_topic: Name = "RMQ_SYS_TRACE_TOPIC"
    body_bytes_max: Positive = 4 << 20
    long_polling: bool = True
    short_polling_ms: Count = 1000
    transfer_count_max: Positive = 32
    transfer_bytes_max: Positive = 256 << 10
    query_count_max: Positive = 64
    """Messages that a query by key gives."""
    query_unique_key_count_max: Positive = 32
    """Messages that a query by a unique key gives, whatever it asks for."""
    notify_members_changed: bool = True
    """Tell the members of a group when one comes or goes; else they find out by themselves."""
    lite_pull_message_enable: bool = True
    """Whether lite pull consumers are served."""
    reject_pull_consumer_enable: bool = False
    """Serve consumers that push alone: whoever pulls by itself is not registered, and its pulls are refused."""
    use_server_side_reset_offset: bool = True
    """Keep resets of offsets for the groups' next pulls; else their clients are told, as clients before 5.0 expect."""
    slave_read_enable: bool = False
    """Suggest another broker id to consumers that are far behind, as their group names it. The broker has no replicas
    yet, so pulls stay here unless another broker with this name and that id exists."""
    access_message_in_memory_max_ratio: Percent = 40
    """Share of the machine's memory that the end of the log is taken to have; who reads before it is far behind."""
    store_reply_message_enable: bool = True
    """Keep replies to requests in the topic of the cluster for them, as well as passing them on."""
    recall_enable: bool = True

    reject_transaction_message: bool = False
    transaction_time_out: DurationMs = 6000
    """Age in milliseconds before which nobody is asked how a transaction ended, unless its message says another."""
    transaction_check_max: Count = 15
    """So often its producer is asked, then its message goes to TRANS_CHECK_MAX_TIME_TOPIC."""
    transaction_check_interval: Positive = 30_000
    """Milliseconds between two looks at the transactions that have not ended."""
    transaction_op_msg_max_size: Positive = 4096
    transaction_op_batch_interval: Count = 3000
    """An op message is written so many milliseconds after the first transaction that it says the end of, or once it
    has so many bytes."""
    transaction_metric_flush_interval: Positive = 3000
    """How often config/transactionMetrics is written while counts change."""
    enable_property_filter: bool = False
    """Whether consumers may filter by SQL92; by tags they always may."""
    filter_support_retry: bool = False
    """Whether a SQL92 subscription to a retry topic filters each message as the topic that it came from is filtered."""
    max_filter_message_size: Positive = 16_000
    """Bytes of a queue's units, of 20 each, that a pull with a filter looks at."""
    filter_data_clean_time_span: DurationMs = 24 * 3600 * 1000
    """Milliseconds for which the filter of a group without members is kept."""

    message_delay_level: str = DEFAULT_LEVELS
    flush_delay_offset_interval: Positive = 10_000
    """Milliseconds between two writes of delayOffset.json, when something has changed."""
    timer_max_delay_seconds: Count = 3 * 24 * 3600
    timer_precision_ms: int = 1000
    timer_roll_window_slots: Annotated[int, Meta(ge=2, le=TIMER_SLOTS_MAX)] = 2 * 24 * 3600
    timer_congest_num_each_slot: Count = NO_LIMIT
    """Messages that may wait in a slot before sends for it are refused, by chance and, from twice as many on, all."""
    timer_slots: TimerSlots = 7 * 24 * 3600
    timer_log_file_bytes: TimerLogFileBytes = 100 << 20
    timer_wheel_enable: bool = True
    timer_lead_ms: Positive = 30_000
    timer_stop_enqueue: bool = False
    """Index and stage nothing of the timer queue: it waits until this is off again."""
    timer_stop_dequeue: bool = False
    """Release nothing of the timer queue: what is due waits until this is off again."""
    disappear_time_after_start: Annotated[int, Meta(ge=-1, le=INT_MAX)] = -1
    """Milliseconds from the start for which no timer is released and no name server is told of the broker."""
    timer_warm_enable: bool = False
    """Have what is released within three seconds read into memory, so that its release waits for no disk."""
    timer_enable_check_metrics: bool = True
    """Count what waits anew, from the records, at the hours that follow."""
    timer_check_metrics_when: str = "05"
    """Hours of the day, with `;` between them."""
    timer_flush_interval_ms: Count = 10_000
    """How often config/timermetrics is written while counts change. Apache: every 1000 ms."""
    timer_progress_log_interval_ms: Count = 10_000
    """How often a line of the log says how far the timer is, while it does anything."""
    block_enable: bool = True
    """Whether the property delayInSeconds asks for a delay, by way of a block; else it is as any other property."""
    block_length_seconds: Positive = 3600
    block_max_delay_seconds: Count = 366 * 24 * 3600
    block_log_file_bytes: BlockLogFileBytes = BLOCK_LOG_FILE_BYTES
    block_queue_file_bytes: BlockQueueFileBytes = BLOCK_UNITS_PER_FILE * BLOCK_UNIT.size
    pipeline_pace_ms: Positive = 1000
    """From one plan for the pipeline to the next, unless there are rows enough for a turn of its own."""

    release_slice_ms: Annotated[float, Meta(ge=0, le=1000)] = 1.0
    """Time that one tick releases messages for, so that sends and pulls beside a burst have their share; as long as
    requests were served since the last tick, if that was longer: then releases have theirs beside a flood of sends.
    While thousands are due, four times as long."""
    client_expiry_ms: Positive = 120_000
    lock_expiry_ms: Positive = 60_000
    offsets_persist_ms: Positive = 5000
    response_timeout_ms: Positive = 10_000
    frame_deadline_ms: Positive = 30_000
    """A frame that has begun must be whole within this time."""
    connection_buffer_bytes_max: Positive = 2 << 20
    """Answers waiting for one peer; past it the broker stops reading from that peer."""
    send_thread_pool_queue_capacity: Positive = 10_000
    """Requests of this group that a round of reading may serve; the next are told to come again. So with each group."""
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
    """Tell requests to come again that have waited for too long: their clients may have sent them again already."""
    wait_time_mills_in_send_queue: WaitMs = 200
    """Milliseconds that a request of this group may wait to be served. So with each group."""
    wait_time_mills_in_pull_queue: WaitMs = 5000
    wait_time_mills_in_lite_pull_queue: WaitMs = 5000
    wait_time_mills_in_heartbeat_queue: WaitMs = 31_000
    wait_time_mills_in_transaction_queue: WaitMs = 3000
    wait_time_mills_in_admin_broker_queue: WaitMs = 5000
    server_channel_max_idle_time_seconds: Count = 120
    """Seconds without a byte to or from a connection after which it is closed; 0 keeps it."""
    fast_port_enable: bool = True
    """Listen on `listen_port` - 2 as well, as clients with a VIP channel expect; it serves the same."""
    connections_max: Positive = 50_000
    """Connections beyond it are closed at once; fewer are taken where the process may open fewer files."""
    bytes_in_flight_max: Annotated[int, Meta(ge=64 << 20, le=1 << 40)] = 512 << 20
    """Bytes in memory for all connections: frames that have begun, and answers that are not read. Past it those are
    closed that hold most."""

    @property
    def holds_dequeue(self) -> bool:
        """Whether the broker starts without releasing timers."""
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
