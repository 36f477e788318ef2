"""Create the JVM's start-up cache. It runs Spark as the pipeline does, so that the JVM records the needed classes.

A first session starts `python -m wheelmq.pipeline.training` as a process of its own (session.py).
"""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from wheelmq.pipeline.gateway import GatewayFailed, startup_cache
from wheelmq.pipeline.java import find_java
from wheelmq.pipeline.processes import family, kill
from wheelmq.pipeline.session import close_jvm, open_jvm, spark_settings
from wheelmq.spark.queries import map_in_arrow, scratch_checkpoint, start_turns

DELAY_S = 20.0
"""Pause before the training, for the start of the first run. A shorter run leaves the cache to a later one."""

TURNS = 10
DEADLINE_S = 300.0
POLL_S = 0.02


def make_startup_cache() -> bool:
    """Create the start-up cache now, for images and installers. Takes some 30 s. No session may be open.

    Returns False if there is a cache already, another process creates it, or this Java supports none.
    """
    cache = startup_cache(find_java())
    return cache is not None and cache.make(_exercise)


def _exercise(options: tuple[str, ...]) -> None:
    opened = open_jvm(find_java(), spark_settings("wheelmq-training", "local[2,4]", {}), None, options=options)
    try:
        _run_turns(opened.session)
    finally:
        close_jvm(opened, DEADLINE_S)  # the JVM writes its record when it ends


def _run_turns(session: SparkSession) -> None:
    done: list[int] = []

    def turn(rows: DataFrame, turn_id: int) -> None:
        rows = rows.withColumn("slot", (functions.col("due_ms") / 1000).cast("long"))
        if turn_id % 2:
            gone = rows.where("origin % 10 = 0").select("origin")
            rows = rows.join(gone, "origin", "left_anti")
        rows = rows.where("due_ms >= 0").sortWithinPartitions("due_ms", "origin")
        done.append(map_in_arrow(rows, count_rows, "rows long").collect()[0].rows)

    session.dataSource.register(TrainingSource)
    rows = session.readStream.format(TrainingSource.name()).load()
    query = start_turns(rows, turn, scratch_checkpoint())
    deadline = time.monotonic() + DEADLINE_S
    while len(done) < TURNS:
        if not query.isActive or time.monotonic() > deadline:
            raise GatewayFailed(f"the training run ended after {len(done)} turns: {query.exception()}")
        time.sleep(POLL_S)


class TrainingSource(DataSource):  # type: ignore[misc]
    """A stream of a few rows, with four of the columns of the pipeline."""

    @classmethod
    def name(cls) -> str:
        return "wheelmq_training"

    def schema(self) -> str:
        return "origin long, due_ms long, log_position long, size int"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return _Reader()


class _Reader(DataSourceStreamReader):  # type: ignore[misc]
    """Two partitions of a hundred rows in every turn."""

    def initialOffset(self) -> dict[str, int]:
        return {"turn": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        return {"turn": start["turn"] + 1}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(part) for part in range(2)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        longs = pa.array(range(100), pa.int64())
        columns = [longs, longs, longs, longs.cast(pa.int32())]
        yield pa.RecordBatch.from_arrays(columns, names=["origin", "due_ms", "log_position", "size"])


def count_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    count = sum(batch.num_rows for batch in batches)
    yield pa.RecordBatch.from_arrays([pa.array([count], pa.int64())], names=["rows"])


def train() -> None:
    """Run the process that `_train_beside` starts."""
    if select.select([sys.stdin], [], [], DELAY_S)[0]:
        return  # the parent was a short run
    if hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    make_startup_cache()


def _leave_with_parent() -> None:
    """Wait for the end of stdin, which comes when the parent is gone, and end at once: the JVM writes no record."""
    os.read(sys.stdin.fileno(), 1)
    kill(family(os.getpid())[1:])
    os._exit(1)


if __name__ == "__main__":
    train()
