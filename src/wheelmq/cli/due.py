"""When a message is due: what the broker says of it, or else what can be reckoned, which is said to be about."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from wheelmq.cli.times import duration_text
from wheelmq.formats.disk import properties as props
from wheelmq.formats.java import java_int
from wheelmq.formats.names import SCHEDULE_TOPIC

if TYPE_CHECKING:
    from wheelmq.client import ReceivedMessage, SendResult
    from wheelmq.formats.units import Millis

LOOK_MS: Final = 2000
"""How long a broker is waited for that is asked what it made of a message."""


class Due(NamedTuple):
    """When a message is due, milliseconds since 1970."""

    at_ms: int | None
    """None where nobody tells."""
    is_exact: bool = False
    """Whether the broker goes by this very millisecond."""
    level: int | None = None
    """The level that it waits for, or has waited for."""
    level_delay_ms: int | None = None

    @property
    def about(self) -> str:
        """What stands before a time that was reckoned here."""
        return "" if self.is_exact else "about "

    @property
    def level_text(self) -> str:
        """The level and, where that is known, its delay."""
        told = "" if self.level_delay_ms is None else f" ({duration_text(self.level_delay_ms)})"
        return f"level {self.level}{told}"


class Levels:
    """The brokers' own tables of levels, each asked for once."""

    def __init__(self, broker_config: Callable[[str], Awaitable[Mapping[str, str]]]) -> None:
        self._broker_config = broker_config
        self._tables: dict[str, tuple[Millis, ...]] = {}

    async def delay_ms(self, broker_name: str, level: int) -> int | None:
        """What a level stands for at a broker; None when that does not tell, and is not asked again."""
        from wheelmq.delay.levels import level_delay_ms, parse_levels
        from wheelmq.net.errors import CallError, Refused

        if broker_name not in self._tables:
            try:
                config = await self._broker_config(broker_name)
                self._tables[broker_name] = parse_levels(config.get("messageDelayLevel", ""))
            except (CallError, Refused, ValueError):
                self._tables[broker_name] = ()
        table = self._tables[broker_name]
        return level_delay_ms(table, level) if table else None


async def due_of_sent(namesrv: str, result: SendResult) -> Due:
    """When a message is due that was just sent, from what its broker has stored.

    What waits in a block is not found by its message id: of that the time is reckoned.
    """
    from wheelmq.client import Admin
    from wheelmq.net.errors import CallError, Refused

    async with Admin(namesrv, timeout_ms=LOOK_MS) as admin:
        try:
            stored = await admin.view(result.message_id)
        except (CallError, Refused, ValueError):
            return Due(result.due_ms)
        if stored.queue_topic == SCHEDULE_TOPIC:
            level = stored.queue_id + 1
            delay_ms = await Levels(admin.broker_config).delay_ms(result.queue.broker_name, level)
            from_store_ms = None if delay_ms is None else stored.stored_ms + delay_ms
            return Due(from_store_ms if stored.due_ms is None else stored.due_ms, True, level, delay_ms)
        return Due(result.due_ms) if stored.due_ms is None else Due(stored.due_ms, _is_shown(stored))


async def due_of_received(message: ReceivedMessage, levels: Levels) -> Due:
    """When a message was due that arrived. One that waited for a level says which; its time is reckoned from its birth,
    which is a moment before the broker's receipt. A retry says nothing of itself."""
    if message.due_ms is not None:
        return Due(message.due_ms, _is_shown(message))
    level = _level_of(message)
    if level is None:
        return Due(None)
    delay_ms = await levels.delay_ms(message.broker_name, level)
    return Due(None if delay_ms is None else message.born_ms + delay_ms, False, level, delay_ms)


def _is_shown(message: ReceivedMessage) -> bool:
    """Whether the message itself says when it is due, to the millisecond."""
    return props.WMQ_DUE in message.properties or props.TIMER_DELIVER_MS in message.properties


def _level_of(message: ReceivedMessage) -> int | None:
    """The level that a message has waited for, as its properties tell; None for none, and for a retry: that one waited
    for a level too, from a time that it does not say."""
    if message.reconsume_times or props.REAL_TOPIC not in message.properties:
        return None
    level = java_int(message.properties.get(props.DELAY, ""))
    return level if level is not None and level > 0 else None
