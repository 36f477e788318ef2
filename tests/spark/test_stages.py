"""Stages between decision and upload: the shipped ones, and hostile ones that the broker or the driver rejects."""

from __future__ import annotations

import datetime
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.live import Live, live
from tests.spark.test_pipeline import running, wait_until
from wheelmq.client import ReceivedMessage, SyncProducer, SyncPullConsumer
from wheelmq.formats.disk.timer import MAGIC_DEFAULT
from wheelmq.formats.disk.turn_row import SHIFT_MAX_MS, STAGED_ROW, WALK
from wheelmq.formats.java import java_hash
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.bodies import QueueName
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.sync_connection import SyncConnection
from wheelmq.spark import broker_turns, staged_turn, turn_query
from wheelmq.spark.columns import ARROW_SCHEMA, to_batch
from wheelmq.spark.staged_turn import StagedTurn, StageTrial
from wheelmq.spark.stages import InOrder, Jitter, QuietHours, RateLimit, Stage, of_topic
from wheelmq.spark.turn import Turn, decide, uploaded

NOW_MS = 1_800_000_000_000
DELAY_MS = 6000
HANG_S = 60.0
PLAN_DEADLINE_S = 10.0

pytestmark = pytest.mark.spark


def turn_rows(spark: SparkSession, fires_ms: list[int], topic: str = "Orders", first: int = 0) -> DataFrame:
    """Return the turn rows of timers in scanned slots."""
    rows = np.zeros(len(fires_ms), STAGED_ROW)
    rows["kind"], rows["magic"], rows["topic_hash"] = WALK, MAGIC_DEFAULT, java_hash(topic)
    rows["due_ms"] = fires_ms
    rows["out_ms"] = rows["due_ms"] - 1
    rows["origin"] = first + np.arange(len(fires_ms))
    return decide(spark.createDataFrame(pa.Table.from_batches([to_batch(rows)], ARROW_SCHEMA)), 172_800_000, 1000)


def shifts(rows: DataFrame) -> dict[int, int]:
    """Return the shift of each origin. Each origin has one row."""
    found = rows.select("origin", "shift_ms").collect()
    assert len({row.origin for row in found}) == len(found)
    return {row.origin: row.shift_ms for row in found}


def test_a_rate_limit_moves_the_rest_to_later_seconds(spark: SparkSession) -> None:
    limit = RateLimit({"Orders": 10}, now=lambda: NOW_MS / 1000)
    burst = turn_rows(spark, [NOW_MS + 500 + i for i in range(25)])
    others = turn_rows(spark, [NOW_MS + 500] * 30, "Others", first=1000)
    rows = burst.unionByName(others)
    limited = limit(rows)
    assert sorted(limited.columns) == sorted(rows.columns)
    chosen = shifts(limited)
    assert all(chosen[i] == 0 for i in (*range(10), *range(1000, 1030))), "the first ones, and other topics"
    moved = [NOW_MS + 500 + i + chosen[i] for i in range(10, 25)]
    assert moved == [NOW_MS + 1000 + 100 * i for i in range(15)], "ten in each second, in their order"
    later = limit(turn_rows(spark, [NOW_MS + 2600, NOW_MS + 2700, NOW_MS + 800]))
    assert shifts(later) == {0: 0, 1: 0, 2: 1700}, "five places are left in the third second, none in the others"
    assert shifts(limit.for_broker("another")(turn_rows(spark, [NOW_MS + 800]))) == {0: 0}


def test_a_limit_keeps_the_bound(spark: SparkSession) -> None:
    limit = RateLimit({"Orders": 1}, now=lambda: NOW_MS / 1000)
    topic = limit._topics[java_hash("Orders")]
    second = NOW_MS // 1000
    topic.place(second, SHIFT_MAX_MS // 1000)
    chosen = shifts(limit(turn_rows(spark, [NOW_MS + 1, NOW_MS + 2])))
    assert chosen == {0: SHIFT_MAX_MS - 1, 1: SHIFT_MAX_MS}


def test_jitter_is_within_its_bound_and_repeats(spark: SparkSession) -> None:
    rows = turn_rows(spark, [NOW_MS] * 200)
    chosen = shifts(Jitter(500)(rows))
    assert min(chosen.values()) >= 0 and 300 < max(chosen.values()) <= 500
    assert len(set(chosen.values())) > 100 and chosen == shifts(Jitter(500)(rows))


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York"])
def test_quiet_hours_end_at_their_local_time(spark: SparkSession, zone: str) -> None:
    day = datetime.datetime(2027, 1, 15, 12, tzinfo=ZoneInfo(zone))
    hours = QuietHours("22:00", "07:30", zone, topics=["Orders"], now=day.timestamp)

    def at(hour: int, minute: int, days: int = 0) -> int:
        return int((day.replace(hour=hour, minute=minute) + datetime.timedelta(days=days)).timestamp() * 1000)

    fires = [at(21, 59), at(22, 0), at(3, 0, 1), at(7, 29, 1), at(7, 30, 1), at(6, 0)]
    chosen = shifts(hours(turn_rows(spark, fires)))
    minutes = [0, 9 * 60 + 30, 4 * 60 + 30, 1, 0, 90]
    assert chosen == {i: minute * 60_000 for i, minute in enumerate(minutes)}
    assert set(shifts(hours(turn_rows(spark, fires, "Others"))).values()) == {0}


def test_stages_add_up_in_their_order(spark: SparkSession) -> None:
    rows = turn_rows(spark, [NOW_MS] * 3)
    both = InOrder(Jitter(0), lambda rows: rows.withColumn("shift_ms", F.lit(7).cast("long")), Jitter(0))
    assert set(shifts(both(rows)).values()) == {7}


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: RateLimit({"T": 0}), "must be 1 or more per second"),
        (lambda: Jitter(SHIFT_MAX_MS + 1), "is not from 0"),
        (lambda: QuietHours("07:00", "07:00", "UTC"), "are empty"),
    ],
)
def test_a_stage_rejects_wrong_options(make: Callable[[], Stage], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make()


# Against a broker ----------------------------------------------------------------------------------------------------


def received(servers: Live, topic: str, count: int) -> list[ReceivedMessage]:
    """Return the messages of queue 0. Waits until there are `count`."""
    found: list[ReceivedMessage] = []
    with SyncPullConsumer(servers.namesrv, "readers") as consumer:
        consumer.assign([QueueName(topic=topic, broker_name="broker-a", queue_id=0)])
        while len(found) < count:
            found += consumer.poll(20_000)
        found += consumer.poll(200)
    return found


def check_delivered(messages: list[ReceivedMessage], count: int) -> None:
    assert Counter(message.body for message in messages) == Counter(b"%d" % i for i in range(count))
    for message in messages:
        assert message.due_ms is not None and message.stored_ms >= message.due_ms, "early"


def changed(name: str, value: str) -> Stage:
    """Return a stage that sets a column to an expression of SQL."""
    return lambda rows: rows.withColumn(name, F.expr(value))


def raises(rows: DataFrame) -> DataFrame:
    raise RuntimeError("the stage raises")


HOSTILE: dict[str, Callable[[DataFrame], Any]] = {
    "drops all rows": lambda rows: rows.limit(0),
    "doubles rows": lambda rows: rows.unionAll(rows),
    "adds a row": lambda rows: rows.unionAll(rows.limit(1).withColumn("origin", F.col("origin") + 1000)),
    "changes positions": changed("position", "position + 1"),
    "delivers early": changed("shift_ms", "-1L"),
    "delivers too late": changed("shift_ms", "1000000000000L"),
    "fires earlier": changed("fire_ms", "fire_ms - 1000"),
    "raises": raises,
    "raises in a task": changed("shift_ms", "CAST(raise_error('a task raises') AS BIGINT)"),
    "returns another column": lambda rows: rows.select("origin"),
    "returns another type": changed("shift_ms", "0.5D"),
    "returns a null": changed("shift_ms", "CAST(NULL AS BIGINT)"),
    "returns no rows object": lambda rows: None,
    "names another kind": changed("kind", "9"),
    "names another turn": changed("turn", "turn + 1"),
}


IS_WHOLE = os.environ.get("SPARK") == "whole"
OF_SPARK = ("delivers early", "raises in a task", "returns another type", "returns a null", "returns no rows object")
"""Those that `make test` tries. Property tests have the others, without Spark."""
CHOSEN = list(HOSTILE) if IS_WHOLE else OF_SPARK


class StageFailures:
    """Notes the failures of a stage, of which `run` notifies its `on_event`."""

    def __init__(self) -> None:
        self.failed: list[dict[str, Any]] = []
        self.is_off = threading.Event()
        """Set once the stage is not used any more."""

    def __call__(self, event: str, **fields: Any) -> None:
        if event == "stage failed":
            self.failed.append(fields)
            if not fields["is_used"]:
                self.is_off.set()


class Hostile:
    """Applies each of the CHOSEN stages to one turn with timers. `tried` names those that were applied."""

    def __init__(self) -> None:
        self.tried: list[str] = []

    def __call__(self, rows: DataFrame) -> Any:
        if rows.isEmpty():
            return rows.repartition(3)
        name = CHOSEN[len(self.tried)]
        self.tried.append(name)
        return HOSTILE[name](rows)


@pytest.mark.timeout(600)
def test_no_hostile_stage_loses_repeats_or_hurries_a_timer(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each hostile stage fails. After FAILURES_MAX failures in a row the stage is off, with an alarm."""
    monkeypatch.setattr(staged_turn, "FAILURES_MAX", len(CHOSEN))
    caplog.set_level(logging.WARNING, "wheelmq.spark")
    hostile, failures, count = Hostile(), StageFailures(), 0

    def on_event(event: str, **fields: Any) -> None:
        assert event != "query ended", fields
        failures(event, **fields)

    with live(tmp_path) as servers, SyncProducer(servers.namesrv) as producer:
        servers.create_topic("T", queues=1)
        with running(spark, servers, stage=hostile, on_event=on_event) as ran:

            def send() -> None:
                nonlocal count
                producer.send("T", b"%d" % count, delay_ms=DELAY_MS)
                count += 1

            def sends_until_off() -> bool:
                send()
                return failures.is_off.is_set()

            wait_until(sends_until_off, ran, deadline_s=300.0)
            for _ in range(20):
                send()
            messages = received(servers, "T", count)
    check_delivered(messages, count)
    failed = failures.failed
    assert hostile.tried == list(CHOSEN) and len(failed) == len(CHOSEN), (hostile.tried, failed)
    assert [one["is_used"] for one in failed] == [True] * (len(CHOSEN) - 1) + [False]
    (alarm,) = [record for record in caplog.records if record.levelno == logging.CRITICAL]
    assert "ALARM" in alarm.message and "Turns are made without it" in alarm.message


class Hanging:
    """Changes nothing in its first turn with timers. From then on its tasks hang, or the function itself."""

    def __init__(self, in_driver: bool) -> None:
        self.calls = 0
        self.in_driver = in_driver
        self.ends = threading.Event()

    def __call__(self, rows: DataFrame) -> DataFrame:
        if rows.isEmpty():
            return rows
        self.calls += 1
        if self.calls == 1:
            return rows
        if self.in_driver:
            self.ends.wait()
            return rows
        hang = F.udf(sleep_long, "bigint")
        return rows.withColumn("shift_ms", hang("shift_ms"))


def sleep_long(shift_ms: int) -> int:
    time.sleep(HANG_S)
    return shift_ms


@contextmanager
def ending(hanging: Hanging) -> Iterator[None]:
    """End the function that hangs, so that its thread ends with the test."""
    try:
        yield
    finally:
        hanging.ends.set()


@pytest.fixture
def never_stops(spark: SparkSession) -> Iterator[None]:
    """A session in which the stop of a query waits without a limit, as by default."""
    name = "spark.sql.streaming.stopTimeout"
    was = spark.conf.get(name)
    spark.conf.set(name, "0")
    yield
    spark.conf.set(name, was)


@pytest.mark.timeout(600)
@pytest.mark.skipif(not IS_WHOLE, reason="make spark runs it")
@pytest.mark.parametrize("in_driver", [False, True], ids=["its tasks", "the function"])
@pytest.mark.usefixtures("never_stops")
def test_a_stage_that_hangs_is_off_after_two_turns(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_driver: bool
) -> None:
    for limit in ("QUIET_S", "QUIET_NEW_S"):
        monkeypatch.setattr(broker_turns, limit, 5.0)
    monkeypatch.setattr(turn_query, "STOP_S", 2.0)
    hanging, failures, count = Hanging(in_driver), StageFailures(), 0

    with live(tmp_path) as servers, SyncProducer(servers.namesrv) as producer:
        servers.create_topic("T", queues=1)
        turns = servers.brokers["broker-a"].broker.parts.timer.turns
        with running(spark, servers, stage=hanging, on_event=failures) as ran, ending(hanging):

            def sends_until(condition: Callable[[], bool]) -> Callable[[], bool]:
                def send() -> bool:
                    nonlocal count
                    producer.send("T", b"%d" % count, delay_ms=DELAY_MS)
                    count += 1
                    return condition()

                return send

            wait_until(sends_until(failures.is_off.is_set), ran, deadline_s=400.0)
            before = turns.turn
            wait_until(sends_until(lambda: turns.turn > before + 1), ran)
            messages = received(servers, "T", count)
    check_delivered(messages, count)
    assert [one["is_used"] for one in failures.failed] == [True, False], failures.failed


def test_a_stop_in_the_midst_of_a_turn_is_no_failure_of_the_stage(spark: SparkSession, tmp_path: Path) -> None:
    events, has_begun = list[str](), threading.Event()

    def stage(rows: DataFrame) -> DataFrame:
        if rows.isEmpty():
            return rows
        has_begun.set()
        return rows.withColumn("shift_ms", F.udf(sleep_long, "bigint")("shift_ms"))

    with live(tmp_path) as servers, SyncProducer(servers.namesrv) as producer:
        servers.create_topic("T", queues=1)
        with running(spark, servers, stage=stage, on_event=lambda event, **_: events.append(event)) as ran:

            def sends_until_begun() -> bool:
                producer.send("T", b"parked", delay_ms=20_000)
                return has_begun.is_set()

            wait_until(sends_until_begun, ran)
    assert "turning" in events and "stage failed" not in events


def test_a_rate_limit_shapes_deliveries(spark: SparkSession, tmp_path: Path) -> None:
    """60 timers of one second leave in 6 seconds. Those of another topic leave on time."""
    failures = StageFailures()
    has_turned = threading.Event()
    with live(tmp_path) as servers, SyncProducer(servers.namesrv) as producer:
        for topic in ("Limited", "Free"):
            servers.create_topic(topic, queues=1)
        options = {"stage": RateLimit({"Limited": 10}), "on_event": failures, "on_first_turn": has_turned.set}
        with running(spark, servers, **options) as ran:
            producer.send("Free", b"first", delay_ms=240_000)
            wait_until(has_turned.is_set, ran)
            parts = servers.brokers["broker-a"].broker.parts
            due_ms = (parts.clock.now_ms() // 1000 + 20) * 1000 + 500
            for topic in ("Limited", "Free"):
                for i in range(60):
                    producer.send(topic, b"%d" % i, deliver_at_ms=due_ms)
            limited, free = received(servers, "Limited", 60), received(servers, "Free", 60)
            assert parts.timer.shifts.count == 50 and parts.timer.pending.armed_by["pipeline"] == 120
    check_delivered(limited, 60)
    check_delivered(free, 60)
    assert failures.failed == []
    for place, stored_ms in enumerate(sorted(message.stored_ms for message in limited)):
        assert stored_ms >= due_ms - 500 + 1000 * (place // 10), "at most ten leave in each second"


def test_an_empty_first_batch_is_no_failure_of_the_stage(spark: SparkSession, tmp_path: Path) -> None:
    """The first batch of a query may be empty. A plan that the broker makes meanwhile is that of the next batch."""
    failed = list[str]()
    with live(tmp_path) as servers, SyncProducer(servers.namesrv) as producer:
        broker = servers.broker_address("broker-a")
        link = SyncConnection(broker, sign=servers.brokers["broker-a"].broker.parts.pipeline_key.sign)
        opened = link.ask(Command(code=RequestCode.WMQ_PIPELINE_OPEN, ext=headers.texts(name="p", holderId="p")))
        terms = msgspec.json.decode(opened.body)
        turn = Turn(broker, terms["epoch"], terms["token"], lambda text: None)
        trial = StageTrial(lambda rows: rows, broker, lambda event, **_: failed.append(event))
        staged = StagedTurn(
            turn,
            trial,
            lambda rows: uploaded(rows, broker, terms),
            precision_ms=terms["precision_ms"],
            is_stopped=lambda: False,
        )
        producer.send("T", b"parked", delay_ms=240_000)
        deadline = time.monotonic() + PLAN_DEADLINE_S
        while (plan := turn.plan()) is None:
            assert time.monotonic() < deadline
        staged(turn_rows(spark, []), 0)
        assert failed == [] and turn.plan() == plan, "the turn is neither committed nor rejected"
        link.close()


def test_the_condition_of_a_topic_is_its_hash(spark: SparkSession) -> None:
    rows = turn_rows(spark, [NOW_MS], "A").unionByName(turn_rows(spark, [NOW_MS], "B", first=1))
    assert [row.origin for row in rows.where(of_topic("B")).collect()] == [1]
