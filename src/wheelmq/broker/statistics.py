"""Counters by topic and group (RocketMQ: BrokerStatsManager, BrokerStats).

Sends are not counted one by one. Queue offsets, and bytes added once per round, give the sums at each sample.
"""

from __future__ import annotations

import time
from typing import Final

import numpy as np
import numpy.typing as npt

from wheelmq.broker.put_times import PutTimes
from wheelmq.broker.state.topics import Topics
from wheelmq.observe.bound_counts import BoundCounts
from wheelmq.observe.rates import Rate
from wheelmq.observe.stats import Counted, Stats
from wheelmq.store.store import Store

RATES_SAMPLE_MS: Final = 1000

TOPIC_PUT_NUMS: Final = "TOPIC_PUT_NUMS"
TOPIC_PUT_SIZE: Final = "TOPIC_PUT_SIZE"
GROUP_GET_NUMS: Final = "GROUP_GET_NUMS"
GROUP_GET_SIZE: Final = "GROUP_GET_SIZE"
SNDBCK_PUT_NUMS: Final = "SNDBCK_PUT_NUMS"
DLQ_PUT_NUMS: Final = "DLQ_PUT_NUMS"
BROKER_PUT_NUMS: Final = "BROKER_PUT_NUMS"
BROKER_GET_NUMS: Final = "BROKER_GET_NUMS"
USERS_PUT_NUMS: Final = "BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC"
USERS_GET_NUMS: Final = "BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC"
"""The names that VIEW_BROKER_STATS_DATA knows. A key is a topic, `topic@group`, or the cluster's name."""

Integers = npt.NDArray[np.int64]

SIZES: Final = (1 << 10, 4 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20)
"""Bounds of the distribution of record sizes in bytes (RocketMQ: messageSizeBuckets)."""


class BrokerStats:
    def __init__(self, store: Store, topics: Topics, cluster: str) -> None:
        self._queues = store.queues
        self._clock = store.clock
        self._topics = topics
        self._cluster = cluster
        self._stats = Stats(store.clock.monotonic_ms())
        self._counted = store.queues.next_offset.copy()
        self._bytes: Integers = np.zeros_like(self._counted)
        self._bytes_counted: Integers = np.zeros_like(self._counted)
        self._gets: dict[tuple[str, str], list[int]] = {}
        """Messages, bytes and pulls of groups by topic, not collected yet."""
        self._users_puts = self._users_gets = 0
        """Totals of users' topics. They are separate because a counter without changes for a day starts again."""
        self.put_bytes = 0
        self.sizes = BoundCounts(SIZES)
        """Numbers of records by size."""
        self.failed_puts = 0
        self.put_times = PutTimes()
        self.found = 0
        """Pulls that got messages."""
        self.missed = 0
        """Pulls that got none. A held pull counts at each check."""
        self.transferred = 0
        """Messages that consumers received."""
        self.put_rate = Rate(lambda: store.dispatched_count)
        self.transferred_rate = Rate(lambda: self.transferred)
        self.found_rate = Rate(lambda: self.found)
        self.missed_rate = Rate(lambda: self.missed)
        self.total_rate = Rate(lambda: self.found + self.missed)
        self.put_mornings = self.get_mornings = (0, 0)
        """Totals at the midnight before last, and at the last one (RocketMQ: BrokerStats)."""
        self._day = self._today()

    # Counting ------------------------------------------------------------------------------------------------------

    def note_puts(self, grown: dict[int, int], sizes: Integers) -> None:
        """Add the bytes of new records by the row of their queue, and count the records by their sizes."""
        if len(self._bytes) < len(self._queues.next_offset):
            self._make_room()
        for queue_row, size in grown.items():
            self._bytes[queue_row] += size
        self.put_bytes += sum(grown.values())
        self.sizes.add(sizes)

    def note_pull(self, group: str, topic: str, count: int, size: int) -> None:
        """Count the messages and bytes that a consumer of `group` got with a pull, or a pull without messages."""
        if not count:
            self.missed += 1
            return
        self.found += 1
        self.transferred += count
        got = self._gets.get((topic, group))
        if got is None:
            got = self._gets[topic, group] = [0, 0, 0]
        got[0] += count
        got[1] += size
        got[2] += 1

    def note_failed_put(self) -> None:
        self.failed_puts += 1

    def note_sent_back(self, group: str, topic: str) -> None:
        self._stats.add(SNDBCK_PUT_NUMS, f"{topic}@{group}", 1)

    def note_dead_letter(self, group: str, topic: str) -> None:
        self._stats.add(DLQ_PUT_NUMS, f"{topic}@{group}", 1)

    def forget_topic(self, topic: str) -> None:
        self._collect()
        of_topic = f"{topic}@"
        self._stats.drop(
            lambda name, key: not name.startswith("BROKER_") and (key == topic or key.startswith(of_topic))
        )

    def forget_group(self, group: str) -> None:
        self._collect()
        of_group = f"@{group}"
        self._stats.drop(lambda name, key: key.endswith(of_group))

    # Reading -------------------------------------------------------------------------------------------------------

    def figures(self, name: str, key: str) -> Counted | None:
        self._collect_gets()
        return self._stats.figures(name, key)

    def put_tps(self, topic: str) -> float:
        """Return the messages per second that a topic got in the last minute."""
        return self._stats.per_second(TOPIC_PUT_NUMS, topic)

    def get_tps(self, group: str, topic: str) -> float:
        """Return the messages per second that a group got of a topic in the last minute."""
        return self._stats.per_second(GROUP_GET_NUMS, f"{topic}@{group}")

    def rates(self, name: str) -> dict[str, float]:
        """Return the messages per second in the last minute, by key, for all counters of a name."""
        return self._stats.rates(name)

    def counters(self) -> list[tuple[str, str]]:
        """Return name and key of each counter. Their totals are up to date until the next round."""
        self._collect()
        return self._stats.keys()

    def total(self, name: str, key: str) -> int:
        """Return the present value of a counter; 0 if there is none."""
        return self._stats.total(name, key)

    def put_total(self) -> int:
        self._collect()
        return self._users_puts

    def get_total(self) -> int:
        """Return the number of messages that consumers got of users' topics since the start."""
        self._collect()
        return self._users_gets

    def sample(self) -> None:
        """Take the due samples. Call it every `SAMPLE_MS`."""
        self._collect()
        self._stats.sample(self._clock.monotonic_ms())
        if self._today() != self._day:
            self._day = self._today()
            self.put_mornings = self.put_mornings[1], self.put_total()
            self.get_mornings = self.get_mornings[1], self.get_total()

    def sample_rates(self) -> None:
        """Take a sample of each rate. Call it every `RATES_SAMPLE_MS`."""
        now_s = self._clock.monotonic()
        for rate in (self.put_rate, self.transferred_rate, self.found_rate, self.missed_rate, self.total_rate):
            rate.sample(now_s)

    def _collect(self) -> None:
        self._collect_puts()
        self._collect_gets()

    def _collect_gets(self) -> None:
        gets, self._gets = self._gets, {}
        for (topic, group), (count, size, pulls) in gets.items():
            key = f"{topic}@{group}"
            self._stats.add(GROUP_GET_NUMS, key, count, pulls)
            self._stats.add(GROUP_GET_SIZE, key, size, pulls)
            self._stats.add(BROKER_GET_NUMS, self._cluster, count, pulls)
            if not self._topics.is_system(topic):
                self._users_gets += count
                self._stats.add(USERS_GET_NUMS, self._cluster, count, pulls)

    def _collect_puts(self) -> None:
        queues = self._queues
        self._make_room()
        ends = queues.next_offset
        counts = ends - self._counted
        sizes = self._bytes - self._bytes_counted
        for topic, count in queues.by_topic(counts).items():
            self._stats.add(TOPIC_PUT_NUMS, topic, count, count)
            self._stats.add(BROKER_PUT_NUMS, self._cluster, count, count)
            if not self._topics.is_system(topic):
                self._users_puts += count
                self._stats.add(USERS_PUT_NUMS, self._cluster, count, count)
        for topic, size in queues.by_topic(sizes).items():
            self._stats.add(TOPIC_PUT_SIZE, topic, size)
        self._counted[:] = ends
        self._bytes_counted[:] = self._bytes

    def _make_room(self) -> None:
        missing = len(self._queues.next_offset) - len(self._bytes)
        if missing > 0:
            more = np.zeros(missing, np.int64)
            self._counted, self._bytes, self._bytes_counted = (
                np.concatenate((one, more)) for one in (self._counted, self._bytes, self._bytes_counted)
            )

    def _today(self) -> tuple[int, int]:
        now = time.localtime(self._clock.now_ms() // 1000)
        return now.tm_year, now.tm_yday
