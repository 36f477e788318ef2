"""Replay recorded traffic: the broker delivers each message at its original distance from the first one.

    spark-submit examples/replay_traffic.py 127.0.0.1:9876 /data/orders/messages Replayed monday

The recording has the columns of a source, as archive_topic.py writes them. The whole replay has to fit into the delay
that the broker accepts, 3 days by default. The last argument names the replay. A second run with the same name delivers
nothing again, so a run that failed can be repeated until it succeeds.
"""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql


def replayed(recording: DataFrame, first_delay_s: int = 60) -> DataFrame:
    """Return the messages of a recording, with the columns of the sink. The first one is due after `first_delay_s`."""
    first = recording.agg(sql.min("storeTimestamp").alias("first"))
    distance_ms = sql.expr("unix_millis(storeTimestamp) - unix_millis(first)")
    return recording.crossJoin(sql.broadcast(first)).select(
        "body",
        "tags",
        "keys",
        "properties",
        sql.timestamp_millis(sql.unix_millis(sql.current_timestamp()) + 1000 * first_delay_s + distance_ms).alias(
            "deliverTime"
        ),
    )


def replay(spark: SparkSession, namesrv: str, folder: str, topic: str, name: str) -> None:
    """Send the recording in `folder` to `topic`, once for each name."""
    writer = replayed(spark.read.parquet(folder)).write.format("rocketmq")
    writer.options(namesrvAddr=namesrv, topic=topic, guarantee="exactly-once", jobId=name).mode("append").save()


if __name__ == "__main__":
    replay(SparkSession.builder.appName("replay").getOrCreate(), *sys.argv[1:])
