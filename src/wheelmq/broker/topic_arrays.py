"""The broker's topics in the form that kernels read (formats.kernels.topics)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from wheelmq.formats import names
from wheelmq.formats.kernels import topics
from wheelmq.formats.kernels.numbers import FNV_PRIME, FNV_START
from wheelmq.formats.wire.bodies import PERM_WRITE, TopicConfig

if TYPE_CHECKING:
    from wheelmq.broker.broker import Broker

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]


class TopicArrays:
    """The topic table in arrays: made anew when a topic changes, added to when a queue is used for the first time."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._version = -1
        self._known_queues = 0
        self._row_of: dict[str, int] = {}
        self.slots: Integers = np.full(2, -1, np.int64)
        self.rows: Integers = np.zeros((0, topics.COLUMNS), np.int64)
        self.names: Bytes = np.zeros(0, np.uint8)
        self.queue_rows: Integers = np.zeros(0, np.int64)

    def refresh(self) -> None:
        """Follow the broker's topics and queues."""
        table = self._broker.topics
        if self._version != table.changes:
            self._build(list(table.all().values()))
            self._version = table.changes
        if self._known_queues < len(self._broker.store.queues):
            self._add_queues()

    def _build(self, configs: list[TopicConfig]) -> None:
        encoded = [config.topic_name.encode() for config in configs]
        rows = np.zeros((len(configs), topics.COLUMNS), np.int64)
        size = 1 << max(4, (2 * len(configs)).bit_length())
        slots = np.full(size, -1, np.int64)
        name_at = first_queue = 0
        for row, (config, name) in enumerate(zip(configs, encoded, strict=True)):
            count = max(config.read_queue_nums, config.write_queue_nums)
            rows[row] = (name_at, len(name), count, first_queue, self._sendable(config))
            name_at += len(name)
            first_queue += count
            at = _fnv(name) & (size - 1)
            while slots[at] >= 0:
                at = (at + 1) & (size - 1)
            slots[at] = row
        queue_rows = np.full(first_queue, -1, np.int64)
        joined = np.frombuffer(b"".join(encoded), np.uint8).copy()
        row_of = {config.topic_name: row for row, config in enumerate(configs)}
        self.slots, self.rows, self.queue_rows, self.names, self._row_of = slots, rows, queue_rows, joined, row_of
        self._known_queues = 0

    def _add_queues(self) -> None:
        queues = self._broker.store.queues
        for queue_row in range(self._known_queues, len(queues)):
            topic, queue_id = queues.key(queue_row)
            row = self._row_of.get(topic)
            if row is not None and queue_id < self.rows[row, topics.QUEUES]:
                self.queue_rows[self.rows[row, topics.FIRST_QUEUE] + queue_id] = queue_row
        self._known_queues = len(queues)

    def _sendable(self, config: TopicConfig) -> bool:
        if config.order and not self._broker.settings.broker_permission & PERM_WRITE:
            return False
        topic = config.topic_name
        special = topic in names.NOT_FOR_SENDING or topic.startswith((names.RETRY_PREFIX, names.DEAD_LETTER_PREFIX))
        plain = config.topic_filter_type == "SINGLE_TAG" and len(topic) <= names.TOPIC_CHARS_MAX
        return plain and not special and bool(config.perm & PERM_WRITE)


def _fnv(raw: bytes) -> int:
    code = int(FNV_START)
    for byte in raw:
        code = (code ^ byte) * int(FNV_PRIME) & 0xFFFF_FFFF_FFFF_FFFF
    return code
