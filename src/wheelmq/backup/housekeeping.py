"""Merge the small objects of a target and remove expired ones, on a worker, one job at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, NamedTuple

from wheelmq.backup.catalog import NEW, PointObject
from wheelmq.backup.index import FileSizes
from wheelmq.backup.merging import JoinRules, merge_captures, merge_points
from wheelmq.backup.retention import Expired, expire
from wheelmq.backup.settings import ShipSettings
from wheelmq.backup.target import Target
from wheelmq.formats.units import Millis
from wheelmq.system.clock import Clock
from wheelmq.system.failpoint import reach
from wheelmq.system.single_flight import SingleFlight
from wheelmq.system.workers import Worker

log = logging.getLogger(__name__)

RETRY_S: Final = 30.0
"""Pause after a failed job."""

Merged = Callable[[list[PointObject], PointObject], None]
"""Called with merged objects and their successor, before the merged ones are removed."""


class ObjectRemoval(NamedTuple):
    """The result of a removal."""

    left: list[str]
    """Names of the objects that are still there."""
    error: OSError | None
    """The last error."""


class Housekeeping:
    """Owns the list of objects with points. Its methods are called in one thread, which also runs the callbacks of
    the worker."""

    def __init__(
        self,
        target: Target,
        clock: Clock,
        settings: ShipSettings,
        worker: Worker,
        merged: Merged,
        run_callback: Callable[[], None],
    ) -> None:
        """`run_callback` waits for the next callback of the worker and runs it."""
        self.objects: list[PointObject] = []
        self._target = target
        self._clock = clock
        self._settings = settings
        self._flight = SingleFlight(worker, clock, retry_s=RETRY_S)
        self._merged = merged
        self._run_callback = run_callback
        self._next_expiry_ms = 0
        self._obsolete: list[str] = []
        """Objects that a job could not remove. No point needs them."""
        self.problem: str | None = None
        """Why the last job failed; None if it did not."""
        self.failures = 0
        """Number of failed jobs."""

    def run(self, sizes: FileSizes) -> None:
        """Begin a job if one is due and none runs."""
        next_s = self._flight.next_s
        if next_s is None or next_s > self._clock.monotonic():
            return
        if self._merge_captures(sizes) or self._merge_points() or self._remove_again():
            return
        self._expire()

    def wait(self) -> None:
        """Wait for the running job."""
        while self._flight.is_running:
            self._run_callback()

    # Merges --------------------------------------------------------------------------------------------------------

    def _merge_captures(self, sizes: FileSizes) -> bool:
        """Merge the first consecutive captures if it is time. Returns whether a job began."""
        first = next((i for i, one in enumerate(self.objects) if _is_capture(one)), None)
        if first is None:
            return False
        stop = next((i for i in range(first, len(self.objects)) if not _is_capture(self.objects[i])), None)
        run = self.objects[first:stop]
        if stop is None and not self._is_due(run):
            return False
        run = run[: self._settings.merged_count]
        cuts = [point.cuts for one in self.objects[first:] for point in one.points]
        borders = {border for one in cuts for border in one.items()}
        joins = JoinRules(sizes, borders, self._settings.chunk_bytes)
        self._submit(run, lambda: merge_captures(self._target, run, joins))
        return True

    def _is_due(self, run: list[PointObject]) -> bool:
        """Return whether captures that more may follow are merged now."""
        settings = self._settings
        stored = sum(chunk.size for one in run for point in one.points for chunk in point.chunks)
        age_ms = self._clock.now_ms() - run[0].points[0].made_ms
        is_old = age_ms >= settings.merged_ms and len(run) > 1
        return is_old or len(run) >= settings.merged_count or stored >= settings.merged_bytes

    def _merge_points(self) -> bool:
        """Merge consecutive objects with few points if there are enough. Returns whether a job began."""
        wanted = self._settings.objects_of_points
        run: list[PointObject] = []
        for one in self.objects:
            if _is_capture(one) or len(one.points) >= wanted:
                run = []
                continue
            run.append(one)
            if len(run) == wanted:
                self._submit(run, partial(merge_points, self._target, run))
                return True
        return False

    def _submit(self, run: list[PointObject], job: Callable[[], tuple[PointObject, list[str]]]) -> None:
        def merge() -> tuple[PointObject, ObjectRemoval]:
            made, obsolete = job()
            removal = self._remove(name for name in obsolete if name != made.name)
            reach("ship.merged")
            return made, removal

        def merged(done: tuple[PointObject, ObjectRemoval]) -> None:
            self._replace(run, done[0])
            self._note(done[1])

        self._flight.submit(merge, done=merged, failed=self._failed)

    def _replace(self, run: list[PointObject], made: PointObject) -> None:
        first = self.objects.index(run[0])
        assert self.objects[first : first + len(run)] == run
        self.objects[first : first + len(run)] = [made]
        self._merged(run, made)

    # Expiry --------------------------------------------------------------------------------------------------------

    def _expire(self) -> None:
        """Remove chunks that no restore needs any more, if it is time."""
        keep_ms, now_ms = self._settings.keep_ms, self._clock.now_ms()
        if keep_ms is None or self._clock.monotonic_ms() < self._next_expiry_ms:
            return
        self._next_expiry_ms = self._clock.monotonic_ms() + self._settings.expiry_interval_ms
        objects, before_ms = list(self.objects), Millis(now_ms - keep_ms)

        def job() -> tuple[Expired | None, ObjectRemoval]:
            found = expire(self._target, objects, before_ms)
            removal = self._remove([] if found is None else found.obsolete)
            if found is not None:
                reach("ship.expired")
            return found, removal

        self._flight.submit(job, done=self._expired, failed=self._failed)

    def _expired(self, done: tuple[Expired | None, ObjectRemoval]) -> None:
        found, removal = done
        if found is not None:
            self._replace(self.objects[: found.replaced], found.base)
        self._note(removal)

    # Removal -------------------------------------------------------------------------------------------------------

    def _remove(self, names: Iterable[str]) -> ObjectRemoval:
        """Remove objects. The points do not need them any more, so the job succeeds if one stays."""
        left, error = [], None
        for name in names:
            try:
                self._target.remove(name)
            except OSError as failure:
                left.append(name)
                error = failure
            reach("ship.removed")
        return ObjectRemoval(left, error)

    def _remove_again(self) -> bool:
        """Remove the objects that an earlier job could not remove. Returns whether a job began."""
        if not self._obsolete:
            return False
        names, self._obsolete = self._obsolete, []
        self._flight.submit(lambda: self._remove(names), done=self._note, failed=self._failed)
        return True

    def _note(self, removal: ObjectRemoval) -> None:
        self.problem = None
        if removal.error is not None:
            self._obsolete += removal.left
            self._flight.rest()
            self._failed(removal.error)

    def _failed(self, error: Exception) -> None:
        self.problem = str(error)
        self.failures += 1
        log.warning("the shipper could not merge or remove objects, and will try again: %s", error)


def _is_capture(one: PointObject) -> bool:
    return one.name.startswith(f"{NEW}/")
