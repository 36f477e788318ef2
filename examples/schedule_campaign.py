"""Schedule a campaign: each row of a table becomes a message that is delivered at the row's own time.

    spark-submit examples/schedule_campaign.py 127.0.0.1:9876 campaign Campaign

The table has the columns member, address, text and send_at. Messages of the same member arrive in one queue. The unique
key contains campaign and member: with it, `wheelmq cancel Campaign --key KEY` cancels one message.
"""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame, SparkSession


def messages(spark: SparkSession, table: str) -> DataFrame:
    """Return the messages of the campaign, with the columns of the sink."""
    return spark.sql(
        f"""
        SELECT to_json(named_struct('address', address, 'text', text)) AS body,
               string(member)                                         AS keys,
               string(member)                                         AS shardingKey,
               concat('{table}-', member)                             AS msgId,
               send_at                                                AS deliverTime
          FROM {table}
        """
    )


def schedule(spark: SparkSession, namesrv: str, table: str, topic: str) -> None:
    """Send the messages of `table` to `topic`. The brokers deliver each at its time."""
    writer = messages(spark, table).write.format("rocketmq")
    writer.options(namesrvAddr=namesrv, topic=topic).mode("append").save()


if __name__ == "__main__":
    schedule(SparkSession.builder.appName("campaign").getOrCreate(), *sys.argv[1:])
