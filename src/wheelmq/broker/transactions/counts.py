"""The number of pending half messages by topic, and of the commits, rollbacks and discards since the start.

config/transactionMetrics (RocketMQ: TransactionMetrics) informs Apache. Each start counts the half queue again.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from wheelmq.formats.wire import bodies
from wheelmq.formats.wire.bodies import BodyError, DataVersion, TimingCount, TransactionMetrics
from wheelmq.observe.histogram import Histogram
from wheelmq.store import config_file
from wheelmq.store.store import Store

log = logging.getLogger(__name__)


class TransactionCounts:
    """Counts by the real topic of a message."""

    def __init__(self, store: Store) -> None:
        self._disk = store.disk
        self._clock = store.clock
        self._path: Path = store.paths.config_file("transactionMetrics")
        self._table = self._load()
        self._is_saved = True
        self.committed: Counter[str] = Counter()
        self.rolled_back: Counter[str] = Counter()
        self.given_up: Counter[str] = Counter()
        """Committed, rolled back and discarded messages since the start."""
        self.seconds: dict[str, Histogram] = {}
        """Seconds from the birth of a message to its commit."""

    def _load(self) -> TransactionMetrics:
        try:
            found = config_file.load(self._disk, self._path, TransactionMetrics) or TransactionMetrics()
        except BodyError as error:
            log.warning("transactions: the saved counts are unreadable, and the broker counts again: %s", error)
            found = TransactionMetrics()
        return TransactionMetrics(data_version=found.data_version)

    def add(self, topic: str, change: int) -> None:
        now_ms = self._clock.now_ms()
        counts, version = self._table.transaction_count, self._table.data_version
        count = counts[topic].count if topic in counts else 0
        counts[topic] = TimingCount(count=count + change, time_stamp=now_ms)
        self._table.data_version = DataVersion(
            state_version=version.state_version, timestamp=now_ms, counter=version.counter + 1
        )
        self._is_saved = False

    def commit(self, topic: str, born_ms: int) -> None:
        self.add(topic, -1)
        self.committed[topic] += 1
        seconds = self.seconds.setdefault(topic, Histogram(least=1.0))
        seconds.add(max(0, self._clock.now_ms() - born_ms) // 1000)

    def roll_back(self, topic: str) -> None:
        self.add(topic, -1)
        self.rolled_back[topic] += 1

    def note_discarded(self, topic: str) -> None:
        self.add(topic, -1)
        self.given_up[topic] += 1

    def waiting(self) -> dict[str, int]:
        """Return the number of pending messages by topic. A topic without any keeps a zero until the next start."""
        return {topic: one.count for topic, one in self._table.transaction_count.items()}

    def save_job(self) -> Callable[[], None] | None:
        """Return the job that saves the table, on a worker too; None without changes. A failed save is tried again."""
        if self._is_saved:
            return None
        raw = bodies.write(self._table)
        self._is_saved = True

        def job() -> None:
            try:
                self._disk.replace(self._path, raw, keep_previous=True)
            except BaseException:
                self._is_saved = False
                raise

        return job
