"""The streaming source of a query group: the end offset of a micro-batch has the plans of several brokers.

The planner gets batches from the driver (`group_channel`), so it needs neither leases nor brokers. It imports no module
that a task needs, because each query starts a planner of its own.

A task never fails because of its broker. It yields a row with the problem instead, and the driver does not commit the
turn of that broker. The other brokers of the batch are not affected.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from wheelmq.spark.group_channel import ChannelClient
from wheelmq.system.failpoint import reach

log = logging.getLogger(__name__)

FORMAT: Final = "wheelmq.group"
CHANNEL: Final = "channel"
"""Name of the option with the path of the driver's channel."""

_MORE_COLUMNS: Final = {
    "member": ("int", pa.int32()),
    "window_ms": ("long", pa.int64()),
    "precision_ms": ("long", pa.int64()),
    "problem": ("string", pa.string()),
}
"""Additional columns: the number of the lease, the roll window and precision of its broker, and the problem of a task.

A row with a problem has no message.
"""


class GroupPart(InputPartition):  # type: ignore[misc]
    """The work of one task for one broker. `fields` are those that `group_ranges.parts_of` returns."""

    def __init__(self, fields: dict[str, Any]) -> None:
        super().__init__(fields["member"])
        self.fields = fields


class GroupSource(DataSource):  # type: ignore[misc]
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        from wheelmq.spark.columns import SPARK_SCHEMA

        return ", ".join([SPARK_SCHEMA, *(f"{name} {kind}" for name, (kind, _) in _MORE_COLUMNS.items())])

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return GroupStreamReader(dict(self.options))


def group_source(number: int) -> type[GroupSource]:
    """Create a source with its own name, for the queries of one group (`source.timer_source` has the reason)."""

    def name(cls: type[GroupSource]) -> str:
        return f"{FORMAT}.{number}"

    return type(f"GroupSource{number}", (GroupSource,), {"name": classmethod(name)})


class GroupStreamReader(DataSourceStreamReader):  # type: ignore[misc]
    def __init__(self, options: dict[str, str]) -> None:
        self._channel_path = options[CHANNEL]
        self._channel: ChannelClient | None = None

    def initialOffset(self) -> dict[str, Any]:
        return {"sequence": 0, "plans": {}}

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        """Return the plans of the next batch, or `start` unchanged without one. Raises OSError without a driver."""
        if self._channel is None:
            self._channel = ChannelClient(self._channel_path)
        found: dict[str, Any] | None = self._channel.ask(ask="batch")
        if found is None:
            return start
        reach("source.planned")
        return found

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        if not end["plans"] or end == start:
            return []
        assert self._channel is not None
        return [GroupPart(fields) for fields in self._channel.ask(ask="parts", sequence=end["sequence"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from wheelmq.spark.group_ranges import staged_rows
        from wheelmq.spark.range_reader import batches_of

        assert isinstance(partition, GroupPart)
        reach("task.read")
        fields = partition.fields
        try:
            rows = staged_rows(fields)
        except Exception as error:
            log.warning("no rows for %s: %s", fields["broker"], error)
            yield _with_more(_problem_row(fields), fields, f"{type(error).__name__}: {error}")
            return
        for batch in batches_of(rows):
            yield _with_more(batch, fields, None)


def _problem_row(fields: dict[str, Any]) -> pa.RecordBatch:
    """Return one row that is no message, for a problem."""
    import numpy as np

    from wheelmq.formats.disk.turn_row import STAGED_ROW
    from wheelmq.spark.columns import to_batch

    row = np.zeros(1, STAGED_ROW)
    row["turn"] = fields["plan"]["turn"]
    return to_batch(row)


def _with_more(batch: pa.RecordBatch, fields: dict[str, Any], problem: str | None) -> pa.RecordBatch:
    """Return a batch with the additional columns."""
    from wheelmq.spark.columns import PROBLEM_CHARACTERS_MAX

    terms = fields["terms"]
    precision_ms = int(terms["precision_ms"])
    values: dict[str, Any] = {
        "member": fields["member"],
        "window_ms": int(terms["roll_window_slots"]) * precision_ms,
        "precision_ms": precision_ms,
        "problem": None if problem is None else problem[:PROBLEM_CHARACTERS_MAX],
    }
    columns, schema = batch.columns, batch.schema
    for name, (_, kind) in _MORE_COLUMNS.items():
        columns.append(pa.repeat(pa.scalar(values[name], kind), batch.num_rows))
        schema = schema.append(pa.field(name, kind))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
