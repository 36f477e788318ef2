"""What the broker counts by topic and group (RocketMQ: BrokerStatsManager, BrokerStats).

A send is not looked at by itself: how many messages a queue got, its offsets tell, and their bytes are added up a round
at a time; nor is a pull, of which three numbers are added up. All are brought to the counters of topics and groups when
these are sampled, or asked for.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from wheelmq.broker.put_times import PutTimes
from wheelmq.observe.rates import Rate
from wheelmq.observe.stats import SAMPLE_MS, Counted, Stats

if TYPE_CHECKING:
    from wheelmq.broker.broker import Broker

TOPIC_PUT_NUMS: Final = "TOPIC_PUT_NUMS"
TOPIC_PUT_SIZE: Final = "TOPIC_PUT_SIZE"
GROUP_GET_NUMS: Final = "GROUP_GET_NUMS"
GROUP_GET_SIZE: Final = "GROUP_GET_SIZE"
SNDBCK_PUT_NUMS: Final = "SNDBCK_PUT_NUMS"
BROKER_PUT_NUMS: Final = "BROKER_PUT_NUMS"
BROKER_GET_NUMS: Final = "BROKER_GET_NUMS"
USERS_PUT_NUMS: Final = "BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC"
USERS_GET_NUMS: Final = "BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC"
"""These are the names that VIEW_BROKER_STATS_DATA knows. Keys are a topic, `topic@group`, or the cluster's name."""

Integers = npt.NDArray[np.int64]


class BrokerStats:
    """The counters of one broker, since its start."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._stats = Stats(broker.now_monotonic_ms())
        self._cluster = broker.settings.cluster
        self._counted = broker.store.queues.next_offset.copy()
        self._bytes: Integers = np.zeros_like(self._counted)
        self._bytes_counted: Integers = np.zeros_like(self._counted)
        self._gets: dict[tuple[str, str], list[int]] = {}
        """What groups got of topics, and was not collected yet: messages, bytes, pulls."""
        self._users_puts = self._users_gets = 0
        """Of topics of users: beside the counters, of which those that rest for a day begin anew."""
        self.put_bytes = 0
        self.failed_puts = 0
        self.put_times = PutTimes()
        self.found = 0
        """Pulls that got messages."""
        self.missed = 0
        """Pulls that got none, held ones each time that they were looked at."""
        self.found_rate = Rate(lambda: self.found)
        self.missed_rate = Rate(lambda: self.missed)
        self.total_rate = Rate(lambda: self.found + self.missed)
        self.put_mornings = self.get_mornings = (0, 0)
        """What was counted by the midnight before last, and by the last one (RocketMQ: BrokerStats)."""
        self._day = self._today()
        broker.periodic_tasks.every(SAMPLE_MS, self.sample)
        broker.periodic_tasks.every(1000, self._sample_rates)

    # What is counted -----------------------------------------------------------------------------------------------

    def note_puts(self, grown: dict[int, int]) -> None:
        """Records were given their places in queues: so many bytes by the row of a queue."""
        if len(self._bytes) < len(self._broker.store.queues.next_offset):
            self._make_room()
        for queue_row, size in grown.items():
            self._bytes[queue_row] += size
        self.put_bytes += sum(grown.values())

    def note_pull(self, group: str, topic: str, count: int, size: int) -> None:
        """A consumer of `group` got so many messages, and so many bytes; or none."""
        if not count:
            self.missed += 1
            return
        self.found += 1
        got = self._gets.get((topic, group))
        if got is None:
            got = self._gets[topic, group] = [0, 0, 0]
        got[0] += count
        got[1] += size
        got[2] += 1

    def note_sent_back(self, group: str, topic: str) -> None:
        """A consumer of `group` gave back a message of `topic`."""
        self._stats.add(SNDBCK_PUT_NUMS, f"{topic}@{group}", 1)

    def forget_topic(self, topic: str) -> None:
        """The topic was deleted."""
        self._collect()
        of_topic = f"{topic}@"
        self._stats.drop(
            lambda name, key: not name.startswith("BROKER_") and (key == topic or key.startswith(of_topic))
        )

    def forget_group(self, group: str) -> None:
        """The group was deleted."""
        self._collect()
        of_group = f"@{group}"
        self._stats.drop(lambda name, key: key.endswith(of_group))

    # What is told --------------------------------------------------------------------------------------------------

    def figures(self, name: str, key: str) -> Counted | None:
        """Those of a counter over its windows; None when there is no such."""
        self._collect_gets()
        return self._stats.figures(name, key)

    def put_tps(self, topic: str) -> float:
        """Messages a second that a topic got in the last minute."""
        return self._stats.per_second(TOPIC_PUT_NUMS, topic)

    def get_tps(self, group: str, topic: str) -> float:
        """Messages a second that a group got of a topic in the last minute."""
        return self._stats.per_second(GROUP_GET_NUMS, f"{topic}@{group}")

    def rates(self, name: str) -> dict[str, float]:
        """Messages a second in the last minute, by the keys of all counters of a name."""
        return self._stats.rates(name)

    def put_total(self) -> int:
        """Messages that topics of users got since the start."""
        self._collect()
        return self._users_puts

    def get_total(self) -> int:
        """Messages that consumers got of topics of users since the start."""
        self._collect()
        return self._users_gets

    def sample(self) -> None:
        """Take the samples that are due; called every `SAMPLE_MS`."""
        self._collect()
        self._stats.sample(self._broker.now_monotonic_ms())
        if self._today() != self._day:
            self._day = self._today()
            self.put_mornings = self.put_mornings[1], self.put_total()
            self.get_mornings = self.get_mornings[1], self.get_total()

    def _collect(self) -> None:
        """Bring what queues and groups got since the last time to the counters."""
        self._collect_puts()
        self._collect_gets()

    def _collect_gets(self) -> None:
        gets, self._gets = self._gets, {}
        for (topic, group), (count, size, pulls) in gets.items():
            key = f"{topic}@{group}"
            self._stats.add(GROUP_GET_NUMS, key, count, pulls)
            self._stats.add(GROUP_GET_SIZE, key, size, pulls)
            self._stats.add(BROKER_GET_NUMS, self._cluster, count, pulls)
            if not self._broker.topics.is_system(topic):
                self._users_gets += count
                self._stats.add(USERS_GET_NUMS, self._cluster, count, pulls)

    def _collect_puts(self) -> None:
        queues = self._broker.store.queues
        self._make_room()
        ends = queues.next_offset
        counts = ends - self._counted
        sizes = self._bytes - self._bytes_counted
        for topic, count in queues.by_topic(counts).items():
            self._stats.add(TOPIC_PUT_NUMS, topic, count, count)
            self._stats.add(BROKER_PUT_NUMS, self._cluster, count, count)
            if not self._broker.topics.is_system(topic):
                self._users_puts += count
                self._stats.add(USERS_PUT_NUMS, self._cluster, count, count)
        for topic, size in queues.by_topic(sizes).items():
            self._stats.add(TOPIC_PUT_SIZE, topic, size)
        self._counted[:] = ends
        self._bytes_counted[:] = self._bytes

    def _make_room(self) -> None:
        missing = len(self._broker.store.queues.next_offset) - len(self._bytes)
        if missing > 0:
            more = np.zeros(missing, np.int64)
            self._counted, self._bytes, self._bytes_counted = (
                np.concatenate((one, more)) for one in (self._counted, self._bytes, self._bytes_counted)
            )

    def _sample_rates(self) -> None:
        for rate in (self.found_rate, self.missed_rate, self.total_rate):
            rate.sample(self._broker.clock.monotonic())

    def _today(self) -> tuple[int, int]:
        now = time.localtime(self._broker.clock.now_ms() // 1000)
        return now.tm_year, now.tm_yday
