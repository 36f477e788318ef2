"""The broker's topics in the form that kernels read (formats.kernels.topics)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from wheelmq.broker.settings import BrokerSettings
from wheelmq.broker.state.topics import Topics
from wheelmq.delay.rebuild import PARKED_TOPICS
from wheelmq.formats import names
from wheelmq.formats.disk.parked import fnv
from wheelmq.formats.kernels import topics
from wheelmq.formats.wire.bodies import PERM_WRITE, TopicConfig
from wheelmq.store.queues import QueueTable

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]


class TopicArrays:
    """The topic table in arrays. A refresh adds new topics and changes known ones in place.

    `rows` and `names` are views of the used part of the arrays. A deleted topic keeps its row, without a name. All
    arrays are rebuilt only if one is full, or if the table no longer lists a change.
    """

    def __init__(self, table: Topics, queues: QueueTable, settings: BrokerSettings) -> None:
        self._table = table
        self._queues = queues
        self._settings = settings
        self._version = -1
        self._known_queues = 0
        self._row_of: dict[str, int] = {}
        self._queues_used = 0
        self._all_rows: Integers = np.zeros((0, topics.COLUMNS), np.int64)
        self._all_names: Bytes = np.zeros(0, np.uint8)
        self.slots: Integers = np.full(2, -1, np.int64)
        self.rows: Integers = self._all_rows
        self.names: Bytes = self._all_names
        self.queue_rows: Integers = np.zeros(0, np.int64)

    def refresh(self) -> None:
        table = self._table
        if self._version != table.changes:
            changed = None if self._version < 0 else table.changed_since(self._version)
            if changed is None or not self._follow(changed):
                self._build(list(table.all().values()))
            self._version = table.changes
        if self._known_queues < len(self._queues):
            self._add_queues()

    def _build(self, configs: list[TopicConfig]) -> None:
        """Build all arrays, with room for as many topics again."""
        size = 1 << max(6, (4 * len(configs)).bit_length())
        queues = sum(_queue_count(config) for config in configs)
        name_bytes = sum(len(config.topic_name.encode()) for config in configs)
        slots = np.full(size, -1, np.int64)
        rows = np.zeros((size // 2, topics.COLUMNS), np.int64)
        queue_rows = np.full(2 * queues + size, -1, np.int64)
        names = np.zeros(2 * name_bytes + 16 * size, np.uint8)
        self.slots, self._all_rows, self.queue_rows, self._all_names = slots, rows, queue_rows, names
        self.rows, self.names = rows[:0], names[:0]
        self._row_of, self._queues_used, self._known_queues = {}, 0, 0
        for config in configs:
            self._add(config)

    def _follow(self, changed: list[str]) -> bool:
        """Update these topics. Returns False if there is no room for one of them."""
        for name in changed:
            config = self._table.get(name)
            row = self._row_of.get(name)
            if config is None:
                if row is not None:
                    del self._row_of[name]
                    self.rows[row, [topics.NAME_BYTES, topics.SENDABLE]] = (-1, 0)
            elif row is not None:
                if self.rows[row, topics.QUEUES] < _queue_count(config) and not self._move_queues(row, config):
                    return False
                self.rows[row, topics.QUEUES] = _queue_count(config)
                self.rows[row, topics.SENDABLE] = self._sendable(config)
            elif not self._has_room(config):
                return False
            else:
                self._add(config)
                self._find_queues(config)
        return True

    def _has_room(self, config: TopicConfig) -> bool:
        return (
            len(self.rows) < len(self._all_rows)
            and len(self.names) + len(config.topic_name.encode()) <= len(self._all_names)
            and self._queues_used + _queue_count(config) <= len(self.queue_rows)
        )

    def _add(self, config: TopicConfig) -> None:
        """Add a row for a topic. There must be room for it."""
        row, name_at, name = len(self.rows), len(self.names), config.topic_name.encode()
        self._all_names[name_at : name_at + len(name)] = np.frombuffer(name, np.uint8)
        count = _queue_count(config)
        self._all_rows[row] = (name_at, len(name), count, self._queues_used, self._sendable(config))
        mask = len(self.slots) - 1
        at = fnv(name) & mask
        while self.slots[at] >= 0:
            at = (at + 1) & mask
        self.slots[at] = row
        self._row_of[config.topic_name] = row
        self._queues_used += count
        self.rows, self.names = self._all_rows[: row + 1], self._all_names[: name_at + len(name)]

    def _move_queues(self, row: int, config: TopicConfig) -> bool:
        """Reserve room for more queues of a topic. Returns False if there is none."""
        if self._queues_used + _queue_count(config) > len(self.queue_rows):
            return False
        self.rows[row, topics.FIRST_QUEUE] = self._queues_used
        self._queues_used += _queue_count(config)
        self._find_queues(config)
        return True

    def _find_queues(self, config: TopicConfig) -> None:
        first, queues = self.rows[self._row_of[config.topic_name], topics.FIRST_QUEUE], self._queues
        for queue_id in range(_queue_count(config)):
            row = queues.known_row(config.topic_name, queue_id)
            self.queue_rows[first + queue_id] = -1 if row is None else row

    def _add_queues(self) -> None:
        queues = self._queues
        for queue_row in range(self._known_queues, len(queues)):
            topic, queue_id = queues.key(queue_row)
            row = self._row_of.get(topic)
            if row is not None and queue_id < self.rows[row, topics.QUEUES]:
                self.queue_rows[self.rows[row, topics.FIRST_QUEUE] + queue_id] = queue_row
        self._known_queues = len(queues)

    def _sendable(self, config: TopicConfig) -> bool:
        if config.order and not self._settings.broker.permission & PERM_WRITE:
            return False
        topic = config.topic_name
        special = topic in names.NOT_FOR_SENDING or topic.startswith((names.RETRY_PREFIX, names.DEAD_LETTER_PREFIX))
        plain = config.topic_filter_type == "SINGLE_TAG" and len(topic) <= names.TOPIC_CHARS_MAX
        if not self._table.is_saved(topic):
            return False
        return plain and not special and bool(config.perm & PERM_WRITE)


def _queue_count(config: TopicConfig) -> int:
    """Return the number of queues for kernels. A topic of parked messages has none: the plain code decides there."""
    if config.topic_name in PARKED_TOPICS:
        return 0
    return max(config.read_queue_nums, config.write_queue_nums)
