"""Consumer groups' settings (RocketMQ: SubscriptionGroupManager), kept in config/subscriptionGroup.json."""

from __future__ import annotations

import logging
import re
from typing import Final

from wheelmq.broker.settings import BrokerSettings
from wheelmq.formats.disk.paths import StorePaths
from wheelmq.formats.names import TRANSACTION_GROUP
from wheelmq.formats.wire.bodies import Body, DataVersion, GroupConfig
from wheelmq.store import config_file
from wheelmq.system.clock import Clock
from wheelmq.system.disk import Disk

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


log = logging.getLogger(__name__)


_FORBIDDEN_TO_READ: Final = 1 << 2
"""Of the bits that a group is forbidden in a topic (RocketMQ: PermName.INDEX_PERM_READ)."""


class GroupTable(Body):
    """subscriptionGroup.json."""

    data_version: DataVersion = DataVersion()
    forbidden_table: dict[str, dict[str, int]] = {}
    subscription_group_table: dict[str, GroupConfig] = {}


class Groups:
    """Group configs by name."""

    def __init__(self, disk: Disk, paths: StorePaths, clock: Clock, settings: BrokerSettings) -> None:
        self._disk = disk
        self._path = paths.config_file("subscriptionGroup.json")
        self._clock = clock
        self._settings = settings
        self._table = config_file.load(disk, self._path, GroupTable) or GroupTable()
        for name in BUILT_IN:
            self._table.subscription_group_table.setdefault(name, GroupConfig(group_name=name))

    def known(self, name: str) -> GroupConfig | None:
        """The group, if there is one."""
        return self._table.subscription_group_table.get(name)

    def table(self) -> GroupTable:
        """All there is; not to be changed."""
        return self._table

    def put_all(self, configs: list[GroupConfig]) -> None:
        """Add or replace groups, durably, all of them or none. Raises OSError."""
        self._replace({**self._table.subscription_group_table, **{one.group_name: one for one in configs}})

    def delete(self, name: str) -> bool:
        """Forget a group and what it is forbidden, durably; whether there was one. Raises OSError."""
        known = self._table.subscription_group_table
        if name not in known:
            return False
        self._replace({group: config for group, config in known.items() if group != name}, forgiven=name)
        return True

    def is_forbidden(self, group: str, topic: str) -> bool:
        """Whether the group may not read the topic."""
        return bool(self._table.forbidden_table.get(group, {}).get(topic, 0) & _FORBIDDEN_TO_READ)

    def forbid(self, group: str, topic: str, *, forbidden: bool) -> None:
        """Let the group read the topic no more, or again; durably. Raises OSError."""
        table = {name: dict(topics) for name, topics in self._table.forbidden_table.items()}
        bits = table.setdefault(group, {}).pop(topic, 0)
        bits = bits | _FORBIDDEN_TO_READ if forbidden else bits & ~_FORBIDDEN_TO_READ
        if bits:
            table[group][topic] = bits
        if not table[group]:
            del table[group]
        self._replace(self._table.subscription_group_table, forbidden=table)

    def _replace(
        self,
        groups: dict[str, GroupConfig],
        *,
        forbidden: dict[str, dict[str, int]] | None = None,
        forgiven: str | None = None,
    ) -> None:
        """Take another table once it is on disk."""
        forbidden = self._table.forbidden_table if forbidden is None else forbidden
        table = GroupTable(
            data_version=DataVersion(timestamp=self._clock.now_ms(), counter=self._table.data_version.counter + 1),
            forbidden_table={name: topics for name, topics in forbidden.items() if name != forgiven},
            subscription_group_table=groups,
        )
        config_file.save(self._disk, self._path, table)
        self._table = table

    def get(self, name: str) -> GroupConfig | None:
        """The group, made if that is allowed and the name is one; else None."""
        found = self._table.subscription_group_table.get(name)
        if found is not None:
            return found
        if not self._settings.auto_create_group or not _NAME.fullmatch(name) or len(name) > GROUP_CHARS_MAX:
            return None
        made = GroupConfig(group_name=name)
        self._table.subscription_group_table[name] = made
        self._table.data_version = DataVersion(
            timestamp=self._clock.now_ms(), counter=self._table.data_version.counter + 1
        )
        try:
            config_file.save(self._disk, self._path, self._table)
        except OSError as error:  # whoever names it after a stop has it made anew: no reason to refuse a pull now
            log.error("the group %s is not on disk: %s", name, error)
        return made
