"""Settings of consumer groups (RocketMQ: SubscriptionGroupManager), kept in config/subscriptionGroup.json."""

from __future__ import annotations

import re
from typing import Final

from wheelmq.broker.settings import ConsumptionSettings
from wheelmq.broker.state.pending_changes import PendingChanges
from wheelmq.broker.state.table_file import TableFile
from wheelmq.formats.disk.paths import StorePaths
from wheelmq.formats.names import TRANSACTION_GROUP
from wheelmq.formats.wire.bodies import Body, DataVersion, GroupConfig
from wheelmq.store import config_file
from wheelmq.system.clock import Clock
from wheelmq.system.disk import Disk
from wheelmq.system.workers import Worker

_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")
GROUP_CHARS_MAX = 255

BUILT_IN = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    TRANSACTION_GROUP,
)


_FORBIDDEN_TO_READ: Final = 1 << 2
"""The bit that forbids a group to read a topic (RocketMQ: PermName.INDEX_PERM_READ)."""


class GroupTable(Body):
    data_version: DataVersion = DataVersion()
    forbidden_table: dict[str, dict[str, int]] = {}
    subscription_group_table: dict[str, GroupConfig] = {}


class Groups:
    def __init__(
        self, disk: Disk, paths: StorePaths, clock: Clock, settings: ConsumptionSettings, worker: Worker
    ) -> None:
        self._clock = clock
        self._settings = settings
        path = paths.config_file("subscriptionGroup.json")
        self._table = config_file.load(disk, path, GroupTable) or GroupTable()
        self.file = TableFile(disk, path, clock, worker, self._snapshot, self._written)
        self._pending: PendingChanges[str, GroupConfig] = PendingChanges()
        self._pending_forbidden: PendingChanges[tuple[str, str], int] = PendingChanges()
        """The bits of a group and a topic."""
        for name in BUILT_IN:
            self._table.subscription_group_table.setdefault(name, GroupConfig(group_name=name))

    def known(self, name: str) -> GroupConfig | None:
        return self._table.subscription_group_table.get(name)

    def table(self) -> GroupTable:
        """Return the whole table. Do not change it."""
        return self._table

    def follow(self, table: GroupTable) -> None:
        """Take over all groups of the master of this replica, with their version."""
        self._table = table
        self.file.note_change()

    def put_all(self, configs: list[GroupConfig]) -> None:
        self._note_change()
        groups = self._table.subscription_group_table
        for one in configs:
            self._pending.note(self.file.changes, one.group_name, groups.get(one.group_name))
            groups[one.group_name] = one

    def delete(self, name: str) -> bool:
        """Remove a group and its forbidden topics. Returns whether there was one."""
        config = self._table.subscription_group_table.pop(name, None)
        if config is None:
            return False
        self._note_change()
        self._pending.note(self.file.changes, name, config)
        for topic, bits in self._table.forbidden_table.pop(name, {}).items():
            self._pending_forbidden.note(self.file.changes, (name, topic), bits)
        return True

    def is_forbidden(self, group: str, topic: str) -> bool:
        return bool(self._table.forbidden_table.get(group, {}).get(topic, 0) & _FORBIDDEN_TO_READ)

    def forbid(self, group: str, topic: str, *, forbidden: bool) -> None:
        bits = self._table.forbidden_table.get(group, {}).get(topic, 0)
        self._note_change()
        self._pending_forbidden.note(self.file.changes, (group, topic), bits)
        self._set_forbidden(group, topic, bits | _FORBIDDEN_TO_READ if forbidden else bits & ~_FORBIDDEN_TO_READ)

    def _set_forbidden(self, group: str, topic: str, bits: int) -> None:
        table = self._table.forbidden_table
        topics = dict(table.get(group, {}))  # a copy, since a write may read the old one
        topics.pop(topic, None)
        if bits:
            topics[topic] = bits
        table.pop(group, None)
        if topics:
            table[group] = topics

    def _written(self, upto: int, error: OSError | None) -> None:
        """Take back the changes up to `upto` if their write has failed."""
        configs = self._pending.end(upto, failed=error is not None)
        forbidden = self._pending_forbidden.end(upto, failed=error is not None)
        for name, config in configs.items():
            self._table.subscription_group_table.pop(name, None)
            if config is not None:
                self._table.subscription_group_table[name] = config
        for (group, topic), bits in forbidden.items():
            self._set_forbidden(group, topic, bits or 0)
        if configs or forbidden:
            self._note_change()

    def _note_change(self) -> None:
        counter = self._table.data_version.counter + 1
        self._table.data_version = DataVersion(timestamp=self._clock.now_ms(), counter=counter)
        self.file.note_change()

    def _snapshot(self) -> GroupTable:
        table = self._table
        return GroupTable(
            data_version=table.data_version,
            forbidden_table=dict(table.forbidden_table),
            subscription_group_table=dict(table.subscription_group_table),
        )

    def get(self, name: str) -> GroupConfig | None:
        """Return the group, or None. Creates it if the settings and its name allow that.

        A kill may lose a new group: a later request creates it again.
        """
        found = self._table.subscription_group_table.get(name)
        if found is not None:
            return found
        if not self._settings.auto_create_group or not _NAME.fullmatch(name) or len(name) > GROUP_CHARS_MAX:
            return None
        created = GroupConfig(group_name=name)
        self._table.subscription_group_table[name] = created
        self._note_change()
        return created
