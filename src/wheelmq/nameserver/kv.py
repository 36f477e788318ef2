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
        self._table.config_table.setdefault(namespace, {})[key] = value
        self._save()

    def delete(self, namespace: str, key: str) -> None:
        self._table.config_table.get(namespace, {}).pop(key, None)
        self._save()

    def _save(self) -> None:
        config_file.save(self._disk, self._path, self._table)
