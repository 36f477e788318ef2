"""The topic that a stored message belongs to, for the rights of requests that name it by its position."""

from __future__ import annotations

from typing import Final

from wheelmq.broker.block_queries import is_in_block
from wheelmq.broker.engine import Engine
from wheelmq.broker.settings import BrokerSettings
from wheelmq.delay.rebuild import PARKED_TOPICS
from wheelmq.formats import names
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import Record
from wheelmq.formats.disk.origin import Origin
from wheelmq.formats.units import LogPosition

INTERNAL: Final = frozenset((*PARKED_TOPICS, names.DEAD_LETTER_TOPIC, names.HALF_TOPIC, names.CHECK_MAX_TIME_TOPIC))
"""Topics of messages that wait for their real topic, or never reached it. Only the broker stores messages there, so
their REAL_TOPIC is true. In another topic, a client can write anything into this property."""


def topic_of(record: Record) -> str:
    """Return the topic that the message belongs to."""
    topic = record.message.topic
    return record.message.properties.get(props.REAL_TOPIC, topic) if topic in INTERNAL else topic


class MessageTopics:
    """The facts of a broker that rights depend on (auth.needs.Surroundings)."""

    def __init__(self, settings: BrokerSettings, engine: Engine) -> None:
        self._settings = settings
        self._engine = engine

    @property
    def cluster(self) -> str:
        return self._settings.broker.cluster

    def topic_at(self, position: int) -> str | None:
        if is_in_block(position):
            record = self._engine.generations.of(Origin(position)).record_of(Origin(position))
        else:
            record = self._engine.store.log.record_at(LogPosition(position))
        return None if record is None else topic_of(record)
