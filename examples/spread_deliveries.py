"""Run the pipeline in an application of Spark, with a stage that spreads the timers of a topic.

    spark-submit examples/spread_deliveries.py 127.0.0.1:9876 STORE/config/pipelineKey.json Reports 600

If all reports of a day are due at 09:00, each is delivered at a random time within the next 600 s.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from wheelmq.client import AccessKey
from wheelmq.spark.pipeline import run
from wheelmq.spark.stages import Stage, deliver_at, of_topic, planned_ms


def spread(topic: str, seconds: int) -> Stage:
    """Return a stage that delivers each timer of `topic` up to `seconds` later."""

    def stage(rows: DataFrame) -> DataFrame:
        later_ms = F.floor(F.rand() * seconds * 1000)
        return deliver_at(rows, planned_ms() + F.when(of_topic(topic), later_ms).otherwise(0))

    return stage


def access_key(path: str) -> AccessKey:
    """Return the key with the right to the lease, which a broker keeps in its store."""
    key = json.loads(Path(path).read_text())
    return AccessKey(key["accessKey"], key["secretKey"])


if __name__ == "__main__":
    namesrv, key_file, topic, seconds = sys.argv[1:]
    spark = SparkSession.builder.appName("pipeline").getOrCreate()
    run(spark, namesrv=[namesrv], access_key=access_key(key_file), stage=spread(topic, int(seconds)))
