"""Saves of the tables in the config folder: offsets and filters at intervals, the others soon after a change."""

from __future__ import annotations

from typing import Final

from wheelmq.broker.background_jobs import run_at_stop, run_in_background
from wheelmq.broker.state.access_tables import AccessTables
from wheelmq.broker.state.consumer_filters import ConsumerFilters
from wheelmq.broker.state.consumer_offsets import ConsumerOffsets
from wheelmq.broker.state.groups import Groups
from wheelmq.broker.state.topics import Topics
from wheelmq.system.workers import Worker

FILTERS_PERSIST_MS: Final = 10_000
"""As in Apache RocketMQ, which has no setting for it either."""


class TableSaves:
    """Decides when each table is written. Times are monotonic milliseconds."""

    def __init__(
        self,
        topics: Topics,
        groups: Groups,
        offsets: ConsumerOffsets,
        filters: ConsumerFilters,
        access: AccessTables,
        *,
        worker: Worker,
    ) -> None:
        self._files = (topics.file, groups.file, access.users_file, access.acls_file)
        self._offsets = offsets
        self._filters = filters
        self._worker = worker

    def save_offsets(self) -> None:
        run_in_background(self._offsets.save_job(), self._worker)

    def save_filters(self) -> None:
        """Write the filters if they have changed. Call it every `FILTERS_PERSIST_MS`."""
        run_in_background(self._filters.save_job(), self._worker)

    def poll(self, monotonic_ms: int) -> None:
        for file in self._files:
            file.poll(monotonic_ms)

    def next_ms(self) -> int | None:
        return min((due_ms for file in self._files if (due_ms := file.next_ms()) is not None), default=None)

    def close(self) -> None:
        for file in self._files:
            file.save_now()
        run_at_stop(self._offsets.save_job())
        run_at_stop(self._filters.save_job())
