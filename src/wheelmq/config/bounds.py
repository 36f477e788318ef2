"""Types of settings, with the values that are allowed."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

INT_MAX: Final = (1 << 31) - 1
"""The largest number of Java's int, which is the type of most of Apache's keys."""
EPOCH_MS_MAX: Final = 253_402_300_799_999
"""The last millisecond of the year 9999. Later times have no date."""

Port = Annotated[int, Meta(ge=0, le=65_535)]
Percent = Annotated[int, Meta(ge=0, le=100)]
Count = Annotated[int, Meta(ge=0, le=INT_MAX)]
Positive = Annotated[int, Meta(ge=1, le=INT_MAX)]
EpochMs = Annotated[int, Meta(ge=0, le=EPOCH_MS_MAX)]
DurationMs = Annotated[int, Meta(ge=0, le=EPOCH_MS_MAX)]
"""A time that may be longer than the 24 days that INT_MAX milliseconds are."""
WaitMs = Annotated[int, Meta(ge=10, le=INT_MAX)]
"""How long a request may wait. Below 10 ms a broker at work would reject every request of the group."""
Name = Annotated[str, Meta(min_length=1, max_length=127, pattern=r"^[ !#-\[\]-~]*$")]
"""Printable ASCII without quotes and backslashes: an answer has room for it, and it needs no escape."""

FAST_PORT_BELOW: Final = 2
"""A broker's fast port is its port minus this number (RocketMQ: fastRemotingServer)."""
