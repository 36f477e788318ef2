"""The checks of the timer's settings against each other."""

from __future__ import annotations

from typing import Final

PRECISIONS_MS: Final = (100, 200, 500, 1000)


def check(
    *, precision_ms: int, roll_window_slots: int, slots: int, max_delay_seconds: int, congest_num_each_slot: int
) -> None:
    """Check the timer's settings together. Raises ValueError, which names the wrong one."""
    if precision_ms not in PRECISIONS_MS:
        raise ValueError(
            f"timer_precision_ms is {precision_ms}: it must be one of {', '.join(map(str, PRECISIONS_MS))}"
        )
    if slots < 2:
        raise ValueError(f"timer_slots is {slots}: it must be 2 or more")
    if not 2 <= roll_window_slots <= slots:
        raise ValueError(f"timer_roll_window_slots is {roll_window_slots}: it must be 2 to timer_slots, {slots}")
    if not 0 <= max_delay_seconds < 1 << 31:
        raise ValueError(f"timer_max_delay_seconds is {max_delay_seconds}: it must be 0 to 2147483647")
    if not 0 <= congest_num_each_slot < 1 << 31:
        raise ValueError(f"timer_congest_num_each_slot is {congest_num_each_slot}: it must be 0 to 2147483647")
