"""Brokers that share queries: their turns, trouble of one of them, a stage, and the start of groups.

Two brokers are real. The others are models with sockets, in a process of the test.
"""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.live import Live, live
from tests.modelled_broker import Answering, ModelledBroker, serve
from tests.spark.test_pipeline import running, wait_until
from tests.turn_template import TurnTemplate, turn_template
from wheelmq.auth.inner_users import PIPELINE_KEY_NAME
from wheelmq.client import SyncProducer
from wheelmq.client.sync import Loop
from wheelmq.formats.wire.bodies import QueueName
from wheelmq.formats.wire.codes import ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.spark import groups as module
from wheelmq.spark.pipeline import run
from wheelmq.spark.stages import Stage, deliver_at, planned_ms

LONG_MS = 240_000
DELAY_MS = 12_000
OTHERS = 3


@contextmanager
def two_brokers(folder: Path) -> Iterator[Live]:
    """Start two brokers with the same key of the pipeline."""
    with live(folder) as servers:
        second = servers.store("broker-b") / "config"
        second.mkdir(parents=True)
        shutil.copy(servers.store("broker-a") / "config" / PIPELINE_KEY_NAME, second)
        servers.add_broker("broker-b")
        servers.create_topic("T", queues=1)
        yield servers


def released(servers: Live) -> list[int]:
    return [servers.brokers[name].broker.parts.releaser.counts["released"] for name in ("broker-a", "broker-b")]


def send_to_both(servers: Live, producer: SyncProducer, count: int, delay_ms: int) -> None:
    for i in range(count):
        for name in ("broker-a", "broker-b"):
            producer.send("T", b"%d" % i, delay_ms=delay_ms, select=lambda queues, name=name: queue_of(queues, name))


def queue_of(queues: Sequence[QueueName], broker: str) -> QueueName:
    return next(queue for queue in queues if queue.broker_name == broker)


class KnownBrokers:
    """A name server that knows the brokers of a list."""

    def __init__(self) -> None:
        self.address = ""
        self._brokers: list[str] = []

    def know(self, brokers: list[str]) -> None:
        self._brokers += brokers

    async def answer(self, command: Command) -> Command:
        table = {one: {"cluster": "c", "brokerName": one, "brokerAddrs": {"0": one}} for one in self._brokers}
        body = msgspec.json.encode({"brokerAddrTable": table, "clusterAddrTable": {}})
        return Command(code=ResponseCode.SUCCESS, body=body)


class Models:
    """Models of brokers with sockets, in a thread of their own."""

    def __init__(self, template: TurnTemplate) -> None:
        self._template = template
        self._loop = Loop()
        self._loop.start()
        self.brokers: dict[str, ModelledBroker] = {}
        self._servers: list[asyncio.Server] = []

    def add(self, count: int) -> list[str]:
        return [self._add() for _ in range(count)]

    def _add(self) -> str:
        broker = ModelledBroker(self._template.terms, self._template.plan, pace_s=0.2)
        address = self._serve(broker)
        self.brokers[address] = broker
        return address

    def name_server(self) -> KnownBrokers:
        names = KnownBrokers()
        names.address = self._serve(names)
        return names

    def _serve(self, model: Answering) -> str:
        server, address = self._loop.submit(serve(model)).result()
        self._servers.append(server)
        return address

    def turns(self) -> list[int]:
        return [broker.turn for broker in self.brokers.values()]

    def close(self) -> None:
        for server in self._servers:
            self._loop.submit(_closed(server)).result()
        self._loop.stop()


async def _closed(server: asyncio.Server) -> None:
    server.close()


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TurnTemplate]:
    with turn_template(tmp_path_factory.mktemp("template"), 200) as made:
        yield made


@pytest.fixture
def models(template: TurnTemplate) -> Iterator[Models]:
    made = Models(template)
    try:
        yield made
    finally:
        made.close()


class Running:
    """A run of the pipeline for models, and its events."""

    def __init__(self, spark: SparkSession, brokers: list[str], **options: Any) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self._stop = threading.Event()
        self._threads = ThreadPoolExecutor(1)
        self.ran = self._threads.submit(
            run,
            spark,
            brokers=brokers,
            stop=self._stop,
            on_event=lambda event, **fields: self.events.append((event, fields)),
            **options,
        )

    def until(self, condition: Callable[[], bool]) -> None:
        wait_until(condition, self.ran)

    def ended(self, broker: str) -> int:
        return sum(event == "query ended" and fields["broker"] == broker for event, fields in self.events)

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self.ran.result()
        self._threads.shutdown()


@pytest.mark.spark
def test_two_brokers_of_one_query_arm_their_timers(spark: SparkSession, tmp_path: Path) -> None:
    before = {query.id for query in spark.streams.active}
    events = list[str]()
    with two_brokers(tmp_path) as servers, SyncProducer(servers.namesrv) as producer:
        options: dict[str, Any] = {"on_event": lambda event, **_: events.append(event), "groups": 1}
        with running(spark, servers, **options) as ran:
            parts = [servers.brokers[name].broker.parts for name in ("broker-a", "broker-b")]
            send_to_both(servers, producer, 1, LONG_MS)
            wait_until(lambda: all(one.timer.turns.turn > 0 for one in parts), ran)
            armed = [dict(one.timer.pending.armed_by) for one in parts]
            send_to_both(servers, producer, 20, DELAY_MS)
            wait_until(lambda: released(servers) == [20, 20], ran)
            for one, was in zip(parts, armed, strict=True):
                now = one.timer.pending.armed_by
                assert now["pipeline"] - was.get("pipeline", 0) == 20
                assert now["near_lane"] == now["wheel_lane"] == 0
            names = {query.name for query in spark.streams.active if query.id not in before}
            assert names == {"timers of group 1"}
    assert {query.id for query in spark.streams.active} == before, "its queries end with it"
    assert events.count("turning") == 2 and "query ended" not in events and "groups" in events


@pytest.mark.spark
def test_trouble_of_one_broker_does_not_hold_its_group(
    spark: SparkSession, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One broker answers slowly, then not at all, then it loses its lease. The leases of the others continue."""
    monkeypatch.setattr(module, "WAIT_S", 1.0)
    slow, *others = models.add(3)
    with Running(spark, [slow, *others], groups=1) as ran:
        ran.until(lambda: min(models.turns()) >= 3)

        def others_turn() -> None:
            turns = [models.brokers[name].turn for name in others]
            ran.until(
                lambda: all(models.brokers[name].turn >= was + 5 for name, was in zip(others, turns, strict=True))
            )

        broker = models.brokers[slow]
        broker.delay_s = 2.0
        ran.until(lambda: ran.ended(slow) >= 1)
        others_turn()
        turn = broker.turn
        ran.until(lambda: broker.turn > turn)  # by the query of slow brokers, which waits longer
        broker.delay_s = 0.0
        ran.until(lambda: broker.turn > turn + 3)
        broker.is_silent = True
        others_turn()
        broker.is_silent = False
        broker.lose_lease()
        opened = broker.opened
        turn = broker.turn
        ran.until(lambda: broker.opened > opened and broker.turn > turn + 1)
        assert [ran.ended(name) for name in others] == [0, 0]
        assert [models.brokers[name].opened for name in others] == [1, 1]


@pytest.mark.spark
def test_brokers_that_were_alone_join_the_groups(spark: SparkSession, models: Models) -> None:
    """A group serves a broker that joins, without another query."""
    names = models.name_server()
    alone = models.add(2)
    names.know(alone)
    with Running(spark, [], namesrv=[names.address], groups=2) as ran:
        ran.until(lambda: min(models.turns()) >= 1)
        assert not any(event == "groups" for event, _ in ran.events)
        names.know(models.add(1))
        ran.until(lambda: models.turns()[2] >= 2 and all(ran.ended(name) == 0 for name in alone))
        ran.until(lambda: len(spark.streams.active) == 2)  # the first query served all brokers until now
        queries = {str(query.runId) for query in spark.streams.active}
        names.know(models.add(1))
        turns = models.turns()
        ran.until(lambda: all(now > was for now, was in zip(models.turns(), turns, strict=True)))
        assert {str(query.runId) for query in spark.streams.active} == queries


class StageOfBrokers:
    """Delivers the timers of each broker 2 s later. It fails for the broker `failing`, and notes the rows it gets."""

    def __init__(self, failing: str) -> None:
        self.failing = failing
        self.seen: dict[str, set[int]] = {}
        """The origins of the rows, by broker."""

    def __call__(self, rows: DataFrame) -> DataFrame:
        raise AssertionError("each broker has a stage of its own")

    def for_broker(self, broker: str) -> Stage:
        seen = self.seen.setdefault(broker, set())

        def stage(rows: DataFrame) -> DataFrame:
            assert "member" not in rows.columns and "problem" not in rows.columns
            found = {row.origin for row in rows.select("origin").collect()}
            seen.update(found)
            if found and broker == self.failing:
                raise ValueError("this stage fails")
            return deliver_at(rows, planned_ms() + F.lit(2000))

        return stage


@pytest.mark.spark
def test_a_stage_shifts_the_timers_of_a_group(spark: SparkSession, tmp_path: Path) -> None:
    """It sees the rows of one broker at a time. For one of the brokers it fails, which affects only that one."""
    failed: set[str] = set()
    ended: list[str] = []

    def note(event: str, **fields: Any) -> None:
        if event == "stage failed":
            failed.add(fields["broker"])
        if event == "query ended":
            ended.append(str(fields))

    with two_brokers(tmp_path) as servers, SyncProducer(servers.namesrv) as producer:
        shifting, failing = (servers.broker_address(name) for name in ("broker-a", "broker-b"))
        stage = StageOfBrokers(failing)
        parts = [servers.brokers[name].broker.parts for name in ("broker-a", "broker-b")]
        with running(spark, servers, stage=stage, groups=1, on_event=note) as ran:
            send_to_both(servers, producer, 1, LONG_MS)
            for _ in range(OTHERS):  # so the timers below have other origins in each broker
                producer.send("T", b"other", delay_ms=LONG_MS, select=lambda queues: queue_of(queues, "broker-b"))
            wait_until(lambda: all(one.timer.turns.turn > 0 for one in parts), ran)
            send_to_both(servers, producer, 5, DELAY_MS)
            wait_until(lambda: parts[0].timer.shifts.count == 5 and failed == {failing}, ran)
            wait_until(lambda: released(servers) == [5, 5], ran)
    assert parts[1].timer.shifts.count == 0 and ended == []
    assert set(stage.seen) == {shifting, failing} and len(stage.seen[shifting]) == 5, (
        "it got the rows of its own broker"
    )
    assert 0 < len(stage.seen[failing]) <= 5


@contextmanager
def event_log(spark: SparkSession, folder: Path) -> Iterator[None]:
    """Write the event log of a session to a folder, as `spark.eventLog.enabled` does for a whole application."""
    folder.mkdir()
    jvm: Any = spark.sparkContext._jvm
    context: Any = spark.sparkContext._jsc.sc()
    conf = context.conf().clone().set("spark.eventLog.compress", "false").set("spark.eventLog.rolling.enabled", "false")
    listener = jvm.org.apache.spark.scheduler.EventLoggingListener(
        "log", jvm.scala.Option.apply(None), jvm.java.net.URI(folder.as_uri()), conf
    )
    listener.start()
    context.addSparkListener(listener)
    try:
        yield
        context.listenerBus().waitUntilEmpty()
    finally:
        context.removeSparkListener(listener)
        listener.stop()


@pytest.mark.spark
@pytest.mark.parametrize("stage", [None, lambda rows: rows], ids=["plain", "staged"])
def test_no_token_is_in_the_event_log(spark: SparkSession, models: Models, tmp_path: Path, stage: Any) -> None:
    """The event log has the plan of each query, and the properties of each job. Spark redacts few of these."""
    names = models.add(2)
    with event_log(spark, tmp_path / "log"), Running(spark, names, groups=1, stage=stage) as ran:
        ran.until(lambda: min(models.turns()) >= 2)
        tokens = [broker.token for broker in models.brokers.values()]
    text = "".join(path.read_text() for path in (tmp_path / "log").rglob("*") if path.is_file())
    assert "SparkListenerJobStart" in text and "timers of group 1" in text
    assert all(tokens) and not any(token in text for token in tokens)
