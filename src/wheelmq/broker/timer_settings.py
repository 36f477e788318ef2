"""What becomes of each setting of Apache's timer (RocketMQ 5.3.3: MessageStoreConfig; recall: BrokerConfig).

They may be given by Apache's names. The table in docs/operations/timer-settings.md says the same, and is compared.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

log = logging.getLogger(__name__)


class Treatment(StrEnum):
    """What a setting does here."""

    HONOURED = "honoured"
    NO_EFFECT = "no effect"
    """Accepted; a value other than Apache's default is told at start."""
    REFUSED = "refused"
    """A value other than Apache's default ends the start."""


class ApacheSetting(NamedTuple):
    """A setting by Apache's name."""

    name: str
    default: str
    treatment: Treatment
    ours: str = ""
    """The name in BrokerSettings of one that is honoured."""
    why: str = ""
    """Why one is not honoured."""


_HONOURED, _NO_EFFECT, _REFUSED = Treatment.HONOURED, Treatment.NO_EFFECT, Treatment.REFUSED
_ONE_LOOP: Final = "one loop does it, in slices of a tick"

TIMER_SETTINGS: Final = (
    ApacheSetting("timerWheelEnable", "true", _HONOURED, "timer_wheel_enable"),
    ApacheSetting("timerPrecisionMs", "1000", _HONOURED, "timer_precision_ms"),
    ApacheSetting("timerRollWindowSlot", "172800", _HONOURED, "timer_roll_window_slots"),
    ApacheSetting("timerMaxDelaySec", "259200", _HONOURED, "timer_max_delay_seconds"),
    ApacheSetting("timerCongestNumEachSlot", "2147483647", _HONOURED, "timer_congest_num_each_slot"),
    ApacheSetting("timerStopEnqueue", "false", _HONOURED, "timer_stop_enqueue"),
    ApacheSetting("timerStopDequeue", "false", _HONOURED, "timer_stop_dequeue"),
    ApacheSetting("disappearTimeAfterStart", "-1", _HONOURED, "disappear_time_after_start"),
    ApacheSetting("timerProgressLogIntervalMs", "10000", _HONOURED, "timer_progress_log_interval_ms"),
    ApacheSetting("timerFlushIntervalMs", "1000", _HONOURED, "timer_flush_interval_ms"),
    ApacheSetting("timerWarmEnable", "false", _HONOURED, "timer_warm_enable"),
    ApacheSetting("timerEnableCheckMetrics", "true", _HONOURED, "timer_enable_check_metrics"),
    ApacheSetting("timerCheckMetricsWhen", "05", _HONOURED, "timer_check_metrics_when"),
    ApacheSetting("mappedFileSizeTimerLog", "104857600", _HONOURED, "timer_log_file_bytes"),
    ApacheSetting("recallMessageEnable", "false", _HONOURED, "recall_enable"),
    ApacheSetting("timerGetMessageThreadNum", "3", _NO_EFFECT, why=_ONE_LOOP),
    ApacheSetting("timerPutMessageThreadNum", "3", _NO_EFFECT, why=_ONE_LOOP),
    ApacheSetting("timerEnableDisruptor", "false", _NO_EFFECT, why="there are no queues between threads"),
    ApacheSetting(
        "timerEnableRetryUntilSuccess", "false", _NO_EFFECT, why="what cannot be appended is tried until it can"
    ),
    ApacheSetting("timerMetricSmallThreshold", "1000000", _NO_EFFECT, why="topics of any size are counted anew"),
    ApacheSetting("timerInterceptDelayLevel", "false", _NO_EFFECT, why="Apache does not read it either"),
    ApacheSetting(
        "timerColdDataCheckIntervalMs", "60000", _NO_EFFECT, why="not of the timer: cold data is not looked for"
    ),
    ApacheSetting("timerSkipUnknownError", "false", _REFUSED, why="it drops messages"),
)

PRECISIONS_MS: Final = (100, 200, 500, 1000)

_BY_NAME: Final = {setting.name: setting for setting in TIMER_SETTINGS}


def by_our_names(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """`chosen` with those of Apache's names that stand in the table replaced; what has no effect is told, and left out.

    Raises ValueError for what is refused, and for one setting given by both names.
    """
    found: dict[str, Any] = {}
    for name, value in chosen.items():
        setting = _BY_NAME.get(name)
        if setting is None or setting.treatment is _HONOURED:
            own = setting.ours if setting is not None else name
            if own in found:
                raise ValueError(f"{own} is given twice, once by Apache's name")
            found[own] = value
        elif str(value).strip().lower() != setting.default:
            if setting.treatment is _REFUSED:
                raise ValueError(f"{name}={value} is refused: {setting.why}")
            log.warning("%s=%s has no effect: %s", name, value, setting.why)
    return found


def check(
    *, precision_ms: int, roll_window_slots: int, slots: int, max_delay_seconds: int, congest_num_each_slot: int
) -> None:
    """Look at the timer's settings together. Raises ValueError naming the one that does not fit."""
    if precision_ms not in PRECISIONS_MS:
        raise ValueError(
            f"timer_precision_ms is {precision_ms}: it must be one of {', '.join(map(str, PRECISIONS_MS))}"
        )
    if slots < 2:
        raise ValueError(f"timer_slots is {slots}: it must be 2 or more")
    if not 2 <= roll_window_slots <= slots:
        raise ValueError(f"timer_roll_window_slots is {roll_window_slots}: it must be 2 to timer_slots, {slots}")
    if max_delay_seconds < 0:
        raise ValueError(f"timer_max_delay_seconds is {max_delay_seconds}: it must be 0 or more")
    if not 0 <= congest_num_each_slot < 1 << 31:
        raise ValueError(f"timer_congest_num_each_slot is {congest_num_each_slot}: it must be 0 to 2147483647")
