"""Lengths of time and intervals in a simulated run."""

from __future__ import annotations

from typing import Final

CHECK_EVERY: Final = 25
"""Steps between two checks of all invariants."""
CLOCK_ERROR_MS_MAX: Final = 25_000
HOUR_MS: Final = 3_600_000
CALM_MS: Final = 4000
"""Time after the last due time until which all messages must be delivered."""
LAPSE_MS: Final = 11_000
"""Time after which every lease has expired, and the broker has noticed that its disk has room."""
DRIVER_WEIGHTS: Final = (12, 2, 3, 2, 1)
"""Weights of drivers that are present, never come, are away for minutes, hang, and crash."""
MINUTES_MS: Final = (20_000, 100_000)
"""Shortest and longest single time step in runs in which drivers are absent."""
OVERDUE_MS: Final = 3000
"""Greatest allowed lateness after such a time step, if broker and disk work."""
EXACT_FROM_MS: Final = 2000
"""In the calm, messages due later than this must leave at their millisecond."""
TICKS_MS: Final = 500
"""Interval between two calls of a driver while time passes."""
