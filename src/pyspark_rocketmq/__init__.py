"""Apache RocketMQ and WheelMQ as a data source of Spark: `format("rocketmq")` (docs/spark-connector.md).

Spark imports each top-level package with the name `pyspark_*` when a session uses its first Python data source, and
registers the class `DefaultSource` in it. So this module imports nothing else that takes time.
"""

from pyspark_rocketmq.datasource import DefaultSource, named

__all__ = ["DefaultSource", "named"]
