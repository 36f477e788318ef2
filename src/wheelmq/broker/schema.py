"""The broker's settings by all their names, and the checks of their values."""

from __future__ import annotations

from typing import Final

from wheelmq.broker.settings import BrokerSettings
from wheelmq.broker.size_settings import check_index_size
from wheelmq.broker.timer_settings import PRECISIONS_MS
from wheelmq.config.auth_keys import AUTH_KEYS
from wheelmq.config.broker_keys import BROKER_KEYS
from wheelmq.config.net_keys import CLIENT_KEYS, SERVER_KEYS
from wheelmq.config.schema import Schema, by_name
from wheelmq.config.store_keys import STORE_KEYS
from wheelmq.delay.levels.table import parse_levels
from wheelmq.store.expiry import delete_hours

BLOCK_SECONDS_MIN: Final = 60
"""There are about a million block numbers, and none is reused while the log names it. With blocks of 60 s, the
numbers last two years."""
BLOCK_SECONDS_MAX: Final = 366 * 24 * 3600
"""A block is read, checked and deleted as a whole."""

GROUPS: Final[dict[str, dict[str, str]]] = {
    "broker": {
        "name": "broker_name",
        "cluster": "cluster",
        "id": "broker_id",
        "ip": "broker_ip",
        "listen_host": "listen_host",
        "listen_port": "listen_port",
        "listen_backlog": "listen_backlog",
        "socket_send_bytes": "socket_send_bytes",
        "socket_receive_bytes": "socket_receive_bytes",
        "namesrv": "namesrv",
        "register_period_ms": "register_period_ms",
        "register_timeout_ms": "register_timeout_ms",
        "region_id": "region_id",
        "trace_on": "trace_on",
        "permission": "broker_permission",
    },
    "store": {
        "path": "store_path",
        "log_file_bytes": "log_file_bytes",
        "log_files_ahead": "log_files_ahead",
        "log_files_warm": "warm_maped_file_enable",
        "queue_file_bytes": "queue_file_bytes",
        "mapped_queue_files_max": "mapped_queue_files_max",
        "checkpoint_ms": "checkpoint_ms",
        "snapshot_ms": "snapshot_ms",
        "snapshot_log_bytes": "snapshot_log_bytes",
    },
    "flush": {
        "mode": "flush_mode",
        "interval_ms": "flush_interval_ms",
        "least_pages": "flush_commit_log_least_pages",
        "thorough_interval_ms": "flush_commit_log_thorough_interval",
        "sync_timeout_ms": "sync_flush_timeout_ms",
    },
    "index": {"enable": "message_index_enable", "slots": "max_hash_slot_num", "units": "max_index_num"},
    "expiry": {
        "reserved_hours": "file_reserved_time",
        "delete_when": "delete_when",
        "used_percent": "disk_max_used_space_ratio",
        "forcibly_percent": "disk_space_clean_forcibly_ratio",
        "forcibly_enable": "clean_file_forcibly_enable",
        "refuse_percent": "disk_space_warning_level_ratio",
        "files_max": "delete_file_batch_max",
        "interval_ms": "clean_resource_interval_ms",
    },
    "topics": {
        "auto_create": "auto_create_topic",
        "default_queues": "default_topic_queues",
        "cluster_enable": "cluster_topic_enable",
        "broker_enable": "broker_topic_enable",
        "trace_enable": "trace_topic_enable",
        "trace_name": "trace_topic",
    },
    "requests": {
        "body_bytes_max": "body_bytes_max",
        "transfer_count_max": "transfer_count_max",
        "transfer_bytes_max": "transfer_bytes_max",
        "query_count_max": "query_count_max",
        "query_unique_key_count_max": "query_unique_key_count_max",
        "tick_age_ms_max": "os_page_cache_busy_time_out_mills",
        "sends_from_ms": "start_accept_send_request_time_stamp",
        "response_timeout_ms": "response_timeout_ms",
        "frame_deadline_ms": "frame_deadline_ms",
        "connection_buffer_bytes_max": "connection_buffer_bytes_max",
        "release_slice_ms": "release_slice_ms",
    },
    "connections": {
        "max": "connections_max",
        "idle_seconds_max": "server_channel_max_idle_time_seconds",
        "bytes_in_flight_max": "bytes_in_flight_max",
        "fast_port": "fast_port_enable",
    },
    "queues": {
        "fast_failure": "broker_fast_failure_enable",
        "send_max": "send_thread_pool_queue_capacity",
        "pull_max": "pull_thread_pool_queue_capacity",
        "lite_pull_max": "lite_pull_thread_pool_queue_capacity",
        "reply_max": "reply_thread_pool_queue_capacity",
        "query_max": "query_thread_pool_queue_capacity",
        "heartbeat_max": "heartbeat_thread_pool_queue_capacity",
        "client_manager_max": "client_manager_thread_pool_queue_capacity",
        "consumer_manager_max": "consumer_manager_thread_pool_queue_capacity",
        "end_transaction_max": "end_transaction_pool_queue_capacity",
        "admin_max": "admin_broker_thread_pool_queue_capacity",
        "send_wait_ms": "wait_time_mills_in_send_queue",
        "pull_wait_ms": "wait_time_mills_in_pull_queue",
        "lite_pull_wait_ms": "wait_time_mills_in_lite_pull_queue",
        "heartbeat_wait_ms": "wait_time_mills_in_heartbeat_queue",
        "end_transaction_wait_ms": "wait_time_mills_in_transaction_queue",
        "admin_wait_ms": "wait_time_mills_in_admin_broker_queue",
    },
    "consumers": {
        "auto_create_group": "auto_create_group",
        "long_polling": "long_polling",
        "short_polling_ms": "short_polling_ms",
        "notify_members_changed": "notify_members_changed",
        "lite_pull_enable": "lite_pull_message_enable",
        "reject_pull_enable": "reject_pull_consumer_enable",
        "reset_on_broker": "use_server_side_reset_offset",
        "slave_read_enable": "slave_read_enable",
        "in_memory_percent": "access_message_in_memory_max_ratio",
        "store_replies": "store_reply_message_enable",
        "client_expiry_ms": "client_expiry_ms",
        "lock_expiry_ms": "lock_expiry_ms",
        "offsets_persist_ms": "offsets_persist_ms",
        "filter_by_properties": "enable_property_filter",
        "filter_retries": "filter_support_retry",
        "filter_unit_bytes_max": "max_filter_message_size",
        "filter_kept_ms": "filter_data_clean_time_span",
    },
    "transactions": {
        "reject": "reject_transaction_message",
        "time_out_ms": "transaction_time_out",
        "check_max": "transaction_check_max",
        "check_interval_ms": "transaction_check_interval",
        "op_message_bytes_max": "transaction_op_msg_max_size",
        "op_interval_ms": "transaction_op_batch_interval",
        "metrics_interval_ms": "transaction_metric_flush_interval",
    },
    "levels": {"table": "message_delay_level", "flush_interval_ms": "flush_delay_offset_interval"},
    "timer": {
        "enable": "timer_wheel_enable",
        "recall_enable": "recall_enable",
        "max_delay_seconds": "timer_max_delay_seconds",
        "precision_ms": "timer_precision_ms",
        "roll_window_slots": "timer_roll_window_slots",
        "congest_num_each_slot": "timer_congest_num_each_slot",
        "slots": "timer_slots",
        "log_file_bytes": "timer_log_file_bytes",
        "lead_ms": "timer_lead_ms",
        "stop_enqueue": "timer_stop_enqueue",
        "stop_dequeue": "timer_stop_dequeue",
        "disappear_ms_after_start": "disappear_time_after_start",
        "warm_enable": "timer_warm_enable",
        "check_metrics_enable": "timer_enable_check_metrics",
        "check_metrics_when": "timer_check_metrics_when",
        "flush_interval_ms": "timer_flush_interval_ms",
        "progress_log_interval_ms": "timer_progress_log_interval_ms",
    },
    "blocks": {
        "enable": "block_enable",
        "length_seconds": "block_length_seconds",
        "max_delay_seconds": "block_max_delay_seconds",
        "log_file_bytes": "block_log_file_bytes",
        "queue_file_bytes": "block_queue_file_bytes",
    },
    "pipeline": {"pace_ms": "pipeline_pace_ms"},
    "metrics": {
        "exporter": "metrics_exporter_type",
        "prom_host": "metrics_prom_exporter_host",
        "prom_port": "metrics_prom_exporter_port",
    },
}

MUTABLE: Final = frozenset(
    {
        "access_message_in_memory_max_ratio",
        "auto_create_group",
        "auto_create_topic",
        "body_bytes_max",
        "broker_fast_failure_enable",
        "broker_permission",
        "clean_file_forcibly_enable",
        "client_expiry_ms",
        "delete_file_batch_max",
        "delete_when",
        "disk_max_used_space_ratio",
        "disk_space_clean_forcibly_ratio",
        "disk_space_warning_level_ratio",
        "file_reserved_time",
        "flush_commit_log_least_pages",
        "flush_commit_log_thorough_interval",
        "flush_interval_ms",
        "flush_mode",
        "lite_pull_message_enable",
        "long_polling",
        "notify_members_changed",
        "os_page_cache_busy_time_out_mills",
        "query_count_max",
        "query_unique_key_count_max",
        "recall_enable",
        "register_period_ms",
        "register_timeout_ms",
        "reject_pull_consumer_enable",
        "reject_transaction_message",
        "short_polling_ms",
        "slave_read_enable",
        "start_accept_send_request_time_stamp",
        "store_reply_message_enable",
        "sync_flush_timeout_ms",
        "timer_max_delay_seconds",
        "timer_stop_dequeue",
        "timer_stop_enqueue",
        "trace_on",
        "transfer_bytes_max",
        "transfer_count_max",
        "use_server_side_reset_offset",
        "wait_time_mills_in_admin_broker_queue",
        "wait_time_mills_in_heartbeat_queue",
        "wait_time_mills_in_lite_pull_queue",
        "wait_time_mills_in_pull_queue",
        "wait_time_mills_in_send_queue",
        "wait_time_mills_in_transaction_queue",
    }
)
"""No paths, no addresses, and no settings that existing files were created with."""


def check(settings: BrokerSettings) -> None:
    """Check settings that are more than numbers, and settings that depend on each other.

    Raises ValueError, which names the wrong setting.
    """
    check_index_size(slots=settings.max_hash_slot_num, units=settings.max_index_num)
    parse_levels(settings.message_delay_level)
    delete_hours(settings.delete_when)
    delete_hours(settings.timer_check_metrics_when, "timer_check_metrics_when")
    if settings.block_length_seconds > BLOCK_SECONDS_MAX:
        raise ValueError(
            f"block_length_seconds is {settings.block_length_seconds}: set {BLOCK_SECONDS_MAX} or less (3600 is usual)"
        )
    if settings.block_length_seconds < BLOCK_SECONDS_MIN:
        raise ValueError(
            f"block_length_seconds is {settings.block_length_seconds}: with blocks shorter than {BLOCK_SECONDS_MIN} "
            f"s the broker runs out of block numbers; set {BLOCK_SECONDS_MIN} or more (3600 is usual; existing "
            "blocks keep their length)"
        )
    for address in settings.namesrv:
        host, _, port = address.rpartition(":")
        if not _may_be_host(host) or not port.isdecimal() or not 0 < int(port) < 65_536:
            raise ValueError(f"namesrv has {address!r}: write HOST:PORT, and separate several addresses by semicolons")


def _may_be_host(name: str) -> bool:
    try:
        return bool(name.encode("idna"))
    except UnicodeError:  # a part is empty or too long, so no resolver accepts it
        return False


BROKER: Final = Schema(
    shape=BrokerSettings,
    keys=by_name(BROKER_KEYS, STORE_KEYS, SERVER_KEYS, CLIENT_KEYS, AUTH_KEYS),
    groups=GROUPS,
    check=check,
    mutable=MUTABLE,
    narrower={
        "block_length_seconds": f"a whole number from {BLOCK_SECONDS_MIN} to {BLOCK_SECONDS_MAX}",
        "broker_ip": "an IPv4 address",
        "delete_when": "hours from 00 to 23, with semicolons between them",
        "message_delay_level": "delays such as 1s 5m 2h 1d, with blanks between them",
        "timer_check_metrics_when": "hours from 00 to 23, with semicolons between them",
        "timer_precision_ms": ", ".join(map(str, PRECISIONS_MS)),
        "timer_roll_window_slots": "a whole number from 2 to timer_slots",
    },
)
