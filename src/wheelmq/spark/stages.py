"""Stages of the pipeline: functions of a DataFrame that deliver timers later than their due times.

    run(spark, namesrv=["10.0.0.1:9876"], stage=InOrder(QuietHours("22:00", "07:00", "UTC"), RateLimit({"Orders": 50})))

A stage gets a row for each timer that the turn arms, and returns the rows with a new `shift_ms`: the milliseconds from
the fire time to the delivery. All other columns stay as they are.
"""

from __future__ import annotations

import datetime
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Final
from zoneinfo import ZoneInfo

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from wheelmq.formats.disk.turn_row import SHIFT_MAX_MS
from wheelmq.formats.java import java_hash

Stage = Callable[[DataFrame], DataFrame]
"""Returns the given rows with new values of `shift_ms`. It runs in the driver, once for each turn of a broker."""

PAST_S: Final = 60
"""A limit forgets the messages that it placed in seconds longer ago than this."""
_DAYS: Final = range(-1, 4)
"""Days around today for which quiet hours are computed: the longest shift ends within them."""
_PLACES: Final = pa.schema(
    [
        ("topic_hash", pa.int32()),
        ("second", pa.int64()),
        ("first_rank", pa.int64()),
        ("end_rank", pa.int64()),
        ("to_second", pa.int64()),
        ("first_place", pa.int64()),
        ("per_second", pa.int64()),
    ]
)


def stage_of_broker(stage: Stage, broker: str) -> Stage:
    """Return the stage for one broker. A stage with memory has a method `for_broker`, which returns a new stage."""
    for_broker: Callable[[str], Stage] | None = getattr(stage, "for_broker", None)
    return stage if for_broker is None else for_broker(broker)


def planned_ms() -> Column:
    """Return the time at which the broker delivers a row, with the shift so far."""
    return F.col("fire_ms") + F.col("shift_ms")


def deliver_at(rows: DataFrame, time_ms: Column) -> DataFrame:
    """Return `rows` shifted to `time_ms`: not before their fire times, and at most SHIFT_MAX_MS later."""
    shift_ms = F.least(F.greatest(time_ms - F.col("fire_ms"), F.lit(0)), F.lit(SHIFT_MAX_MS))
    return rows.withColumn("shift_ms", shift_ms.cast("long"))


def of_topic(topic: str) -> Column:
    """Return the condition that a row belongs to `topic`. Few other topics have the same hash."""
    return F.col("topic_hash") == F.lit(java_hash(topic))


class InOrder:
    """Applies several stages, one after the other."""

    def __init__(self, *stages: Stage) -> None:
        self._stages = stages

    def __call__(self, rows: DataFrame) -> DataFrame:
        for stage in self._stages:
            rows = stage(rows)
        return rows

    def for_broker(self, broker: str) -> InOrder:
        return InOrder(*(stage_of_broker(stage, broker) for stage in self._stages))


class Jitter:
    """Delivers each timer up to `max_ms` later, by a hash of its origin. A repeated turn makes the same choice."""

    def __init__(self, max_ms: int) -> None:
        if not 0 <= max_ms <= SHIFT_MAX_MS:
            raise ValueError(f"a jitter of {max_ms} ms is not from 0 to {SHIFT_MAX_MS} ms")
        self._max_ms = max_ms

    def __call__(self, rows: DataFrame) -> DataFrame:
        return deliver_at(rows, planned_ms() + F.pmod(F.xxhash64("origin"), F.lit(self._max_ms + 1)))


class QuietHours:
    """Delivers timers of the daily time from `start` to `end` (HH:MM) at its end. `zone` is a name such as UTC."""

    def __init__(
        self, start: str, end: str, zone: str, *, topics: Sequence[str] = (), now: Callable[[], float] = time.time
    ) -> None:
        """Without `topics`, the hours are those of all topics."""
        self._start, self._end = datetime.time.fromisoformat(start), datetime.time.fromisoformat(end)
        if self._start == self._end:
            raise ValueError(f"quiet hours from {start} to {end} are empty: give two different times")
        self._zone = ZoneInfo(zone)
        self._topics = topics
        self._now = now

    def windows(self) -> list[tuple[int, int]]:
        """Return start and end of the quiet hours around today, as times in milliseconds."""
        today = datetime.datetime.fromtimestamp(self._now(), self._zone).date()
        found = []
        for days in _DAYS:
            day = today + datetime.timedelta(days=days)
            end_day = day if self._end > self._start else day + datetime.timedelta(days=1)
            found.append((self._ms(day, self._start), self._ms(end_day, self._end)))
        return found

    def _ms(self, day: datetime.date, at: datetime.time) -> int:
        return int(datetime.datetime.combine(day, at, self._zone).timestamp() * 1000)

    def __call__(self, rows: DataFrame) -> DataFrame:
        planned, goal = planned_ms(), planned_ms()
        for start_ms, end_ms in self.windows():
            goal = F.when((planned >= start_ms) & (planned < end_ms), F.lit(end_ms)).otherwise(goal)
        if self._topics:
            is_mine = F.col("topic_hash").isin([java_hash(topic) for topic in self._topics])
            goal = F.when(is_mine, goal).otherwise(planned)
        return deliver_at(rows, goal)


class SecondsOfTopic:
    """The messages that a limit placed in each second of one topic."""

    def __init__(self, per_second: int) -> None:
        self.per_second = per_second
        self._placed: defaultdict[int, int] = defaultdict(int)

    def place(self, second: int, count: int) -> list[tuple[int, int, int]]:
        """Place `count` messages due in `second`. Returns count, second and first place of each share, in order.

        A share beyond SHIFT_MAX_MS goes into the last second, also if it is full.
        """
        shares, last = [], second + SHIFT_MAX_MS // 1000
        at = second
        while count:
            used = self._placed[at]
            share = count if at == last else min(count, self.per_second - used)
            if share > 0:
                shares.append((share, at, used))
                self._placed[at] = used + share
                count -= share
            at += 1
        return shares

    def forget_before(self, second: int) -> None:
        for one in [one for one in self._placed if one < second]:
            del self._placed[one]


class RateLimit:
    """Delivers at most `per_second[topic]` timers of a topic in each second. The others move to later seconds.

    It counts the messages of each second by a Spark job before the turn. Each broker has its own limit, whose places
    are in memory.
    """

    def __init__(self, per_second: Mapping[str, int], *, now: Callable[[], float] = time.time) -> None:
        for topic, most in per_second.items():
            if most < 1:
                raise ValueError(f"the limit of topic {topic!r} is {most}: it must be 1 or more per second")
        self._per_second = per_second
        self._topics = {java_hash(topic): SecondsOfTopic(most) for topic, most in per_second.items()}
        self._now = now

    def for_broker(self, broker: str) -> RateLimit:
        return RateLimit(self._per_second, now=self._now)

    def __call__(self, rows: DataFrame) -> DataFrame:
        timed = rows.withColumn("second", F.floor(planned_ms() / 1000).cast("long"))
        is_limited = F.col("topic_hash").isin(list(self._topics))
        counts = timed.where(is_limited).groupBy("topic_hash", "second").count().orderBy("second").collect()
        places = self._place([(row.topic_hash, row.second, row["count"]) for row in counts])
        if not places.num_rows:
            return rows
        of_second = Window.partitionBy("topic_hash", "second").orderBy(planned_ms(), "origin")
        ranked = timed.withColumn("rank", F.row_number().over(of_second).cast("long") - 1)
        shares = F.broadcast(rows.sparkSession.createDataFrame(places).alias("share"))
        is_share = (ranked["topic_hash"] == F.col("share.topic_hash")) & (ranked["second"] == F.col("share.second"))
        is_share &= (ranked["rank"] >= F.col("share.first_rank")) & (ranked["rank"] < F.col("share.end_rank"))
        joined = ranked.join(shares, is_share, "left")
        place = F.col("share.first_place") + ranked["rank"] - F.col("share.first_rank")
        moved_ms = F.col("share.to_second") * 1000 + F.floor(place * 1000 / F.col("share.per_second"))
        goal = F.when(F.col("share.to_second") > ranked["second"], moved_ms).otherwise(planned_ms())
        aimed = joined.select(*(ranked[name] for name in rows.columns), goal.alias("goal"))
        return deliver_at(aimed, F.col("goal")).drop("goal")

    def _place(self, counts: Sequence[tuple[int, int, int]]) -> pa.Table:
        """Place the messages of each topic and second. Returns the shares of the seconds, by rank."""
        for topic in self._topics.values():
            topic.forget_before(int(self._now()) - PAST_S)
        found = []
        for topic_hash, second, count in counts:
            topic, rank = self._topics[topic_hash], 0
            for share, to_second, first_place in topic.place(second, count):
                share_row = (topic_hash, second, rank, rank + share, to_second, first_place, topic.per_second)
                found.append(dict(zip(_PLACES.names, share_row, strict=True)))
                rank += share
        return pa.Table.from_pylist(found, schema=_PLACES)
