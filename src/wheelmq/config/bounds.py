"""Types of settings, with the values that are allowed."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

Port = Annotated[int, Meta(ge=0, le=65_535)]
Percent = Annotated[int, Meta(ge=0, le=100)]
Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Name = Annotated[str, Meta(min_length=1, max_length=127)]

FAST_PORT_BELOW: Final = 2
"""How far below a broker's port its fast port is (RocketMQ: fastRemotingServer)."""
