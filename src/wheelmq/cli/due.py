"""The due time of a message: from the broker, or else an estimate that is marked with "about"."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from wheelmq.cli.times import duration_text
from wheelmq.formats.disk import properties as props
from wheelmq.formats.java import java_int
from wheelmq.formats.names import SCHEDULE_TOPIC

if TYPE_CHECKING:
    from wheelmq.client import Admin, ReceivedMessage, SendResult
    from wheelmq.formats.units import Millis


class Due(NamedTuple):
    at_ms: int | None
    """None if it is unknown."""
    is_exact: bool = False
    """Whether the broker uses exactly this millisecond."""
    level: int | None = None
    """The delay level that the message waits for, or has waited for."""
    level_delay_ms: int | None = None

    @property
    def about(self) -> str:
        """The prefix of a time that this machine estimated."""
        return "" if self.is_exact else "about "

    @property
    def level_text(self) -> str:
        """The level and, if it is known, its delay."""
        told = "" if self.level_delay_ms is None else f" ({duration_text(self.level_delay_ms)})"
        return f"level {self.level}{told}"


class Levels:
    """The level tables of brokers. Each broker is asked once."""

    def __init__(self, broker_config: Callable[[str], Awaitable[Mapping[str, str]]]) -> None:
        self._broker_config = broker_config
        self._tables: dict[str, tuple[Millis, ...]] = {}

    async def delay_ms(self, broker_name: str, level: int) -> int | None:
        """Return the delay of a level at a broker; None if the broker gave no table. It is not asked again."""
        from wheelmq.delay.levels.table import level_delay_ms, parse_levels
        from wheelmq.net.errors import CallError, Refused

        if broker_name not in self._tables:
            try:
                config = await self._broker_config(broker_name)
                self._tables[broker_name] = parse_levels(config.get("messageDelayLevel", ""))
            except (CallError, Refused, ValueError):
                self._tables[broker_name] = ()
        table = self._tables[broker_name]
        return level_delay_ms(table, level) if table else None


async def due_of_sent(admin: Admin, levels: Levels, result: SendResult) -> Due:
    """Return the due time of a message that was just sent, from the record of its broker.

    It is an estimate for a message in a block, which the broker cannot find by its message id.
    """
    from wheelmq.net.errors import CallError, Refused

    try:
        stored = await admin.view(result.message_id)
    except (CallError, Refused, ValueError):
        return Due(result.due_ms)
    if stored.queue_topic == SCHEDULE_TOPIC:
        level = stored.queue_id + 1
        delay_ms = await levels.delay_ms(result.queue.broker_name, level)
        from_store_ms = None if delay_ms is None else stored.stored_ms + delay_ms
        return Due(from_store_ms if stored.due_ms is None else stored.due_ms, True, level, delay_ms)
    return Due(result.due_ms) if stored.due_ms is None else Due(stored.due_ms, _is_shown(stored))


async def due_of_received(message: ReceivedMessage, levels: Levels) -> Due:
    """Return the due time of a received message.

    A message that waited for a level carries the level. Its due time is an estimate from its birth, a moment before the
    broker received it. A retry carries nothing.
    """
    if message.due_ms is not None:
        return Due(message.due_ms, _is_shown(message))
    level = _level_of(message)
    if level is None:
        return Due(None)
    delay_ms = await levels.delay_ms(message.broker_name, level)
    return Due(None if delay_ms is None else message.born_ms + delay_ms, False, level, delay_ms)


def _is_shown(message: ReceivedMessage) -> bool:
    return props.WMQ_DUE in message.properties or props.TIMER_DELIVER_MS in message.properties


def _level_of(message: ReceivedMessage) -> int | None:
    """Return the level that a message waited for, from its properties; None without, and for a retry.

    A retry waited for a level too, but does not carry the time at which that began.
    """
    if message.reconsume_times or props.REAL_TOPIC not in message.properties:
        return None
    level = java_int(message.properties.get(props.DELAY, ""))
    return level if level is not None and level > 0 else None
