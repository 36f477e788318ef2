"""Offsets of each group in each queue (RocketMQ: ConsumerOffsetManager), kept in config/consumerOffset.json."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping

from wheelmq.formats.disk.paths import StorePaths
from wheelmq.formats.names import TRANSACTION_GROUP
from wheelmq.formats.units import QueueOffset
from wheelmq.formats.wire.bodies import Body, DataVersion
from wheelmq.store import config_file
from wheelmq.system.disk import Disk

log = logging.getLogger(__name__)


class OffsetTable(Body):
    """consumerOffset.json: queue offsets by `topic@group` and queue id."""

    data_version: DataVersion = DataVersion()
    offset_table: dict[str, dict[int, int]] = {}


class ConsumerOffsets:
    """Committed queue offsets, written every few seconds and at a clean stop. Do not change the returned tables."""

    def __init__(self, disk: Disk, paths: StorePaths, queue_end: Callable[[str, int], int]) -> None:
        self._disk = disk
        self._path = paths.config_file("consumerOffset.json")
        self._table = config_file.load(disk, self._path, OffsetTable) or OffsetTable()
        self._dirty = False
        self.changes = 0
        """Changes since the start. Replicas fetch the table when it differs."""
        self._pulled: dict[str, dict[int, int]] = {}
        self._resets: dict[str, dict[int, int]] = {}
        self.lower_to_ends(queue_end)

    def get(self, group: str, topic: str, queue_id: int) -> QueueOffset | None:
        found = self._table.offset_table.get(f"{topic}@{group}", {}).get(queue_id)
        return None if found is None else QueueOffset(found)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        queues = self._table.offset_table.setdefault(f"{topic}@{group}", {})
        if queues.get(queue_id) != offset:
            queues[queue_id] = offset
            self._note_change()

    def _note_change(self) -> None:
        self._dirty = True
        self.changes += 1

    def follow(self, table: OffsetTable) -> None:
        """Take over the offsets of the master of this replica, except the progress of transactions."""
        own = {key: queues for key, queues in self._table.offset_table.items() if _is_of_transactions(key)}
        theirs = {key: queues for key, queues in table.offset_table.items() if not _is_of_transactions(key)}
        self._table = OffsetTable(table.data_version, {**theirs, **own})
        self._note_change()

    def lower_to_ends(self, queue_end: Callable[[str, int], int]) -> None:
        """Lower the offsets beyond the end of their queue to the end. `queue_end` returns it by topic and queue id.

        A power cut or a failover can lose consumed messages. The next messages with these offsets are not consumed yet.
        """
        for key, queues in self._table.offset_table.items():
            topic = key.partition("@")[0]
            for queue_id, offset in queues.items():
                end = queue_end(topic, queue_id)
                if offset > end:
                    log.warning(
                        "%s: offset %d of queue %d is beyond the end of the queue, and is set to %d",
                        key,
                        offset,
                        queue_id,
                        end,
                    )
                    queues[queue_id] = end
                    self._note_change()

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set the offset of `group`. Its next pull of the queue takes the reset.

        Until then, the caller must ignore commits: clients that do not know of the reset commit their old offsets.
        """
        self.commit(group, topic, queue_id, offset)
        self._resets.setdefault(f"{topic}@{group}", {})[queue_id] = offset

    def has_reset(self, group: str, topic: str, queue_id: int) -> bool:
        return bool(self._resets) and queue_id in self._resets.get(f"{topic}@{group}", {})

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Take the reset that waits for the group's next pull of the queue; None if there is none."""
        if not self.has_reset(group, topic, queue_id):
            return None
        resets = self._resets[f"{topic}@{group}"]
        offset = resets.pop(queue_id)
        if not resets:
            del self._resets[f"{topic}@{group}"]
        return offset

    def note_pull(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Note the offset up to which `group` has pulled the queue. It is reported, but not stored."""
        self._pulled.setdefault(f"{topic}@{group}", {})[queue_id] = offset

    def pulled(self, group: str, topic: str) -> dict[int, int]:
        """Return the offsets up to which the group has pulled since the broker's start, by queue id."""
        return self._pulled.get(f"{topic}@{group}", {})

    def of(self, group: str, topic: str) -> dict[int, int]:
        """Return the committed offsets by queue id."""
        return self._table.offset_table.get(f"{topic}@{group}", {})

    def topics_of(self, group: str) -> list[str]:
        return sorted(topic for topic, found in self._pairs() if found == group)

    def groups_of(self, topic: str) -> list[str]:
        return sorted(group for found, group in self._pairs() if found == topic)

    def by_group(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for topic, group in self._pairs():
            found.setdefault(group, []).append(topic)
        return found

    def table(self) -> OffsetTable:
        return self._table

    def clone(self, source: str, target: str, topic: str) -> None:
        offsets = self._table.offset_table.get(f"{topic}@{source}")
        if offsets is not None:
            self._table.offset_table[f"{topic}@{target}"] = dict(offsets)
            self._note_change()

    def remove(self, wanted: Callable[[str, str], bool]) -> int:
        """Delete offsets and resets where `wanted(group, topic)`. Returns the number of deleted pairs with offsets."""
        keys = {f"{topic}@{group}" for topic, group in self._pairs() if wanted(group, topic)}
        for key in keys:
            del self._table.offset_table[key]
            self._resets.pop(key, None)
        for topic, group in list(self._pairs(self._pulled)):
            if wanted(group, topic):
                del self._pulled[f"{topic}@{group}"]
        if keys:
            self._note_change()
        return len(keys)

    def _pairs(self, table: Mapping[str, object] | None = None) -> Iterator[tuple[str, str]]:
        """Yield topic and group of each key of `table`, by default of the table of committed offsets."""
        for key in self._table.offset_table if table is None else table:
            topic, _, group = key.partition("@")
            if "@" not in group:  # else the key is of an older broadcast consumer
                yield topic, group

    def save_job(self) -> Callable[[], None] | None:
        """Return the job that writes the table, also off the loop; None without changes. Failed writes are repeated."""
        if not self._dirty:
            return None
        self._dirty = False
        copy = OffsetTable(offset_table={key: dict(queues) for key, queues in self._table.offset_table.items()})

        def job() -> None:
            try:
                config_file.save(self._disk, self._path, copy)
            except BaseException:
                self._dirty = True
                raise

        return job


def _is_of_transactions(key: str) -> bool:
    return key.endswith(f"@{TRANSACTION_GROUP}")
