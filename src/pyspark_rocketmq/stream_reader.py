"""A stream of messages. Spark keeps this reader in a process of its own; tasks get copies of it for `read`.

The offset of a stream is the next queue offset of each queue, and the number of lost messages (offsets.py). Spark
asks for a new offset only after the batch of the one before it is complete.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from pyspark_rocketmq.cluster import Cluster
from pyspark_rocketmq.errors import SilentBroker
from pyspark_rocketmq.group_offsets import GroupOffsets
from pyspark_rocketmq.offsets import Queue, StreamOffset
from pyspark_rocketmq.options import SourceOptions
from pyspark_rocketmq.partitions import check_filters, planned, read
from pyspark_rocketmq.ranges import OffsetRange, Survey, settled, shares, unread
from pyspark_rocketmq.repeated_warnings import RepeatedWarnings
from pyspark_rocketmq.sampling import mean_bytes
from pyspark_rocketmq.survey import report, resolve, survey
from wheelmq.system.clock import Clock, SystemClock

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

UNBOUNDED = 1 << 62
AWAY_MS = 30_000
"""The wait of trigger availableNow for brokers that are away, before the query fails or ends without their messages."""
AWAY_DELAY_S = 1.0
"""Wait before these brokers are asked again."""
LEFT_MS = 60_000
"""Time between the questions for queues that have left the stream."""
IDLE_S = 0.05
"""Wait before an answer without a new offset. Spark asks again after 10 ms (spark.sql.streaming.pollingDelay)."""


class RocketStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    def __init__(self, options: SourceOptions, columns: tuple[str, ...], clock: Clock | None = None) -> None:
        self._options = options
        self._columns = columns
        self._clock = clock or SystemClock()
        self._cluster: Cluster | None = None
        self._survey: Survey | None = None
        """The last survey, which is as old as the last offset."""
        self._targets: dict[Queue, int] | None = None
        """With trigger availableNow, the ends of queues at the start of the query, or when their broker came back."""
        self._warnings = RepeatedWarnings(self._clock)
        self._initial: dict[str, Any] | None = None
        """The initial offset of this life of the query. Spark asks for it more than once."""
        self._begun_ms: int | None = None
        """Monotonic time of the last batch."""
        self._asked_left_ms: int | None = None
        """Monotonic time of the last question for queues that have left the stream."""
        self._group = GroupOffsets(options.group, {}) if options.commits else None

    @property
    def cluster(self) -> Cluster:
        if self._cluster is None:
            self._cluster = Cluster(self._options.connection)
        return self._cluster

    def __getstate__(self) -> dict[str, Any]:
        """Return the part of the reader that tasks need."""
        return {**self.__dict__, "_cluster": None, "_survey": None, "_targets": None, "_group": None}

    # Offsets -------------------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        """Return the starting offsets, the same ones at each call. Raises OptionError, BrokerError."""
        if self._initial is not None:
            return self._initial
        options = self._options
        found = survey(self.cluster, options)
        check_filters(self.cluster, options, found)
        starts = resolve(self.cluster, options, found, is_start=True, now_ms=self._clock.now_ms())
        if options.commits:
            self._group = GroupOffsets(options.group, starts)
        self._initial = StreamOffset(starts).to_json()
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return a limit that represents all limits of the options, because Spark has no compound one."""
        limits = self._options.limits
        if limits.offsets_max is not None:
            return ReadMaxRows(limits.offsets_max)
        if limits.bytes_max is not None:
            return ReadMaxBytes(limits.bytes_max)
        if limits.offsets_min is not None:
            return ReadMinRows(limits.offsets_min)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Note the ends of the queues. Servers may be away, and a checkpoint may know their queues."""
        found = survey(self.cluster, self._options, {})
        self._warnings.report(found.problems)
        self._targets = {queue: span.end for queue, span in found.spans.items()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch, or `start` without one. Raises BrokerError, DataLossError."""
        progress = StreamOffset.of_json(start)
        self._store(progress)
        found = self._survey = self._surveyed(progress)
        returned = {queue: offset for queue, offset in progress.left.items() if queue in found.spans}
        starts, losses = settled({**returned, **progress.queues}, found)
        lost = report(losses, fails=self._options.fails_on_loss)
        ends = self._ends(starts)
        sizes = {queue: ends[queue] - first for queue, first in starts.items() if queue in ends}
        if not losses and self._waits(sum(sizes.values()), limit):
            threading.Event().wait(IDLE_S)
            return start
        counts = self._counts(starts, sizes, limit)
        if counts:
            self._begun_ms = self._clock.monotonic_ms()
        elif self._targets is None:
            threading.Event().wait(IDLE_S)
        chosen = {
            queue: first + counts.get(queue, 0)
            for queue, first in starts.items()
            if queue in progress.queues or queue in ends
        }
        left = {
            queue: offset
            for queue, offset in {**progress.left, **progress.queues}.items()
            if queue not in chosen and (queue.topic, queue.broker) not in found.gone
        }
        if not lost and chosen == progress.queues and left == progress.left:
            return start
        is_first = start == self._initial
        begins = {queue: starts[queue] for queue in chosen if is_first or queue not in progress.queues}
        return StreamOffset(chosen, progress.lost + lost, begins, left).to_json()

    def _surveyed(self, progress: StreamOffset) -> Survey:
        """Return a survey of the queues. Raises BrokerError.

        With trigger availableNow, wait for brokers that are away once all other messages are read.
        """
        until_ms = self._clock.monotonic_ms() + AWAY_MS
        while True:
            asks_left = self._asks_left()
            found = survey(self.cluster, self._options, progress.queues, progress.left, asks_left=asks_left)
            self._warnings.report(found.problems)
            if self._targets is None:
                return found
            for queue, span in found.spans.items():
                if queue in progress.queues:
                    self._targets.setdefault(queue, span.end)
            away = unread(progress.queues, found, self._targets)
            if not away:
                return found
            left_ms = until_ms - self._clock.monotonic_ms()
            if left_ms <= 0:
                break
            threading.Event().wait(min(AWAY_DELAY_S, left_ms / 1000))
        text = f"the query ends without the messages of queue {away[0]}, whose broker does not answer"
        if self._options.fails_on_loss:
            raise SilentBroker(f"{text}. Start the broker, or set failOnDataLoss to false")
        log.warning("%s. The next query with this checkpoint reads them.", text)
        return found

    def _asks_left(self) -> bool:
        """Return whether the next survey asks for queues that have left the stream, and note its time."""
        now_ms = self._clock.monotonic_ms()
        if self._asked_left_ms is not None and now_ms - self._asked_left_ms < LEFT_MS:
            return False
        self._asked_left_ms = now_ms
        return True

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the ends of the queues at the last survey, from which the lag follows."""
        if self._survey is None:
            return None
        return StreamOffset({queue: span.end for queue, span in self._survey.spans.items()}).to_json()

    def _ends(self, starts: dict[Queue, int]) -> dict[Queue, int]:
        """Return the ends of the queues that may be read, never before their starts."""
        assert self._survey is not None
        ends = {queue: span.end for queue, span in self._survey.spans.items()}
        if self._targets is not None:
            targets = self._targets
            ends = {queue: min(end, targets[queue]) for queue, end in ends.items() if queue in targets}
        return {queue: max(end, starts[queue]) for queue, end in ends.items()}

    def _waits(self, available: int, limit: ReadLimit) -> bool:
        """Return whether the batch waits for more messages (minOffsetsPerTrigger)."""
        limits = self._options.limits
        if limits.offsets_min is None or isinstance(limit, ReadAllAvailable) or self._targets is not None:
            return False
        if self._begun_ms is None:
            return False  # as in Spark's Kafka source, the first batch does not wait
        return available < limits.offsets_min and self._clock.monotonic_ms() - self._begun_ms < limits.delay_max_ms

    def _counts(self, starts: dict[Queue, int], sizes: dict[Queue, int], limit: ReadLimit) -> dict[Queue, int]:
        """Return the number of messages of each queue in the next batch."""
        limits, total = self._options.limits, sum(sizes.values())
        if isinstance(limit, ReadAllAvailable) or not total:
            return {queue: size for queue, size in sizes.items() if size}
        count_max = limits.offsets_max or UNBOUNDED
        if limits.bytes_max is not None:
            filled = [OffsetRange(queue, starts[queue], starts[queue] + size) for queue, size in sizes.items() if size]
            means = mean_bytes(self.cluster, self._options, filled)
            bytes_total = sum(means[one.queue] * one.rows for one in filled)
            count_max = min(count_max, max(1, int(total * limits.bytes_max / max(1.0, bytes_total))))
        return shares(sizes, count_max)

    # Batches -------------------------------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks of a batch. Raises BrokerError, DataLossError.

        A restart repeats the first batch with another initial offset, if that depends on the time. So the beginnings in
        `end` come before those in `start`.
        """
        before, (after, _, begins, _) = dict(StreamOffset.of_json(start).queues), StreamOffset.of_json(end)
        before |= begins
        if self._survey is None:  # a restart repeats the last batch before it asks for an offset
            self._survey = survey(self.cluster, self._options, after)
            self._warnings.report(self._survey.problems)
        starts, losses = settled({queue: first for queue, first in before.items() if queue in after}, self._survey)
        report([loss for loss in losses if before[loss.queue] < after[loss.queue]], fails=self._options.fails_on_loss)
        ranges = [OffsetRange(queue, starts[queue], last) for queue, last in after.items() if queue in starts]
        return planned(self._options, ranges, self.cluster.addresses)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read(self._options, self._columns, partition)

    def commit(self, end: dict[str, Any]) -> None:
        self._store(StreamOffset.of_json(end))

    def stop(self) -> None:
        if self._cluster is not None:
            self._cluster.close()

    def _store(self, progress: StreamOffset) -> None:
        """Commit the offsets of processed batches for the group, if option commitGroupOffsets is true."""
        if self._group is not None:
            silent = frozenset() if self._survey is None else self._survey.silent
            self._group.commit(self.cluster, progress.queues, silent)
