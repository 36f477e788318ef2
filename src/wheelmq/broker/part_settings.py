"""Select the settings of each part from the broker's settings. A part knows only its own settings."""

from __future__ import annotations

from wheelmq.broker.settings import BrokerSettings
from wheelmq.delay.park import ParkSettings
from wheelmq.delay.timer.timer import TimerSettings
from wheelmq.delay.timer.view import StoreSizes
from wheelmq.formats.units import Millis


def park_settings(settings: BrokerSettings, levels_ms: tuple[Millis, ...]) -> ParkSettings:
    return ParkSettings(
        settings.timer_max_delay_seconds,
        settings.timer_precision_ms,
        levels_ms,
        has_timers=settings.timer_wheel_enable,
    )


def timer_settings(settings: BrokerSettings) -> TimerSettings:
    return TimerSettings(
        precision_ms=settings.timer_precision_ms,
        roll_window_slots=settings.timer_roll_window_slots,
        slots=settings.timer_slots,
        log_file_bytes=settings.timer_log_file_bytes,
        lead_ms=settings.timer_lead_ms,
        congest_num_each_slot=settings.timer_congest_num_each_slot,
        stops_enqueue=settings.timer_stop_enqueue,
        holds_dequeue=settings.holds_dequeue,
    )


def store_sizes(settings: BrokerSettings) -> StoreSizes:
    """Return the file sizes that a reader of the store's files needs."""
    return StoreSizes(
        settings.log_file_bytes,
        settings.queue_file_bytes,
        settings.timer_log_file_bytes,
        settings.timer_slots,
        settings.block_queue_file_bytes,
    )
