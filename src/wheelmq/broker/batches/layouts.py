"""The layout of the last batch of each job: the queues over which its sink distributes the rows.

A sink saves the layout at all brokers of the batch before its first commit. So a repeated batch finds it at any of
them, also if the routes of the name server have changed meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import msgspec

from wheelmq.formats.disk.batch import BatchId, BatchLayout, job_key
from wheelmq.formats.disk.paths import StorePaths
from wheelmq.system.disk import Disk
from wheelmq.system.failpoint import reach

log = logging.getLogger(__name__)

LAYOUTS_MAX: Final = 10_000
"""Jobs with a layout. The job that has not saved one for the longest time is removed first."""


class LayoutOutdated(ValueError):
    """A later batch of the job has a layout here."""


class BatchLayouts:
    def __init__(self, disk: Disk, paths: StorePaths) -> None:
        """Read all layouts. One that cannot be read is logged and left out."""
        self._disk, self._folder = disk, paths.batch_layouts
        self._by_job: dict[str, BatchLayout] = {}
        for name in disk.list(self._folder):
            raw = disk.read(self._folder / name)
            try:
                found = msgspec.json.decode(raw or b"", type=BatchLayout)
            except msgspec.DecodeError as error:
                log.error("%s cannot be read: %s", self._folder / name, error)
                continue
            if name == job_key(found.job):
                self._by_job[found.job] = found

    def find(self, batch: BatchId) -> BatchLayout | None:
        """Return the layout of a batch, or None."""
        found = self._by_job.get(batch.job)
        return None if found is None or found.batch != batch.number else found

    def save_job(self, asked: BatchLayout) -> tuple[BatchLayout, Callable[[], None]]:
        """Return the layout that counts, and the job that saves it: the first one of a batch. Raises LayoutOutdated."""
        known = self._by_job.pop(asked.job, None)
        counts = asked if known is None or known.batch < asked.batch else known
        self._by_job[asked.job] = counts  # the last one in the order of removal
        if counts.batch > asked.batch:
            raise LayoutOutdated(
                f"job {asked.job} is at batch {counts.batch} here, and the request has batch {asked.batch}. Use a "
                "checkpoint for one query only, and a new checkpoint to repeat old batches"
            )
        removed = next(iter(self._by_job)) if len(self._by_job) > LAYOUTS_MAX else None
        if removed is not None:
            del self._by_job[removed]

        def job() -> None:
            self._disk.replace(self._folder / job_key(counts.job), msgspec.json.encode(counts))
            reach("batch.layout_saved")
            if removed is not None:
                self._disk.remove(self._folder / job_key(removed))

        return counts, job
