"""The fast path of a release: one kernel call for the due messages of a batch that are parked in one log file."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from wheelmq.broker.topic_arrays import TopicArrays
from wheelmq.delay import refs as ref
from wheelmq.delay.api import Generations
from wheelmq.delay.fast import release
from wheelmq.delay.refs import Refs
from wheelmq.formats.disk.origin import INDEX_MASK, Origin, origin_stream
from wheelmq.formats.units import LogPosition, Millis
from wheelmq.store.store import Store

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]


class FastRelease:
    """Calls the kernel on the store's own state. The plain code releases the messages that the kernel leaves."""

    def __init__(self, store: Store, generations: Generations, arrays: TopicArrays) -> None:
        self._log = store.log
        self._journal = store.journal
        self._queues = store.queues
        self._generations = generations
        self._arrays = arrays
        host = store.host
        self._state: Integers = np.zeros(release.STATE, np.int64)
        self._parameters: Integers = np.zeros(release.PARAMETERS, np.int64)
        self._parameters[release.STORE_IP] = int.from_bytes(host.address, "big")
        self._parameters[release.STORE_PORT] = host.port
        self._levels_ms: Integers = np.array(store.levels_ms, np.int64)

    def __call__(self, refs: Refs, now_ms: Millis) -> int:
        """Append the messages at the front of `refs`, which are sorted by origin. Returns the number appended."""
        log, journal = self._log, self._journal
        room_end = log.files.room_end(log.end)
        if room_end == log.end:
            return 0
        self._arrays.refresh()
        origin = Origin(int(refs[0, ref.ORIGIN]))
        source = self._generations.of(origin).files_of(origin_stream(origin))
        if source is None:
            return 0
        first = int(refs[0, ref.POSITION])
        if not source.start <= first < source.end:
            return 0  # the plain code sets the message aside and logs its position
        source_base = first - first % source.file_bytes
        refs = refs[: _in_first_stream(refs[:, ref.ORIGIN])]
        here = int(np.searchsorted(refs[:, ref.POSITION], source_base + source.file_bytes))
        base = log.end - log.end % log.files.file_bytes
        state, parameters = self._state, self._parameters
        state[release.NEXT] = 0
        state[release.LOG_AT] = log.end - base
        state[release.ROWS] = journal.count
        parameters[release.NOW_MS] = now_ms
        parameters[release.STORE_MS] = store_ms = log.store_ms()
        parameters[release.LOG_BASE] = base
        parameters[release.SOURCE_BASE] = source_base
        room = log.files.file_at(log.end).array[: room_end - base]
        self._call(refs[:here], source.file_at(source_base).read_array, room)
        log.advance(LogPosition(base + int(state[release.LOG_AT])), store_ms)
        journal.count = int(state[release.ROWS])
        return int(state[release.NEXT])

    def _call(self, refs: Refs, source: Bytes, log: Bytes) -> None:
        arrays = self._arrays
        release.release(
            np.ascontiguousarray(refs),
            source,
            log,
            self._queues.next_offset,
            self._journal.table,
            arrays.slots,
            arrays.rows,
            arrays.names,
            arrays.queue_rows,
            self._levels_ms,
            self._parameters,
            self._state,
        )


def _in_first_stream(origins: Integers) -> int:
    """Return the number of sorted `origins` in the stream of the first one. Their log positions ascend too."""
    last = int(origins[0]) | INDEX_MASK
    return len(origins) if origins[-1] <= last else int(np.searchsorted(origins, last, "right"))
