"""Topics of RocketMQ and of Kafka under one interface: fill them, read and write by Spark, consume by plain Java."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from bench.generator import fill
from bench.holds import make_topics
from bench.javaclient import JavaClient
from bench.kafka import KafkaBroker
from bench.machine import Processor
from bench.rawload import Load
from bench.report import Figures
from bench.targets import QUEUES, Apache, Target, WheelMQ

ROCKET_COLUMNS: Final = "body binary, queueId int, queueOffset bigint, storeTimestamp timestamp"
KAFKA_COLUMNS: Final = ("value", "partition", "offset", "timestamp")
FILL_BATCH: Final = 32
FILL_WINDOW: Final = 8
"""Batches on their way on a connection. A larger window overloads a broker."""
FILL_S: Final = 3600.0
WARM_MESSAGES: Final = 400_000
"""Messages that a Java consumer receives before the measured ones."""
DRAIN_LEAST_S: Final = 300
DRAIN_LEAST_PER_S: Final = 10_000
"""The lowest rate that a Java consumer may have before it is ended."""


class Topics(ABC):
    """A running broker with its topics."""

    name: str
    column: str
    """The column of a sink with the content of a message."""
    guarantees: tuple[str, ...] = ("at-least-once",)
    """The guarantees of the sink."""

    @abstractmethod
    def create(self, topic: str) -> None:
        """Create a topic with four queues."""

    @abstractmethod
    def fill(self, topic: str, count: int, body_bytes: int) -> None:
        """Send `count` messages to a new topic."""

    @abstractmethod
    def stored(self, topic: str) -> int:
        """Return the number of messages in the topic."""

    @abstractmethod
    def processor(self) -> Processor:
        """Return a processor meter of the broker, which starts now."""

    @abstractmethod
    def reads(self, spark: SparkSession, topic: str) -> dict[str, DataFrame]:
        """Return the reads of the topic, by their way: files or wire. Each has four columns."""

    @abstractmethod
    def write(self, rows: DataFrame, topic: str, guarantee: str) -> None:
        """Write rows to the topic by the sink."""

    @abstractmethod
    def consume(self, topic: str, count: int) -> Figures:
        """Read the topic by a plain Java consumer.

        Returns messages per second, and messages per second of the client's processor.
        """


class RocketTopics(Topics):
    """Topics of WheelMQ or of Apache RocketMQ."""

    column = "body"

    def __init__(self, target: Target) -> None:
        self._target = target
        self.name = target.name
        if isinstance(target, WheelMQ):
            self.guarantees = ("at-least-once", "exactly-once")

    def create(self, topic: str) -> None:
        make_topics(self._target, **{topic: QUEUES})

    def fill(self, topic: str, count: int, body_bytes: int) -> None:
        self.create(topic)
        batches, rest = divmod(count, FILL_BATCH)
        for messages, batch in ((batches, FILL_BATCH), (rest, 1)):
            load = Load(messages=messages, body_bytes=body_bytes, batch=batch, window=FILL_WINDOW, seconds=FILL_S)
            fill(self._target.broker, topic, load)

    def stored(self, topic: str) -> int:
        return self._target.stored(topic)

    def processor(self) -> Processor:
        return self._target.processor()

    def reads(self, spark: SparkSession, topic: str) -> dict[str, DataFrame]:
        wire = spark.read.format("rocketmq").schema(ROCKET_COLUMNS).options(**self._address(topic))
        found = {"wire": wire.load()}
        found["files"] = wire.option("storePath", str(self._target.store)).load()
        return found

    def write(self, rows: DataFrame, topic: str, guarantee: str) -> None:
        writer = rows.write.format("rocketmq").mode("append").options(**self._address(topic))
        writer.option("guarantee", guarantee).save()

    def consume(self, topic: str, count: int) -> Figures:
        deadline_s = max(DRAIN_LEAST_S, count // DRAIN_LEAST_PER_S)
        with JavaClient(self._target, topic, mode="send") as client:
            client.drain(min(count, WARM_MESSAGES), deadline_s)
            processor = Processor(lambda: {client.pid: "client"})
            said = client.drain(count, deadline_s)
            used = processor.seconds()["client"]
        if not said["drained"]:
            raise RuntimeError(f"{self.name}: the Java consumer has not had {count:,} messages in {deadline_s} s")
        return {"java_per_s": 1000 * count / said["ms"], "java_core": count / used}

    def _address(self, topic: str) -> dict[str, str]:
        return {"namesrvAddr": self._target.namesrv, "topic": topic}


class KafkaTopics(Topics):
    """Topics of Kafka."""

    column = "value"

    def __init__(self, broker: KafkaBroker) -> None:
        self._broker = broker
        self.name = broker.name

    def create(self, topic: str) -> None:
        self._broker.create_topic(topic)

    def fill(self, topic: str, count: int, body_bytes: int) -> None:
        self.create(topic)
        self._broker.fill(topic, count, body_bytes)

    def stored(self, topic: str) -> int:
        return self._broker.stored(topic)

    def processor(self) -> Processor:
        return self._broker.processor()

    def reads(self, spark: SparkSession, topic: str) -> dict[str, DataFrame]:
        rows = spark.read.format("kafka").options(**self._address()).option("subscribe", topic).load()
        return {"wire": rows.select(*KAFKA_COLUMNS)}

    def write(self, rows: DataFrame, topic: str, guarantee: str) -> None:
        rows.write.format("kafka").mode("append").options(**self._address()).option("topic", topic).save()

    def consume(self, topic: str, count: int) -> Figures:
        consumed = self._broker.consume(topic, count)
        return {"java_per_s": consumed.per_second, "java_core": count / consumed.processor_seconds}

    def _address(self) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self._broker.address}


@contextmanager
def running(name: str, home: Path | None, settings: Mapping[str, Any] | None = None) -> Iterator[Topics]:
    """Start a broker in a new folder. Yields its topics."""
    if name == KafkaBroker.name:
        with KafkaBroker(home) as broker:
            yield KafkaTopics(broker)
        return
    kind = Apache if name == Apache.name else WheelMQ
    with kind(home, settings) as target:
        yield RocketTopics(target)
