"""The broker's topics (RocketMQ: TopicConfigManager), kept in config/topics.json."""

from __future__ import annotations

import logging
from typing import Final

from msgspec import structs

from wheelmq.broker.settings import BrokerSettings
from wheelmq.delay.room import DEAD_LETTER_TOPIC
from wheelmq.formats import names
from wheelmq.formats.disk.paths import StorePaths
from wheelmq.formats.disk.timer import TIMER_TOPIC
from wheelmq.formats.wire.bodies import PERM_INHERIT, PERM_READ, PERM_WRITE, DataVersion, TopicConfig, TopicConfigTable
from wheelmq.store import config_file
from wheelmq.system.clock import Clock
from wheelmq.system.disk import Disk

log = logging.getLogger(__name__)

READ_WRITE = PERM_READ | PERM_WRITE

QUEUES_MAX: Final = 8192
"""Queues that a topic may have: each takes room in every table of queues."""


class Topics:
    """Topic configs by name. `version` counts changes; `changed` tells that the name server should hear of one."""

    def __init__(self, disk: Disk, paths: StorePaths, clock: Clock, settings: BrokerSettings) -> None:
        self._disk = disk
        self._path = paths.config_file("topics.json")
        self._clock = clock
        self._settings = settings
        stored = config_file.load(disk, self._path, TopicConfigTable) or TopicConfigTable()
        self.version: DataVersion = stored.data_version
        self._table: dict[str, TopicConfig] = dict(stored.topic_config_table)
        for config in self._table.values():
            _bound_queues(config)
        self.changed = True
        self.changes = 0
        """Changes since the start, for who keeps something derived from the table."""
        self._add_system_topics()

    def _add_system_topics(self) -> None:
        settings = self._settings
        queues = {
            names.SELF_TEST_TOPIC: (1, READ_WRITE),
            names.BENCHMARK_TOPIC: (1024, READ_WRITE),
            settings.cluster: (16, PERM_INHERIT | (READ_WRITE if settings.cluster_topic_enable else 0)),
            settings.broker_name: (1, PERM_INHERIT | (READ_WRITE if settings.broker_topic_enable else 0)),
            names.OFFSET_MOVED_EVENT: (1, READ_WRITE),
            names.reply_topic(settings.cluster): (1, READ_WRITE),
            names.SCHEDULE_TOPIC: (18, READ_WRITE),
            names.HALF_TOPIC: (1, READ_WRITE),
            names.OP_HALF_TOPIC: (1, READ_WRITE),
            TIMER_TOPIC: (1, READ_WRITE),
            DEAD_LETTER_TOPIC: (1, READ_WRITE),
        }
        if settings.trace_topic_enable:
            queues[settings.trace_topic] = (1, READ_WRITE)
        for name, (count, perm) in queues.items():
            self._table.setdefault(name, _config(name, count, perm))
        self.add_model()

    def add_model(self) -> None:
        """Have the topic after which topics are made that a send names first, if that is allowed."""
        name, settings = names.AUTO_CREATE_TOPIC, self._settings
        if settings.auto_create_topic and name not in self._table:
            model = _config(name, settings.default_topic_queues, READ_WRITE | PERM_INHERIT)
            self._table = {**self._table, name: model}

    def __contains__(self, name: str) -> bool:
        return name in self._table

    def get(self, name: str) -> TopicConfig | None:
        return self._table.get(name)

    def all(self) -> dict[str, TopicConfig]:
        """Every topic by name; not to be changed."""
        return self._table

    def is_system(self, name: str) -> bool:
        """Whether only the broker makes and removes the topic: those of its own name and cluster are among them."""
        return names.is_system_topic(name) or name in self._own_names()

    def system(self) -> list[str]:
        """Those of `is_system` that there are, or may be."""
        own = (*self._own_names(), TIMER_TOPIC, DEAD_LETTER_TOPIC)
        return sorted({*names.SYSTEM_TOPICS, *own, *(name for name in self._table if names.is_system_topic(name))})

    def _own_names(self) -> tuple[str, ...]:
        """Topics that are named after the cluster and the broker."""
        cluster = self._settings.cluster
        return cluster, self._settings.broker_name, f"{cluster}_REPLY_TOPIC"

    def put(self, config: TopicConfig) -> TopicConfig:
        """Add or replace a topic, durably. Raises OSError with nothing changed."""
        self.put_all([config])
        return config

    def put_all(self, configs: list[TopicConfig]) -> None:
        """Add or replace topics, durably, all of them or none. Raises as `put`."""
        self._replace({**self._table, **{config.topic_name: config for config in configs}})

    def delete(self, name: str) -> bool:
        """Forget a topic, durably; whether there was one. Its messages stay in the log. Raises as `put`."""
        if name not in self._table:
            return False
        self._replace({known: config for known, config in self._table.items() if known != name})
        return True

    def create_for_send(self, name: str, default_topic: str, default_queues: int, sys_flag: int) -> TopicConfig | None:
        """The topic a send names, made after `default_topic` if that may be inherited from; None if not.

        Raises ValueError when it would have no queue.
        """
        if not self._settings.auto_create_topic and default_topic == names.AUTO_CREATE_TOPIC:
            return None
        model = self._table.get(default_topic)
        if model is None or not model.perm & PERM_INHERIT:
            return None
        count = check_queues(min(default_queues, model.write_queue_nums))
        config = _config(name, count, model.perm & ~PERM_INHERIT)
        config.topic_sys_flag = sys_flag
        config.topic_filter_type = model.topic_filter_type
        return self.put(config)

    def create_for_group(self, name: str, queues: int, sys_flag: int = 0) -> TopicConfig:
        """A group's retry or dead-letter topic, made if it is not there."""
        found = self._table.get(name)
        if found is not None:
            return found
        config = _config(name, max(0, min(queues, QUEUES_MAX)), READ_WRITE)
        config.topic_sys_flag = sys_flag
        return self.put(config)

    def wrapper(self) -> TopicConfigTable:
        """The table as it is registered: no topic is open for what the broker does not take."""
        allowed = self._settings.broker_permission
        table = self._table
        if allowed & READ_WRITE != READ_WRITE:
            table = {name: structs.replace(config, perm=config.perm & allowed) for name, config in table.items()}
        return TopicConfigTable(data_version=self.version, topic_config_table=table)

    def tell_anew(self) -> None:
        """Have the name server hear of all topics in another version: what is registered of them has changed."""
        self.version = DataVersion(timestamp=self._clock.now_ms(), counter=self.version.counter + 1)
        self.changed = True
        self.changes += 1

    def _replace(self, table: dict[str, TopicConfig]) -> None:
        """Take `table` once it is on disk: a topic that nobody finds after a stop hides what was sent to it."""
        version = DataVersion(timestamp=self._clock.now_ms(), counter=self.version.counter + 1)
        config_file.save(self._disk, self._path, TopicConfigTable(data_version=version, topic_config_table=table))
        self._table, self.version = table, version
        self.changed = True
        self.changes += 1


def check_queues(count: int) -> int:
    """`count`, when a topic may be made with so many queues. Raises ValueError."""
    if not 1 <= count <= QUEUES_MAX:
        raise ValueError(f"a topic has from 1 to {QUEUES_MAX} queues, not {count}")
    return count


def _bound_queues(config: TopicConfig) -> None:
    """Bring what a file says into bounds; none at all is a topic that is closed."""
    found = config.read_queue_nums, config.write_queue_nums
    config.read_queue_nums, config.write_queue_nums = bounded = tuple(max(0, min(n, QUEUES_MAX)) for n in found)
    if bounded != found:
        log.warning(
            "topic %s is stored with %s queues to read and write: taken as %s", config.topic_name, found, bounded
        )


def _config(name: str, queues: int, perm: int) -> TopicConfig:
    return TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)
