"""Key-value config by namespace, saved in a file (RocketMQ: KVConfigManager)."""

from __future__ import annotations

from pathlib import Path

from wheelmq.formats.wire.bodies import Body
from wheelmq.store import config_file
from wheelmq.system.disk import Disk

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"
"""Namespace whose keys are topics and whose values are `broker:queues;broker:queues`."""


class KvTable(Body):
    config_table: dict[str, dict[str, str]] = {}


class KvConfig:
    """Values by namespace and key. Each change is on disk on return."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self._table = config_file.load(disk, path, KvTable) or KvTable()

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.config_table.get(namespace, {}).get(key)

    def all(self, namespace: str) -> dict[str, str] | None:
        return self._table.config_table.get(namespace)

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value. Raises OSError without a change, as `delete` does."""
        self._replace(namespace, {**self._table.config_table.get(namespace, {}), key: value})

    def delete(self, namespace: str, key: str) -> None:
        """Delete a value if it exists. Its namespace stays."""
        pairs = self._table.config_table.get(namespace, {})
        if key in pairs:
            self._replace(namespace, {name: value for name, value in pairs.items() if name != key})

    def _replace(self, namespace: str, pairs: dict[str, str]) -> None:
        """Replace the pairs of a namespace, once they are on disk."""
        table = KvTable(config_table={**self._table.config_table, namespace: pairs})
        config_file.save(self._disk, self._path, table)
        self._table = table
