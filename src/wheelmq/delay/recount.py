"""Count the pending messages again, from their records (RocketMQ: checkAndReviseMetrics).

The result is for the moment at which the count began. At the end, the counts are corrected by the difference.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from wheelmq.delay.api import Generations
from wheelmq.delay.blocks.records import UnitRecords
from wheelmq.delay.pending_scan import are_pending
from wheelmq.delay.prefetch import Spans, spans_of
from wheelmq.delay.timer.timer import Timer
from wheelmq.formats.disk.origin import Stream
from wheelmq.formats.kernels import jit
from wheelmq.formats.kernels import scan as col
from wheelmq.formats.units import QueueOffset
from wheelmq.store.mapped import MappedSequence

STEP_UNITS: Final = 2000
"""Messages in one step."""
STEP_UNITS_PLAIN: Final = 100

Integers = npt.NDArray[np.int64]


class Step(NamedTuple):
    """Messages of one stream that were pending when the count began."""

    stream: Stream
    indices: Integers
    units: npt.NDArray[Any]
    files: MappedSequence

    def spans(self) -> Spans:
        positions, sizes = (self.units[name].astype(np.int64) for name in ("position", "size"))
        return spans_of(self.files, positions, sizes)


class Recount:
    """One count. Call `count` for each of the `steps` in order, then `correct`."""

    def __init__(self, timer: Timer, generations: Generations) -> None:
        """Begin the count. Each record must have its queue unit by now."""
        assert timer.store.journal.count == 0
        self._timer = timer
        self._generations = generations
        self._done = timer.pending.done.copy()
        self._known = timer.pending.counts.by_queue.copy()
        self._found = np.zeros(len(self._known), np.int64)
        self._ends = {one: generations.of_stream(one).queue_of(one).end for one in generations.streams()}
        self.is_void = False
        """Whether the count is useless: a message that was pending at its start was gone before it was counted."""

    def steps(self) -> Iterator[Step]:
        """Yield the messages to count. Each step is read when it is asked for."""
        most = STEP_UNITS if jit.available() else STEP_UNITS_PLAIN
        for stream, end in self._ends.items():
            index = self._done.of(stream).first_unset(end)
            while index < end and not self.is_void:
                found = self._read(stream, index, min(most, end - index))
                if found is None:
                    self.is_void = True
                    return
                units, files = found
                indices = index + np.arange(len(units))
                waits = are_pending(self._done.of(stream), index, units) & (units["size"] > 0)
                if waits.any():
                    yield Step(stream, indices[waits], units[waits], files)
                index += len(units)

    def _read(self, stream: Stream, index: int, count: int) -> tuple[npt.NDArray[Any], MappedSequence] | None:
        """Return at most `count` units from `index` on, and the files of their records, or None if they are gone."""
        generation = self._generations.of_stream(stream)
        files = generation.files_of(stream)
        if files is None:
            return None
        queue = generation.queue_of(stream)
        return None if index < queue.start else (queue.read(QueueOffset(index), count), files)

    def count(self, step: Step) -> None:
        queue_id = self._generations.of_stream(step.stream).queue_id_of(step.stream)
        records = UnitRecords(step.files, queue_id, check_bodies=False)
        rows = records.read(step.indices, step.units)
        is_there = rows[:, col.SIZE] > 0
        settled = self._timer.pending.done.of(step.stream).get(step.indices[~is_there])
        self.is_void |= bool(settled.any())
        rows = rows[is_there]
        queues = self._timer.store.queue_rows(rows[:, col.REAL_TOPIC], rows[:, col.REAL_QUEUE_ID], records.names)
        queues = queues[queues >= 0]
        if len(queues):
            more = max(0, int(queues.max()) + 1 - len(self._found))
            self._found = np.concatenate((self._found, np.zeros(more, np.int64)))
            np.add.at(self._found, queues, 1)

    def correct(self) -> Integers:
        """Correct the timer's counts. Returns the correction of each count, by the row of the real queue."""
        assert not self.is_void
        wrong = self._found.copy()
        wrong[: len(self._known)] -= self._known
        self._timer.pending.counts.correct(wrong)
        return wrong
