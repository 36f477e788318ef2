"""A Spark application that copies a topic by the connector's source and sink. `tests.crash.connector` kills it.

    python -m tests.crash.copier NAMESRV SOURCE SINK CHECKPOINT GUARANTEE LOG_DIR

It starts the query again whenever the query fails, and ends with its standard input. It prints a JSON line per event.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from wheelmq.pipeline.session import close_session, open_session

BATCH_ROWS: Final = 60
"""The largest number of messages in a micro-batch."""
ATTEMPTS: Final = 4
"""Attempts of a task before its query fails."""
PLACE: Final = "place"
"""The property of a copy that names the message: BROKER/QUEUE/OFFSET in the topic of the source."""
PLAIN_EVERY: Final = 40
"""Each such message of a queue has a copy for the plain code of the broker, because a property is not ASCII. The kernel
appends the slices without such copies."""
WAIT_S: Final = 0.2


def start_query(
    spark: SparkSession, namesrv: str, source: str, sink: str, checkpoint: str, guarantee: str
) -> StreamingQuery:
    stream = (
        spark.readStream.format("rocketmq")
        .options(namesrvAddr=namesrv, topic=source, startingOffsets="earliest", maxOffsetsPerTrigger=str(BATCH_ROWS))
        .load()
    )
    place = f"'{PLACE}', concat_ws('/', broker, queueId, queueOffset)"
    properties = f"IF(queueOffset % {PLAIN_EVERY} = 0, map({place}, 'note', 'ñ'), map({place})) AS properties"
    return (
        stream.selectExpr("body", properties)
        .writeStream.format("rocketmq")
        .options(namesrvAddr=namesrv, topic=sink, guarantee=guarantee, checkpointLocation=checkpoint)
        .trigger(processingTime="0 seconds")
        .start()
    )


def print_event(name: str, text: str = "") -> None:
    print(json.dumps({"event": name, "text": text}), flush=True)


def copy(spark: SparkSession, arguments: list[str], ended: threading.Event) -> None:
    """Run the query until it fails or `ended` is set. Raises Py4JError if the JVM is gone."""
    query = None
    try:
        query = start_query(spark, *arguments)
        print_event("started")
        while not ended.is_set() and not query.awaitTermination(WAIT_S):
            pass
    except (PySparkException, Py4JJavaError) as error:
        print_event("failed", str(error)[:2000])
        ended.wait(WAIT_S)
    finally:
        if ended.is_set() and query is not None:
            query.stop()


def main() -> None:
    *arguments, log_dir = sys.argv[1:]
    ended = threading.Event()

    def wait_for_end() -> None:
        os.read(sys.stdin.fileno(), 1)
        ended.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    spark = open_session("connector-kills", master=f"local[2,{ATTEMPTS}]", log_dir=Path(log_dir))
    try:
        while not ended.is_set():
            copy(spark, arguments, ended)
    finally:
        close_session(spark)


if __name__ == "__main__":
    main()
