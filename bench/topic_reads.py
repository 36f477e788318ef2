"""The work of a task of `format("rocketmq")`: rows per second that it pulls from a broker, or reads from its files.

One process reads a topic of four queues in batches of 10,000 rows, without Spark. Each read follows an unmeasured one.
"few" are the columns body, queueId, queueOffset and storeTimestamp. The processor of the broker is not in that of the
task.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Sequence
from typing import Final

from bench.generator import fill
from bench.rawload import Load
from bench.report import Figures, Metric, Report, measure, parse, parser
from bench.room import make_room
from bench.targets import Target
from pyspark_rocketmq.batch_reader import RocketBatchReader
from pyspark_rocketmq.columns import COLUMNS
from pyspark_rocketmq.options import batch_options

TOPIC: Final = "Reads"
COUNT: Final = 2_000_000
COUNT_SHORT: Final = 200_000
BYTES_EACH: Final = 250
"""Bytes of record, queue unit and index entry, beside the body."""
FILL_S: Final = 600.0
FEW: Final = ("body", "queueId", "queueOffset", "storeTimestamp")
READS: Final = {"few": FEW, "all": tuple(COLUMNS)}

METRICS: Final = [
    metric
    for columns in READS
    for metric in (
        Metric(
            f"files_{columns}",
            f"files, {columns} columns: rows/s of a core",
            at_least=1e6 if columns == "few" else None,
        ),
        Metric(f"pulls_{columns}", f"pulls, {columns} columns: rows/s of a core"),
        Metric(f"pulls_{columns}_per_s", f"pulls, {columns} columns: rows/s"),
        Metric(f"pulls_{columns}_us", f"pulls, {columns} columns: broker's processor us/row"),
    )
]


class _Strict(logging.Handler):
    """Raises for a warning: a task that pulls in place of reading files would give a wrong figure."""

    def emit(self, record: logging.LogRecord) -> None:
        raise RuntimeError(record.getMessage())


def main(argv: Sequence[str] | None = None) -> int:
    made = parser("topic_reads", __doc__)
    made.add_argument("--count", type=int, help=f"messages ({COUNT:,}; {COUNT_SHORT:,} with --short)")
    made.add_argument("--bytes", type=int, default=256, help="bytes of a body (256)")
    options = parse(made, argv)
    count = options.count or (COUNT_SHORT if options.short else COUNT)
    logging.getLogger("pyspark_rocketmq").addHandler(_Strict(logging.WARNING))
    report = Report(f"reads of {count:,} messages, {options.bytes} B", METRICS)
    make_room(report, options, count * (BYTES_EACH + options.bytes))
    measure(report, options, lambda target: _reads(target, count, options.bytes))
    return report.finish(options.json)


def _reads(target: Target, count: int, body_bytes: int) -> Figures:
    stored = fill(target.broker, TOPIC, Load(messages=count, body_bytes=body_bytes, seconds=FILL_S))
    figures: Figures = {}
    for name, columns in READS.items():
        _read(target, columns, stored, {"storePath": str(target.store)})
        _, figures[f"files_{name}"] = _read(target, columns, stored, {"storePath": str(target.store)})
        _read(target, columns, stored, {})
        processor = target.processor()
        figures[f"pulls_{name}_per_s"], figures[f"pulls_{name}"] = _read(target, columns, stored, {})
        figures[f"pulls_{name}_us"] = processor.seconds()["broker"] * 1e6 / stored
    return figures


def _read(target: Target, columns: tuple[str, ...], count: int, more: dict[str, str]) -> tuple[float, float]:
    """Read the topic. Returns the rows per second, and per second of this process's processor."""
    reader = RocketBatchReader(batch_options({"namesrvAddr": target.namesrv, "topic": TOPIC, **more}), columns)
    tasks = reader.partitions()
    began_s, processor_s = time.perf_counter(), time.process_time()
    rows = sum(batch.num_rows for task in tasks for batch in reader.read(task))
    assert rows == count, f"{rows} rows of {count}"
    return rows / (time.perf_counter() - began_s), rows / (time.process_time() - processor_s)


if __name__ == "__main__":
    sys.exit(main())
