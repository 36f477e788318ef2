"""The three integers of a broker, which never mix.

A bare "offset" is none of them, so the word stands alone nowhere in this package.
"""

from __future__ import annotations

from typing import Final, NewType

LogPosition = NewType("LogPosition", int)
"""Bytes from the start of the commit log (RocketMQ: physical offset)."""

QueueOffset = NewType("QueueOffset", int)
"""Index of a message in one queue of a topic (RocketMQ: queue offset, logic offset)."""

Millis = NewType("Millis", int)
"""Milliseconds since 1970 UTC."""

NEVER_MS: Final = Millis(1 << 62)
"""A time that does not come: where none is known, and the end of a span that has none."""
