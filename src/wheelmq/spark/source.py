"""The streaming source of the pipeline: a micro-batch is a turn, and its end offset is the broker's plan.

`latestOffset` is a long poll at the broker. Without work it returns the start offset, and Spark runs no batch. `read`
runs in tasks. It maps the store if the task sees the broker's own folder, and otherwise reads over the wire.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from wheelmq.formats.wire import headers
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.errors import Refused
from wheelmq.net.sync_connection import SyncConnection
from wheelmq.spark.columns import SPARK_SCHEMA
from wheelmq.spark.range_reader import batches_of, read_range
from wheelmq.spark.ranges import PARALLELISM_MIN, Range, ranges
from wheelmq.system.failpoint import reach
from wheelmq.system.tls_client import TlsOptions, client_tls

FORMAT = "wheelmq.timer"
VIEW = "view"
"""Name of an option. Spark passes option names in lower case."""
TOKEN = "leasetoken"
"""Name of the option with the token of the lease. Spark shows no value of an option whose name contains `token`."""
AUTO = "auto"
WIRE = "wire"
TLS = "tls"
"""Name of the option with the TlsOptions as JSON."""
PARALLELISM = "parallelism"
"""Name of the option with the maximum number of tasks for each kind of rows."""


class TimerSource(DataSource):  # type: ignore[misc]
    """Parked messages to index, and messages in due slots and queues, as rows without bodies."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return SPARK_SCHEMA

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return TimerStreamReader(dict(self.options))


def timer_source(number: int) -> type[TimerSource]:
    """Create a source with its own name, for the queries of one broker.

    Each stream that starts writes into a map of its registered source, without a lock (Spark:
    PythonStreamingSourceRunner.init). If two streams of one source start at once, no task can read the map any more
    (OptionalDataException), until the application ends.
    """

    def name(cls: type[TimerSource]) -> str:
        return f"{FORMAT}.{number}"

    return type(f"TimerSource{number}", (TimerSource,), {"name": classmethod(name)})


class TimerStreamReader(DataSourceStreamReader):  # type: ignore[misc]
    """Plans and reads the micro-batches of one lease.

    Options: `broker` is HOST:PORT. `terms` is the broker's JSON answer that gave the lease, without its token, which is
    in `leasetoken`. With `view` = `wire`, no task maps the store. `tls` is the JSON of the TlsOptions of connections,
    or missing. `parallelism` is the maximum number of tasks for each kind of rows.
    """

    def __init__(self, options: dict[str, str]) -> None:
        self._broker = options["broker"]
        self._terms: dict[str, Any] = msgspec.json.decode(options["terms"])
        self._token = options[TOKEN]
        self._over_the_wire = options.get(VIEW, AUTO) == WIRE
        self._parallelism = int(options.get(PARALLELISM, PARALLELISM_MIN))
        self._tls = client_tls(TlsOptions.from_json(options[TLS]) if TLS in options else None)
        self._link: SyncConnection | None = None

    def initialOffset(self) -> dict[str, Any]:
        return {"epoch": self._terms["epoch"], "turn": -1}

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        """Return the broker's plan, or `start` unchanged without work. Raises when the lease is over."""
        if self._link is None:
            self._link = SyncConnection(self._broker, tls=self._tls)
        ext = headers.texts(epoch=self._terms["epoch"], timeoutMs=1000, token=self._token)
        answer = self._link.call(Command(code=RequestCode.WMQ_PIPELINE_PLAN, ext=ext))
        if answer.code == ResponseCode.PULL_NOT_FOUND:
            return start
        if answer.code != ResponseCode.SUCCESS:
            raise Refused(answer)
        reach("source.planned")
        plan: dict[str, Any] = msgspec.json.decode(answer.body)
        return start if plan["turn"] == start.get("turn") else plan

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        if "index_to" not in end or end == start:
            return []
        return ranges(end, self._parallelism, precision_ms=self._terms["precision_ms"])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Range)
        reach("task.read")
        with contextlib.closing(SyncConnection(self._broker, tls=self._tls)) as link:
            rows = read_range(partition, self._terms, self._token, link, over_the_wire=self._over_the_wire)
        yield from batches_of(rows)
