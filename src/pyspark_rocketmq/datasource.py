"""The class that Spark registers. It creates readers and writers when Spark needs them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceReader, DataSourceStreamArrowWriter

    from pyspark_rocketmq.stream_reader import RocketStreamReader

FORMAT = "rocketmq"


class DefaultSource(DataSource):  # type: ignore[misc]
    """Topics of RocketMQ as tables and streams of messages. The options are those of options.py."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        from pyspark_rocketmq.columns import SPARK_SCHEMA

        return SPARK_SCHEMA

    def reader(self, schema: Any) -> DataSourceReader:
        from pyspark_rocketmq.batch_reader import RocketBatchReader
        from pyspark_rocketmq.columns import chosen_columns
        from pyspark_rocketmq.options import batch_options

        return RocketBatchReader(batch_options(self.options), chosen_columns(schema))

    def streamReader(self, schema: Any) -> RocketStreamReader:
        from pyspark_rocketmq.columns import chosen_columns
        from pyspark_rocketmq.options import stream_options
        from pyspark_rocketmq.stream_reader import RocketStreamReader

        return RocketStreamReader(stream_options(self.options), chosen_columns(schema))

    def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:
        from pyspark_rocketmq.options import sink_options
        from pyspark_rocketmq.rows import RowForm
        from pyspark_rocketmq.writers import RocketBatchWriter

        options = sink_options(self.options)
        return RocketBatchWriter(options, RowForm.of(schema, options), overwrite=overwrite)

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamArrowWriter:
        from pyspark_rocketmq.options import sink_options
        from pyspark_rocketmq.rows import RowForm
        from pyspark_rocketmq.writers import RocketStreamWriter

        options = sink_options(self.options)
        return RocketStreamWriter(options, RowForm.of(schema, options), overwrite=overwrite)


def named(format_name: str) -> type[DefaultSource]:
    """Return the source under another name, for `spark.dataSource.register`.

    Spark changes a map of the registered source at the start of each stream, without a lock. If the first two streams
    of one source start at the same time, their tasks fail (OptionalDataException). Streams with sources of their own
    can start together.
    """

    def name(cls: type[DefaultSource]) -> str:
        return format_name

    return type("NamedSource", (DefaultSource,), {"name": classmethod(name)})
