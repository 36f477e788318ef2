"""Start the streaming queries of turns in any classic Spark session, and run Arrow functions in their tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery

from wheelmq.spark import scratch

POOL = "spark.scheduler.pool"
PROGRESS_IN_MEMORY: Mapping[str, str] = {
    "asyncProgressTrackingEnabled": "true",
    "asyncProgressTrackingCheckpointIntervalMs": str(365 * 24 * 3600 * 1000),
    "_asyncProgressTrackingOverrideSinkSupportCheck": "true",
}


def scratch_checkpoint() -> Path:
    """Create an empty folder for a query's checkpoint, in memory if there is room. It ends with this process.

    A caller that starts queries repeatedly removes the folder of each query that ended.
    """
    return scratch.folder("checkpoint", scratch.memory())


def start_turns(
    rows: DataFrame, turn: Callable[[DataFrame, int], None], checkpoint: Path, name: str | None = None
) -> StreamingQuery:
    """Start a query that passes every batch to `turn`, in its own FAIR pool. `checkpoint` must be new and empty.

    Progress stays in memory, because Hadoop's local file system would fork a `chmod` for each of a batch's four files.
    Spark does not call the source's `commit`.
    """
    context = rows.sparkSession.sparkContext
    writer = rows.writeStream.foreachBatch(turn).option("checkpointLocation", checkpoint.as_uri())
    writer = writer if name is None else writer.queryName(name)
    pool = context.getLocalProperty(POOL)
    context.setLocalProperty(POOL, name or checkpoint.name)  # the query's thread inherits it
    try:
        return writer.options(**PROGRESS_IN_MEMORY).start()
    finally:
        context.setLocalProperty(POOL, pool)


def map_in_arrow(
    rows: DataFrame, function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], schema: str
) -> DataFrame:
    """Run `DataFrame.mapInArrow` without pandas, which PySpark requires in the driver but never uses."""
    from pyspark.sql.udf import UserDefinedFunction
    from pyspark.util import PythonEvalType

    udf = UserDefinedFunction(function, schema, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    mapped = rows._jdf.mapInArrow(udf(*[rows[name] for name in rows.columns])._jc, False, None)
    return DataFrame(mapped, rows.sparkSession)
