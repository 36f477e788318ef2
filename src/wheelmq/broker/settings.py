"""The broker's settings. Data only: clock, disk and network are components.

Names follow Apache's broker.conf in snake case; the limits are ours.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import msgspec

from wheelmq.broker import timer_settings
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


class BrokerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that can be chosen."""

    store_path: Path
    cluster: str = "DefaultCluster"
    broker_name: str = "broker-a"
    broker_id: int = 0
    broker_ip: str = "127.0.0.1"
    """The address that routes and message ids name: clients dial it."""
    listen_port: int = 10911
    namesrv: tuple[str, ...] = ()
    region_id: str = "DefaultRegion"
    trace_on: bool = True

    flush_mode: FlushMode = FlushMode.ASYNC
    flush_interval_ms: int = 500
    flush_commit_log_least_pages: int = 0
    """Whole pages that a flush waits for. Apache has 4; here the index and the pipeline follow what is on disk."""
    flush_commit_log_thorough_interval: int = 10_000
    """Milliseconds that it waits for them at most."""
    sync_flush_timeout_ms: int = 5000
    checkpoint_ms: int = 3000
    snapshot_ms: int = 30_000
    snapshot_log_bytes: int = 16 << 20
    """A snapshot for the next start is written when the log has grown since the last one for so long, or by so much;
    no two of them in less than `checkpoint_ms`."""
    log_file_bytes: int = 1 << 30
    queue_file_bytes: int = 300_000 * 20
    log_files_ahead: int = 2
    """Log files made before the log reaches them: the next, and the next but one. Fewer leave more of a small disk."""
    mapped_queue_files_max: int = 4096
    """Files of consume queues that stay mapped when nothing is asked of them."""
    warm_maped_file_enable: bool = False
    """Populate log files whole when they are made ahead, not only their first pages. They are not locked in memory."""
    message_index_enable: bool = True
    max_hash_slot_num: int = SLOTS
    max_index_num: int = UNITS
    """Places and units of an index file; with Apache's numbers it has 420 MB."""
    file_reserved_time: int = 72
    """Hours for which log files are kept at least, unless the disk is nearly full."""
    delete_when: str = "04"
    disk_max_used_space_ratio: int = 75
    disk_space_clean_forcibly_ratio: int = 85
    disk_space_warning_level_ratio: int = 90
    """Percent of the disk used at which sends are refused; what is due still goes out."""
    delete_file_batch_max: int = 10
    clean_resource_interval_ms: int = 10_000

    os_page_cache_busy_time_out_mills: int = 1000
    """Age of a tick past which its remaining sends are told to come again."""
    start_accept_send_request_time_stamp: int = 0
    """Epoch milliseconds before which nothing is taken."""
    metrics_exporter_type: MetricsExporter = MetricsExporter.DISABLE
    metrics_prom_exporter_host: str = "127.0.0.1"
    metrics_prom_exporter_port: int = 5557

    auto_create_topic: bool = True
    auto_create_group: bool = True
    default_topic_queues: int = 8
    body_bytes_max: int = 4 << 20
    long_polling: bool = True
    short_polling_ms: int = 1000
    transfer_count_max: int = 32
    transfer_bytes_max: int = 256 << 10
    recall_enable: bool = True

    message_delay_level: str = DEFAULT_LEVELS
    flush_delay_offset_interval: int = 10_000
    """Milliseconds between two writes of delayOffset.json, when something has changed."""
    timer_max_delay_seconds: int = 3 * 24 * 3600
    timer_precision_ms: int = 1000
    timer_roll_window_slots: int = 2 * 24 * 3600
    timer_congest_num_each_slot: int = NO_LIMIT
    """Messages that may wait in a slot before sends for it are refused, by chance and, from twice as many on, all."""
    timer_slots: int = 7 * 24 * 3600
    timer_log_file_bytes: int = 100 << 20
    timer_wheel_enable: bool = True
    timer_lead_ms: int = 30_000
    timer_stop_enqueue: bool = False
    """Index and stage nothing of the timer queue: it waits until this is off again."""
    timer_stop_dequeue: bool = False
    """Release nothing of the timer queue: what is due waits until this is off again."""
    disappear_time_after_start: int = -1
    """Milliseconds from the start for which no timer is released and no name server is told of the broker."""
    timer_warm_enable: bool = False
    """Have what is released within three seconds read into memory, so that its release waits for no disk."""
    timer_enable_check_metrics: bool = True
    """Count what waits anew, from the records, at the hours that follow."""
    timer_check_metrics_when: str = "05"
    """Hours of the day, with `;` between them."""
    timer_flush_interval_ms: int = 10_000
    """How often config/timermetrics is written while counts change. Apache: every 1000 ms."""
    timer_progress_log_interval_ms: int = 10_000
    """How often a line of the log says how far the timer is, while it does anything."""
    block_enable: bool = True
    """Whether the property delayInSeconds asks for a delay, by way of a block; else it is as any other property."""
    block_length_seconds: int = 3600
    block_max_delay_seconds: int = 366 * 24 * 3600
    block_log_file_bytes: int = BLOCK_LOG_FILE_BYTES
    block_queue_file_bytes: int = BLOCK_UNITS_PER_FILE * BLOCK_UNIT.size
    pipeline_pace_ms: int = 1000
    """From one plan for the pipeline to the next, unless there are rows enough for a turn of its own."""

    release_slice_ms: float = 1.0
    """Time that one tick releases messages for, so that sends and pulls beside a burst have their share; as long as the
    tick has served requests before, if that was longer: then releases have theirs beside a flood of sends."""
    client_expiry_ms: int = 120_000
    lock_expiry_ms: int = 60_000
    offsets_persist_ms: int = 5000
    response_timeout_ms: int = 10_000
    frame_deadline_ms: int = 30_000
    """A frame that has begun must be whole within this time."""
    connection_buffer_bytes_max: int = 16 << 20
    """Answers waiting for one peer; past it the broker stops reading from that peer."""

    @property
    def holds_dequeue(self) -> bool:
        """Whether no timer is released from the start on."""
        return self.timer_stop_dequeue or self.disappear_time_after_start > 0

    def __post_init__(self) -> None:
        timer_settings.check(
            precision_ms=self.timer_precision_ms,
            roll_window_slots=self.timer_roll_window_slots,
            slots=self.timer_slots,
            max_delay_seconds=self.timer_max_delay_seconds,
            congest_num_each_slot=self.timer_congest_num_each_slot,
        )
