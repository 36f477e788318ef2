"""Topics in Spark: `format("rocketmq")` with WheelMQ and Apache RocketMQ, and `format("kafka")` with Kafka's broker.

Each query has two tasks at a time, and a topic has four queues. A read has four columns: content, queue, offset and
time. It follows an unmeasured one. "of a core" divides rows by the processor seconds of Spark: driver, JVM and Python
workers. The processor of the broker is apart.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from bench.kafka import KafkaBroker
from bench.report import Figures, Metric, Report, parse, parser, tell
from bench.room import apache_problem, check_room
from bench.spark_session import BenchSession
from bench.targets import Apache, WheelMQ, prepare, rivals
from bench.topics import Topics, running
from compat.apache.maven import MavenProject

SPARK_JARS: Final = MavenProject(Path(__file__).parent / "kafka_spark")
TOPIC: Final = "Rows"
COUNT: Final = 10_000_000
COUNT_SHORT: Final = 200_000
BODY_BYTES: Final = (256, 1024)
WARM_ROWS: Final = 200_000
"""Rows that a sink writes before the measured ones."""
BYTES_EACH: Final = 450
"""Bytes of record, queue unit and index entry, besides the body."""
COPIES: Final = 2
"""Copies of the messages at a time: those to read and those of the sink, or the uploads of a sink and its messages."""
ROUNDS: Final = 3
SHOWN_S: Final = 120.0
"""The longest time until a stored message is in its queue."""
GUARANTEES: Final = {"at-least-once": "written", "exactly-once": "once"}
"""Names of figures, by the guarantee of a sink."""


def metrics(body_bytes: int) -> list[Metric]:
    """Return the rows of the table for one size of a body."""
    size = f", {body_bytes} B"

    def metric(key: str, label: str, **goal: float) -> Metric:
        return Metric(f"{key}_{body_bytes}", label, **goal)

    return [
        metric("files_per_s", f"read from files{size}: rows/s"),
        metric("files_core", "  rows/s of a core", at_least=1e6),
        metric("wire_per_s", f"read over the wire{size}: rows/s", ratio_at_least=1),
        metric("wire_core", "  rows/s of a core", ratio_at_least=1),
        metric("wire_us", "  broker's processor us/row"),
        metric("java_per_s", f"plain Java consumer{size}: messages/s"),
        metric("java_core", "  messages/s of a core"),
        metric("written_per_s", f"written at least once{size}: rows/s", ratio_at_least=1),
        metric("written_core", "  rows/s of a core", ratio_at_least=1),
        metric("written_us", "  broker's processor us/row"),
        metric("once_per_s", f"written exactly once{size}: rows/s"),
        metric("once_core", "  rows/s of a core"),
        metric("once_us", "  broker's processor us/row"),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    made = parser("spark_topics", __doc__, rounds=ROUNDS, targets=(Apache.name, KafkaBroker.name, WheelMQ.name))
    made.add_argument("--count", type=int, help=f"messages ({COUNT:,}; {COUNT_SHORT:,} with --short)")
    made.add_argument("--bytes", type=int, nargs="+", default=BODY_BYTES, help="bytes of a body (256 1024)")
    made.add_argument("--cores", type=int, default=2, help="tasks of Spark at a time (2)")
    options = parse(made, argv)
    options.count = options.count or (COUNT_SHORT if options.short else COUNT)
    rows = [metric for body_bytes in options.bytes for metric in metrics(body_bytes)]
    report = Report(f"{options.count:,} rows, {options.cores} tasks at a time", rows, rival=KafkaBroker.name)
    names = _names(report, options)
    jars: list[Path] = []
    if KafkaBroker.name in names:
        SPARK_JARS.class_path()
        jars = sorted((SPARK_JARS.target / "lib").glob("*.jar"))
    if WheelMQ.name in names:
        prepare()
    with BenchSession(options.cores, jars, options.home) as session:
        for i in range(options.rounds):
            for name in names:
                report.add(name, _round(session, name, options, f"round {i + 1} of {options.rounds}"))
    return report.finish(options.json)


def _names(report: Report, options: argparse.Namespace) -> list[str]:
    """Return the brokers to measure, and note those that are left out. Raises SystemExit without enough room."""
    stored_bytes = COPIES * options.count * (BYTES_EACH + max(options.bytes))
    check_room(options.home, stored_bytes)
    if options.only is not None:
        return [options.only]
    if (without := rivals()[1]) is not None:
        report.notes.append(without.replace(Apache.name, f"{Apache.name} and {KafkaBroker.name}"))
        return [WheelMQ.name]
    names = [Apache.name, KafkaBroker.name, WheelMQ.name]
    if (problem := apache_problem(options.home, stored_bytes)) is not None:
        report.notes.append(f"without Apache: {problem}")
        names.remove(Apache.name)
    return names


def _round(session: BenchSession, name: str, options: argparse.Namespace, label: str) -> Figures:
    figures: Figures = {}
    for body_bytes in options.bytes:
        tell(f"{options.count:,} rows of {body_bytes} B: {name}, {label}")
        for key, value in _measure(session, name, options, body_bytes).items():
            figures[f"{key}_{body_bytes}"] = value
    return figures


def _measure(session: BenchSession, name: str, options: argparse.Namespace, body_bytes: int) -> Figures:
    """Measure one broker. An exactly-once sink has a start of its own, whose store needs the room of two topics."""
    count: int = options.count
    with running(name, options.home) as topics:
        figures = _reads(session, topics, count, body_bytes)
        figures |= topics.consume(TOPIC, count) if rivals()[1] is None else {}
        figures |= _write(session, topics, count, body_bytes, "at-least-once")
        rest = topics.guarantees[1:]
    for guarantee in rest:
        with running(name, options.home) as topics:
            figures |= _write(session, topics, count, body_bytes, guarantee)
    return figures


def _reads(session: BenchSession, topics: Topics, count: int, body_bytes: int) -> Figures:
    figures: Figures = {}
    topics.fill(TOPIC, count, body_bytes)
    _check_stored(topics, TOPIC, count)
    for way, rows in topics.reads(session.spark, TOPIC).items():
        session.read(rows)
        processor = topics.processor()
        work = session.read(rows)
        assert work.rows == count, f"{topics.name}, {way}: {work.rows} rows of {count}"
        figures |= work.figures(way)
        figures[f"{way}_us"] = processor.seconds()["broker"] * 1e6 / count
    return figures


def _write(session: BenchSession, topics: Topics, count: int, body_bytes: int, guarantee: str) -> Figures:
    name = GUARANTEES[guarantee]
    for topic, number in ((f"Warm-{name}", min(count, WARM_ROWS)), (f"Sink-{name}", count)):
        topics.create(topic)
        rows = session.rows(number, body_bytes, topics.column)
        processor = topics.processor()
        work = session.write(number, partial(topics.write, rows, topic, guarantee))
        used = processor.seconds()["broker"]
        _check_stored(topics, topic, number)
    return {**work.figures(name), f"{name}_us": used * 1e6 / count}


def _check_stored(topics: Topics, topic: str, count: int) -> None:
    """Wait until the topic shows its messages: Apache puts them into their queues later. Raises RuntimeError."""
    end_s = time.monotonic() + SHOWN_S
    while (stored := topics.stored(topic)) < count and time.monotonic() < end_s:
        time.sleep(0.1)
    if stored != count:
        raise RuntimeError(f"{topics.name}, {topic}: {stored:,} messages of {count:,}")


if __name__ == "__main__":
    sys.exit(main())
