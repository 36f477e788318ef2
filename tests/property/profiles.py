"""The length of property tests. WHEELMQ_PROPERTY=long tries many more runs, and different ones each time."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from hypothesis import HealthCheck, settings

IS_LONG = os.environ.get("WHEELMQ_PROPERTY", "") == "long"


def profile(examples: int, steps: int = 50) -> settings:
    """Return settings for a test of `examples` runs. The normal profile repeats the same runs each time."""
    chosen: dict[str, Any] = {
        "max_examples": examples * 50 if IS_LONG else examples,
        "stateful_step_count": steps * 3 if IS_LONG else steps,
        "derandomize": not IS_LONG,
        "database": None,
        "deadline": None if IS_LONG else timedelta(seconds=20),
        "suppress_health_check": list(HealthCheck),
        "print_blob": True,
    }
    return settings(**chosen)
