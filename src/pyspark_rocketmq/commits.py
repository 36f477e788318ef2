"""The work of the driver with guarantee exactly-once: commit the uploads of the winning task attempts.

Each broker decides a batch once, durably, and then appends its rows. So all requests here can be repeated.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from pyspark_rocketmq.brokers import BUSY, accepted, asked_once, refresh_addresses, silent
from pyspark_rocketmq.cluster import Cluster, rejected
from pyspark_rocketmq.errors import BrokerError, OptionError
from pyspark_rocketmq.layouts import merged, save_layout
from pyspark_rocketmq.options import ConnectionOptions
from pyspark_rocketmq.uploads import PartitionUpload
from wheelmq.formats.disk.batch import BatchId, BatchPart
from wheelmq.formats.wire import bodies, headers
from wheelmq.formats.wire.bodies import BatchParts
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.headers import BatchCommitHeader
from wheelmq.system.clock import Clock, SystemClock

log = logging.getLogger(__name__)

PATIENCE_S: Final = 30.0
"""How long a commit waits for a broker that is away, or that appends no row."""
POLL_S: Final = 0.2
"""Wait between two rounds without progress."""


def commit_batch(connection: ConnectionOptions, uploads: Sequence[PartitionUpload]) -> int:
    """Commit a batch at all its brokers, and wait until they have appended its rows.

    Returns the number of rows. Raises BrokerError if a broker does not complete the batch. Then the batch can be
    repeated: a broker that has committed it ignores the repetition.
    """
    parts: dict[str, list[BatchPart]] = {}
    for upload in uploads:
        for broker, own in upload.parts.items():
            parts.setdefault(broker, []).extend(own)
    if not parts:
        return 0
    batch = uploads[0].batch
    assert all(upload.batch == batch for upload in uploads)
    topics = merged(upload.topics for upload in uploads)
    with Cluster(connection) as cluster:
        refresh_addresses(cluster)
        if batch.is_repeatable:
            _check_decided(batch.id, save_layout(cluster, batch.id, topics), parts)
        return BatchCommit(cluster, batch.id, parts, connection.timeout_s, SystemClock()).run()


def _check_decided(batch: BatchId, decided: Mapping[str, int], parts: Mapping[str, list[BatchPart]]) -> None:
    """Check the numbers of rows at brokers that have decided the batch earlier. Raises BrokerError.

    Brokers with the rows of the earlier run and brokers with other rows of this run would be a mixture.
    """
    rows = {broker: sum(part.rows for part in own) for broker, own in parts.items()}
    differing = [broker for broker in decided if decided[broker] != rows.get(broker, 0)]
    if not differing:
        return
    text = ", ".join(f"{broker} has {decided[broker]} rows and gets {rows.get(broker, 0)}" for broker in differing)
    if rows.keys() <= decided.keys():
        log.warning("batch %s has been committed before with other rows, which count: %s", batch, text)
        return
    raise BrokerError(
        f"batch {batch} was committed before by some of its brokers, and the job gave other rows this time: {text}. "
        "Make the query deterministic, and start it with a new checkpoint"
    )


class _Pending(msgspec.Struct):
    """The commit at one broker."""

    parts: list[BatchPart]
    since_s: float
    """Monotonic time of the last progress."""
    rows: int = 0
    """Rows in the log of the broker."""


class BatchCommit:
    """Commits a batch at its brokers, in rounds until all of them have its rows."""

    def __init__(
        self,
        cluster: Cluster,
        batch: BatchId,
        parts: Mapping[str, list[BatchPart]],
        timeout_s: float,
        clock: Clock,
    ) -> None:
        self._cluster, self._batch, self._clock = cluster, batch, clock
        self._wait_ms = round(500 * timeout_s)
        self._open = {broker: _Pending(own, clock.monotonic()) for broker, own in sorted(parts.items())}
        self._failed: list[BrokerError | OptionError] = []
        self._rows = 0

    def run(self) -> int:
        """Return the number of rows once all brokers have them. Raises OptionError, BrokerError."""
        wait_ms = 0  # each broker begins in the first round, and the others append while the sink waits for one
        while self._open:
            moved = [self._ask(broker, one, wait_ms) for broker, one in list(self._open.items())]
            if self._open and wait_ms and not any(moved):
                threading.Event().wait(POLL_S)
            wait_ms = self._wait_ms
        if self._failed:
            raise self._failed[0]
        return self._rows

    def _ask(self, broker: str, one: _Pending, wait_ms: int) -> bool:
        """Send the commit to a broker, and note the outcome. Returns whether there was any progress."""
        header = BatchCommitHeader(job=self._batch.job, batch=self._batch.number, timeout_ms=wait_ms)
        body = bodies.write(BatchParts(parts=one.parts))
        command = Command(code=RequestCode.WMQ_BATCH_COMMIT, ext=headers.write(header), body=body)
        answer = asked_once(self._cluster, broker, command)
        if answer is None:
            refresh_addresses(self._cluster)
        if answer is None or answer.code in BUSY:
            return self._has_moved(broker, one, answer, wait_ms)
        del self._open[broker]
        try:
            self._rows += int(accepted(answer, broker).ext["rows"])
        except (BrokerError, OptionError) as error:
            remedy = ""
            if answer.code == ResponseCode.INVALID_PARAMETER:
                remedy = ". Start the query again: it uploads the rows of the batch again"
            self._failed.append(type(error)(f"batch {self._batch} is not committed: {error}{remedy}"))
        return True

    def _has_moved(self, broker: str, one: _Pending, answer: Command | None, wait_ms: int) -> bool:
        """Note the progress of a broker. Returns whether it has appended rows.

        Without new rows for a while, the commit at this broker fails.
        """
        rows = 0 if answer is None else int(answer.ext.get("rows", "0"))
        now_s = self._clock.monotonic()
        if rows > one.rows:
            one.rows, one.since_s = rows, now_s
            return True
        if wait_ms and now_s - one.since_s >= PATIENCE_S:
            del self._open[broker]
            problem = silent(broker) if answer is None else rejected(answer, broker)
            self._failed.append(
                BrokerError(
                    f"batch {self._batch} is not complete: {problem}. Then start the query again: the repeated batch "
                    "completes it"
                )
            )
        return False
