"""The names of client versions (RocketMQ: MQVersion)."""

from __future__ import annotations

from typing import Final

_FIRST_OF_4: Final = 212
"""The number of V4_0_0_SNAPSHOT. From there on, each version has two numbers: its snapshot and its release."""
_HIGHER: Final = 612
"""The first number beyond V5_9_9."""


def version_text(number: int) -> str:
    """Return Apache's name of a version, such as V5_3_3. All versions of RocketMQ 3 are V3."""
    if number < _FIRST_OF_4:
        return "V3"
    if number >= _HIGHER:
        return "HIGHER_VERSION"
    place, is_release = divmod(number - _FIRST_OF_4, 2)
    name = f"V{4 + place // 100}_{place // 10 % 10}_{place % 10}"
    return name if is_release else f"{name}_SNAPSHOT"
