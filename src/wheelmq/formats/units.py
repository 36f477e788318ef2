"""The three integers of a broker, which never mix. No name has the bare word "offset", which means none of them."""

from __future__ import annotations

from typing import Final, NewType

LogPosition = NewType("LogPosition", int)
"""Bytes from the start of the commit log (RocketMQ: physical offset)."""

QueueOffset = NewType("QueueOffset", int)
"""Index of a message in one queue of a topic (RocketMQ: queue offset, logic offset)."""

Millis = NewType("Millis", int)
"""Milliseconds since 1970 UTC."""

NEVER_MS: Final = Millis(1 << 62)
"""A time that never comes: an unknown time, or the end of a span without an end."""
