"""The environment variables that are settings, as in WHEELMQ_TIMER__PRECISION_MS=500."""

from __future__ import annotations

import os
from typing import Final

PREFIX: Final = "WHEELMQ_"
DELIMITER: Final = "__"


def variables() -> list[str]:
    return [name for name in os.environ if name.upper().startswith(PREFIX) and DELIMITER in name[len(PREFIX) :]]


def variable_of(group: str, key: str) -> str:
    return f"{PREFIX}{group}{DELIMITER}{key}".upper()
