"""Key-value config by namespace (RocketMQ: KVConfigManager), kept in a file."""

from __future__ import annotations

from pathlib import Path

from wheelmq.formats.wire.bodies import Body
from wheelmq.store import config_file
from wheelmq.system.disk import Disk

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"
"""Namespace whose keys are topics and whose values are `broker:queues;broker:queues`."""


class KvTable(Body):
    """kvConfig.json."""

    config_table: dict[str, dict[str, str]] = {}


class KvConfig:
    """Values by namespace and key; each change is on disk when it returns."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self._table = config_file.load(disk, path, KvTable) or KvTable()

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.config_table.get(namespace, {}).get(key)

    def all(self, namespace: str) -> dict[str, str] | None:
        """Every pair of a namespace; None when there is no such namespace."""
        return self._table.config_table.get(namespace)

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value. Raises OSError with nothing changed, as `delete`."""
        self._replace(namespace, {**self._table.config_table.get(namespace, {}), key: value})

    def delete(self, namespace: str, key: str) -> None:
        """Forget a value, if there is one; its namespace stays."""
        pairs = self._table.config_table.get(namespace, {})
        if key in pairs:
            self._replace(namespace, {name: value for name, value in pairs.items() if name != key})

    def _replace(self, namespace: str, pairs: dict[str, str]) -> None:
        """Take other pairs of a namespace once they are on disk."""
        table = KvTable(config_table={**self._table.config_table, namespace: pairs})
        config_file.save(self._disk, self._path, table)
        self._table = table
