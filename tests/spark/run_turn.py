"""A program for tests: opens a session, runs a turn, closes it, and prints its findings to stdout as JSON.

`run_turn.py close LOG_DIR` does only that. `run_turn.py die LOG_DIR` first opens another session, kills its JVM and
closes it. `run_turn.py hang LOG_DIR` leaves a query running and waits to be killed.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path

import psutil  # type: ignore[import-untyped, unused-ignore]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from wheelmq.pipeline import session as pipeline
from wheelmq.pipeline import training
from wheelmq.spark import queries, scratch

DEADLINE_S = 60.0


def start_query(session: SparkSession) -> StreamingQuery:
    """Start a query over the training source. Returns it after at least one turn."""
    done: list[int] = []

    def turn(rows: DataFrame, turn_id: int) -> None:
        counted = queries.map_in_arrow(rows, training.count_rows, "rows long").collect()
        done.append(sum(row.rows for row in counted))

    session.dataSource.register(training.TrainingSource)
    rows = session.readStream.format(training.TrainingSource.name()).load()
    query = queries.start_turns(rows, turn, queries.scratch_checkpoint())
    deadline = time.monotonic() + DEADLINE_S
    while not done:
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline, "no turn was done in time"
        time.sleep(0.02)
    assert done[0] == 200
    return query


def describe() -> list[dict[str, object]]:
    """Describe all descendants of this process."""
    found: list[dict[str, object]] = []
    for one in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # one that ends now
            found.append({"pid": one.pid, "created": one.create_time(), "name": one.name()})
    return found


def open_session(log_dir: Path) -> SparkSession:
    return pipeline.open_session("wheelmq-run-turn", log_dir=log_dir)


def main(what: str, log_dir: Path) -> None:
    if what == "die":
        session = open_session(log_dir)
        (jvm,) = [child for child in psutil.Process().children() if child.name() == "java"]
        jvm.kill()
        pipeline.close_session(session)
    session = open_session(log_dir)
    java = session.sparkContext._jvm.System.getProperty("java.version")
    start_query(session)
    said = {"java": java, "family": describe(), "scratch": [str(path) for path, _ in scratch._held.values()]}
    print(json.dumps(said), flush=True)
    if what == "hang":
        sys.stdin.read()
    pipeline.close_session(session)
    print(json.dumps({"left": describe()}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
