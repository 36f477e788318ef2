"""The broker's topics (RocketMQ: TopicConfigManager), kept in config/topics.json."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final

from msgspec import structs

from wheelmq.broker.settings import BrokerSettings
from wheelmq.broker.state.pending_changes import PendingChanges
from wheelmq.broker.state.table_file import TableFile
from wheelmq.formats import names
from wheelmq.formats.disk.paths import StorePaths
from wheelmq.formats.disk.timer import TIMER_TOPIC
from wheelmq.formats.names import DEAD_LETTER_TOPIC
from wheelmq.formats.wire.bodies import PERM_INHERIT, PERM_READ, PERM_WRITE, DataVersion, TopicConfig, TopicConfigTable
from wheelmq.store import config_file
from wheelmq.system.clock import Clock
from wheelmq.system.disk import Disk
from wheelmq.system.workers import Worker

log = logging.getLogger(__name__)

READ_WRITE = PERM_READ | PERM_WRITE

QUEUES_MAX: Final = 8192
"""Maximum queues of a topic. Each takes room in every table of queues."""


RECENT_MAX: Final = 100_000
"""Changes that readers of `changed_since` can catch up on by name."""


class TopicUnsaved(Exception):
    """The topic is new and not on disk yet: a message stored in it could be lost with it."""


class Topics:
    """Topic configs by name. Changes are visible at once. A new topic takes no message until it is on disk."""

    def __init__(self, disk: Disk, paths: StorePaths, clock: Clock, settings: BrokerSettings, worker: Worker) -> None:
        self._clock = clock
        self._settings = settings
        path = paths.config_file("topics.json")
        stored = config_file.load(disk, path, TopicConfigTable) or TopicConfigTable()
        self.file = TableFile(disk, path, clock, worker, self._snapshot, self._written)
        self.version: DataVersion = stored.data_version
        self._table: dict[str, TopicConfig] = dict(stored.topic_config_table)
        for config in self._table.values():
            _bound_queues(config)
        self._has_changed = True
        self.changes = 0
        """Changes of topics since the start. A derived table compares it and asks `changed_since`."""
        self._recent: deque[str] = deque(maxlen=RECENT_MAX)
        self._unsaved: dict[str, int] = {}
        """New topics, each with the change of `file` that it came with."""
        self._for_sends: set[str] = set()
        """New topics that a send has created. They are removed if the write fails."""
        self._pending: PendingChanges[str, TopicConfig] = PendingChanges()
        """Changes of topics by administrators. They are taken back if the write fails."""
        self.waiting_bytes = 0
        """Memory of the sends that wait for their new topic or queue."""
        self._add_system_topics()

    def _add_system_topics(self) -> None:
        settings = self._settings
        queues = {
            names.SELF_TEST_TOPIC: (1, READ_WRITE),
            names.BENCHMARK_TOPIC: (1024, READ_WRITE),
            settings.broker.cluster: (16, PERM_INHERIT | (READ_WRITE if settings.topics.cluster_enable else 0)),
            settings.broker.name: (1, PERM_INHERIT | (READ_WRITE if settings.topics.broker_enable else 0)),
            names.OFFSET_MOVED_EVENT: (1, READ_WRITE),
            names.reply_topic(settings.broker.cluster): (1, READ_WRITE),
            names.SCHEDULE_TOPIC: (18, READ_WRITE),
            names.HALF_TOPIC: (1, READ_WRITE),
            names.OP_HALF_TOPIC: (1, READ_WRITE),
            TIMER_TOPIC: (1, READ_WRITE),
            DEAD_LETTER_TOPIC: (1, READ_WRITE),
        }
        if settings.topics.trace_enable:
            queues[settings.topics.trace_name] = (1, READ_WRITE)
        for name, (count, perm) in queues.items():
            self._table.setdefault(name, _config(name, count, perm))
        self.add_model()

    def add_model(self) -> None:
        """Add the topic from which sends create new topics, if that is allowed."""
        name, settings = names.AUTO_CREATE_TOPIC, self._settings
        if settings.topics.auto_create and name not in self._table:
            model = _config(name, settings.topics.default_queues, READ_WRITE | PERM_INHERIT)
            self._table = {**self._table, name: model}

    def __contains__(self, name: str) -> bool:
        return name in self._table

    def get(self, name: str) -> TopicConfig | None:
        return self._table.get(name)

    def all(self) -> dict[str, TopicConfig]:
        """Return every topic by name. Do not change them."""
        return self._table

    def is_system(self, name: str) -> bool:
        """Return whether only the broker creates and deletes the topic, as those named after it and its cluster."""
        return names.is_system_topic(name) or name in self._own_names()

    def system(self) -> list[str]:
        own = (*self._own_names(), TIMER_TOPIC, DEAD_LETTER_TOPIC)
        return sorted({*names.SYSTEM_TOPICS, *own, *(name for name in self._table if names.is_system_topic(name))})

    def _own_names(self) -> tuple[str, ...]:
        cluster = self._settings.broker.cluster
        return cluster, self._settings.broker.name, names.reply_topic(cluster)

    def put(self, config: TopicConfig) -> TopicConfig:
        self._change({config.topic_name: config})
        return config

    def put_all(self, configs: list[TopicConfig]) -> None:
        """Add or replace topics, for an administrator."""
        self._change_saved({config.topic_name: config for config in configs})

    def delete(self, name: str) -> bool:
        """Remove a topic and return whether there was one. Its messages stay in the log."""
        if name not in self._table:
            return False
        self._change_saved({name: None})
        return True

    def _change_saved(self, changed: Mapping[str, TopicConfig | None]) -> None:
        """Apply changes that are taken back if their write fails."""
        before = {name: self._table.get(name) for name in changed}
        for name in self._for_sends.intersection(changed):
            self._pending.note(self._unsaved[name], name, None)  # the creation by a send has a write of its own
        self._change(changed)
        for name, config in before.items():
            self._pending.note(self.file.changes, name, config)

    def check_saved(self, name: str) -> None:
        if name in self._unsaved:
            raise TopicUnsaved(name)

    def is_saved(self, name: str) -> bool:
        return name not in self._unsaved

    def changed_since(self, changes: int) -> list[str] | None:
        """Return the topics that changed after the first `changes` changes; None if that is too long ago."""
        count = self.changes - changes
        if count > len(self._recent):
            return None
        return list(dict.fromkeys(islice(reversed(self._recent), count)))

    def create_for_send(self, name: str, default_topic: str, default_queues: int, sys_flag: int) -> TopicConfig | None:
        """Create a send's topic from `default_topic`; None if that is not inheritable. Raises ValueError: no queue."""
        if not self._settings.topics.auto_create and default_topic == names.AUTO_CREATE_TOPIC:
            return None
        model = self._table.get(default_topic)
        if model is None or not model.perm & PERM_INHERIT:
            return None
        count = check_queues(min(default_queues, model.write_queue_nums))
        config = _config(name, count, model.perm & ~PERM_INHERIT)
        config.topic_sys_flag = sys_flag
        config.topic_filter_type = model.topic_filter_type
        self.put(config)
        self._for_sends.add(name)
        return config

    def create_for_group(self, name: str, queues: int, sys_flag: int = 0) -> TopicConfig:
        """Return a group's retry or dead-letter topic, created if it does not exist."""
        found = self._table.get(name)
        if found is not None:
            return found
        config = _config(name, max(0, min(queues, QUEUES_MAX)), READ_WRITE)
        config.topic_sys_flag = sys_flag
        return self.put(config)

    def wrapper(self) -> TopicConfigTable:
        """Return the table to register. The broker's permission limits that of each topic."""
        allowed = self._settings.broker.permission
        table = self._table
        if allowed & READ_WRITE != READ_WRITE:
            table = {name: structs.replace(config, perm=config.perm & allowed) for name, config in table.items()}
        return TopicConfigTable(data_version=self.version, topic_config_table=table)

    @property
    def changed(self) -> bool:
        return self._has_changed

    def note_registration(self) -> None:
        """Note that a registration with all changes up to now begins."""
        self._has_changed = False

    def follow(self, table: TopicConfigTable) -> None:
        """Take over all topics of the master of this replica, with their version."""
        own = {name: config for name, config in self._table.items() if self.is_system(name)}
        self._table = {**own, **table.topic_config_table}
        self.version, self._has_changed = table.data_version, True
        self._recent.clear()
        self.changes += 1
        self.file.note_change()

    def begin_epoch(self, epoch: int, queues: Iterable[tuple[str, int]]) -> None:
        """Begin a later state of the topics, so that a name server prefers this broker to an earlier master.

        A topic of `queues` that is not in the table came to the former master after the last copy of its table. It has
        at least the default number of queues, because a later one may get a message of a transaction.
        """
        for name, count in _queue_counts(queues).items():
            if name not in self._table and names.topic_problem(name) is None:
                count = max(count, self._settings.topics.default_queues)
                log.warning("the topic %s is in the log, but not in topics.json: it gets %d queues", name, count)
                self._table[name] = _config(name, count, READ_WRITE)
        self.version = DataVersion(state_version=epoch, timestamp=self._clock.now_ms(), counter=1)
        self._has_changed = True
        self._recent.clear()
        self.changes += 1
        self.file.note_change()

    def renew_version(self) -> None:
        """Register all topics again with a new version, because settings of registrations have changed."""
        self._note_version()
        self._recent.clear()
        self.changes += 1

    def _note_version(self) -> None:
        version = self.version
        self.version = DataVersion(
            state_version=version.state_version, timestamp=self._clock.now_ms(), counter=version.counter + 1
        )
        self._has_changed = True

    def _change(self, changed: Mapping[str, TopicConfig | None]) -> None:
        self._note_version()
        self.file.note_change()
        for name, config in changed.items():
            self._for_sends.discard(name)
            if config is None:
                self._table.pop(name, None)
                self._forget_unsaved(name)
            else:
                if name not in self._table:
                    self._unsaved[name] = self.file.changes
                self._table[name] = config
            self._note_name(name)

    def _written(self, upto: int, error: OSError | None) -> None:
        """Open the new topics for messages after a write of the changes up to `upto`, or undo them if it has failed."""
        restored = self._pending.end(upto, failed=error is not None)
        if restored:
            self._change(restored)
        for name in [name for name, change in self._unsaved.items() if change <= upto]:
            if error is None:
                self._forget_unsaved(name)
                self._note_name(name)
            elif name in self._for_sends:
                self._change({name: None})

    def _note_name(self, name: str) -> None:
        self.changes += 1
        self._recent.append(name)

    def _forget_unsaved(self, name: str) -> None:
        self._unsaved.pop(name, None)
        self._for_sends.discard(name)

    def _snapshot(self) -> TopicConfigTable:
        return TopicConfigTable(data_version=self.version, topic_config_table=dict(self._table))


def check_queues(count: int) -> int:
    if not 1 <= count <= QUEUES_MAX:
        raise ValueError(f"a topic has 1 to {QUEUES_MAX} queues, not {count}")
    return count


def _bound_queues(config: TopicConfig) -> None:
    """Limit the queue counts from a file. A topic with no queue is closed."""
    found = config.read_queue_nums, config.write_queue_nums
    config.read_queue_nums, config.write_queue_nums = bounded = tuple(max(0, min(n, QUEUES_MAX)) for n in found)
    if bounded != found:
        log.warning(
            "topic %s is stored with %s read and write queues: the broker uses %s", config.topic_name, found, bounded
        )


def _config(name: str, queues: int, perm: int) -> TopicConfig:
    return TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)


def _queue_counts(queues: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Return the number of queues of each topic, up to its highest queue id."""
    counts: dict[str, int] = {}
    for name, queue_id in queues:
        counts[name] = max(counts.get(name, 0), queue_id + 1)
    return counts
