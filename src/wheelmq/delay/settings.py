"""The settings of delayed delivery: the timer, the blocks and the levels."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from wheelmq.config.bounds import INT_MAX, Count, Positive
from wheelmq.config.setting import Setting, SettingsTable
from wheelmq.delay.levels.table import DEFAULT_LEVELS, parse_levels
from wheelmq.formats.disk.block import BLOCK_LOG_FILE_BYTES, BLOCK_UNIT, UNITS_PER_FILE
from wheelmq.formats.disk.timer import SLOTS, TIMER_LOG_FILE_BYTES, TIMER_SLOT, TIMER_UNIT
from wheelmq.formats.units import Millis
from wheelmq.store.settings import hours_of

PRECISIONS_MS: Final = (100, 200, 500, 1000)
TIMER_LOG_FILE_BYTES_MIN: Final = TIMER_UNIT.size + 16
"""One unit and the blank at the end."""
TIMER_SLOTS_MAX: Final = INT_MAX // (2 * TIMER_SLOT.size)
"""The file `timerwheel` has two places for each slot, and at most INT_MAX bytes, the most that Apache's broker
maps."""
BLOCK_LOG_FILE_BYTES_MIN: Final = 512
BLOCK_SECONDS_MIN: Final = 60
"""There are about a million block numbers, and none is reused while the log names it. With blocks of 60 s, the
numbers last two years."""
BLOCK_SECONDS_MAX: Final = 366 * 24 * 3600
"""A block is read, checked and deleted as a whole."""

NO_LIMIT: Final = INT_MAX
"""The limit of messages per slot that Apache has by default (Integer.MAX_VALUE). With it, nothing is counted."""

TimerLogFileBytes = Annotated[int, Meta(ge=TIMER_LOG_FILE_BYTES_MIN, le=INT_MAX)]
TimerSlots = Annotated[int, Meta(ge=2, le=TIMER_SLOTS_MAX)]
BlockLogFileBytes = Annotated[int, Meta(ge=BLOCK_LOG_FILE_BYTES_MIN, le=INT_MAX)]
BlockQueueFileBytes = Annotated[int, Meta(ge=BLOCK_UNIT.size, le=INT_MAX, multiple_of=BLOCK_UNIT.size)]


class TimerSettings(SettingsTable, kw_only=True):
    """[timer]: precision, windows and sizes of the timer."""

    enable: Annotated[bool, Setting("timer_wheel_enable", "timerWheelEnable")] = True
    recall_enable: Annotated[bool, Setting("recall_enable", "recallMessageEnable", mutable=True)] = True
    max_delay_seconds: Annotated[Count, Setting("timer_max_delay_seconds", "timerMaxDelaySec", mutable=True)] = (
        3 * 24 * 3600
    )
    precision_ms: Annotated[
        int, Setting("timer_precision_ms", "timerPrecisionMs", narrower=", ".join(map(str, PRECISIONS_MS)))
    ] = 1000
    roll_window_slots: Annotated[
        int,
        Meta(ge=2, le=TIMER_SLOTS_MAX),
        Setting("timer_roll_window_slots", "timerRollWindowSlot", narrower="a whole number from 2 to timer_slots"),
    ] = 2 * 24 * 3600
    congest_num_each_slot: Annotated[Count, Setting("timer_congest_num_each_slot", "timerCongestNumEachSlot")] = (
        NO_LIMIT
    )
    """Number of messages in a slot above which some sends for it are rejected by chance. From twice this number on,
    all are rejected."""
    slots: Annotated[TimerSlots, Setting("timer_slots")] = SLOTS
    log_file_bytes: Annotated[TimerLogFileBytes, Setting("timer_log_file_bytes", "mappedFileSizeTimerLog")] = (
        TIMER_LOG_FILE_BYTES
    )
    lead_ms: Annotated[Positive, Setting("timer_lead_ms")] = 30_000
    stop_enqueue: Annotated[bool, Setting("timer_stop_enqueue", "timerStopEnqueue", mutable=True)] = False
    """Index and arm nothing of the timer queue until this is off again."""
    stop_dequeue: Annotated[bool, Setting("timer_stop_dequeue", "timerStopDequeue", mutable=True)] = False
    """Release no message of the timer queue until this is off again."""
    disappear_ms_after_start: Annotated[
        int, Meta(ge=-1, le=INT_MAX), Setting("disappear_time_after_start", "disappearTimeAfterStart")
    ] = -1
    """Milliseconds from the start without releases of timers and without registration."""
    warm_enable: Annotated[bool, Setting("timer_warm_enable", "timerWarmEnable")] = False
    """Read the messages that are due within three seconds into memory, so that their release does not wait for the
    disk."""
    check_metrics_enable: Annotated[bool, Setting("timer_enable_check_metrics", "timerEnableCheckMetrics")] = True
    """Count the pending messages again from their records, at the hours of `timer_check_metrics_when`."""
    check_metrics_when: Annotated[
        str,
        Setting(
            "timer_check_metrics_when",
            "timerCheckMetricsWhen",
            narrower="hours from 00 to 23, with semicolons between them",
        ),
    ] = "05"
    """Hours of the day at which the broker counts the pending messages again."""
    flush_interval_ms: Annotated[Count, Setting("timer_flush_interval_ms", "timerFlushIntervalMs")] = 10_000
    """Milliseconds between two writes of config/timermetrics while counts change. Apache: 1000."""
    progress_log_interval_ms: Annotated[
        Count, Setting("timer_progress_log_interval_ms", "timerProgressLogIntervalMs")
    ] = 10_000
    """Milliseconds between two log lines about the progress of the timer, while it works."""

    @property
    def holds_dequeue(self) -> bool:
        """Whether the broker releases no timers after its start."""
        return self.stop_dequeue or self.disappear_ms_after_start > 0

    @property
    def check_hours(self) -> frozenset[int]:
        """Hours of local time at which the pending messages are counted again."""
        return hours_of("timer_check_metrics_when", self.check_metrics_when)

    def __post_init__(self) -> None:
        if self.precision_ms not in PRECISIONS_MS:
            raise ValueError(
                f"timer_precision_ms is {self.precision_ms}: it must be one of {', '.join(map(str, PRECISIONS_MS))}"
            )
        if self.slots < 2:
            raise ValueError(f"timer_slots is {self.slots}: it must be 2 or more")
        if not 2 <= self.roll_window_slots <= self.slots:
            raise ValueError(
                f"timer_roll_window_slots is {self.roll_window_slots}: it must be 2 to timer_slots, {self.slots}"
            )
        if not 0 <= self.max_delay_seconds < 1 << 31:
            raise ValueError(f"timer_max_delay_seconds is {self.max_delay_seconds}: it must be 0 to 2147483647")
        if not 0 <= self.congest_num_each_slot < 1 << 31:
            raise ValueError(f"timer_congest_num_each_slot is {self.congest_num_each_slot}: it must be 0 to 2147483647")

    def check(self) -> None:
        hours_of("timer_check_metrics_when", self.check_metrics_when)


class BlockSettings(SettingsTable, kw_only=True):
    """[blocks]: the length of a block, and the sizes of its files."""

    enable: Annotated[bool, Setting("block_enable")] = True
    """Whether the property delayInSeconds delays a message in a block. Otherwise it has no meaning for the broker."""
    length_seconds: Annotated[
        Positive,
        Setting("block_length_seconds", narrower=f"a whole number from {BLOCK_SECONDS_MIN} to {BLOCK_SECONDS_MAX}"),
    ] = 3600
    max_delay_seconds: Annotated[Count, Setting("block_max_delay_seconds")] = 366 * 24 * 3600
    log_file_bytes: Annotated[BlockLogFileBytes, Setting("block_log_file_bytes")] = BLOCK_LOG_FILE_BYTES
    queue_file_bytes: Annotated[BlockQueueFileBytes, Setting("block_queue_file_bytes")] = (
        UNITS_PER_FILE * BLOCK_UNIT.size
    )

    @property
    def length_ms(self) -> int:
        return self.length_seconds * 1000

    def check(self) -> None:
        if self.length_seconds > BLOCK_SECONDS_MAX:
            raise ValueError(
                f"block_length_seconds is {self.length_seconds}: set {BLOCK_SECONDS_MAX} or less (3600 is usual)"
            )
        if self.length_seconds < BLOCK_SECONDS_MIN:
            raise ValueError(
                f"block_length_seconds is {self.length_seconds}: with blocks shorter than {BLOCK_SECONDS_MIN} "
                f"s the broker runs out of block numbers; set {BLOCK_SECONDS_MIN} or more (3600 is usual; existing "
                "blocks keep their length)"
            )


class LevelSettings(SettingsTable, kw_only=True):
    """[levels]: the fixed delays."""

    table: Annotated[
        str,
        Setting(
            "message_delay_level", "messageDelayLevel", narrower="delays such as 1s 5m 2h 1d, with blanks between them"
        ),
    ] = DEFAULT_LEVELS
    flush_interval_ms: Annotated[Positive, Setting("flush_delay_offset_interval", "flushDelayOffsetInterval")] = 10_000
    """Milliseconds between two writes of delayOffset.json, if it has changed."""

    @property
    def levels_ms(self) -> tuple[Millis, ...]:
        """Delays of the levels from 1 on."""
        return parse_levels(self.table)

    def check(self) -> None:
        parse_levels(self.table)
