"""Move a topic into Parquet, each message once. Run it again at any time: it continues after the last message.

    spark-submit examples/archive_topic.py 127.0.0.1:9876 Orders /data/orders

Spark stores the offsets of the topic in a checkpoint, and its file sink ignores files of an unfinished run. So a run
that was killed neither loses nor doubles a message. Read the archive with Spark, which knows the complete files.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession


def archive(spark: SparkSession, namesrv: str, topic: str, folder: str) -> None:
    """Append all messages that exist now, and that no earlier run has written. Returns when they are written."""
    stream = (
        spark.readStream.format("rocketmq")
        .options(namesrvAddr=namesrv, topic=topic, startingOffsets="earliest", maxOffsetsPerTrigger="1000000")
        .load()
    )
    writer = stream.writeStream.format("parquet").trigger(availableNow=True)
    writer.options(path=f"{folder}/messages", checkpointLocation=f"{folder}/checkpoint").start().awaitTermination()


if __name__ == "__main__":
    archive(SparkSession.builder.appName("archive").getOrCreate(), *sys.argv[1:])
