"""The streaming source of the pipeline: a micro-batch is a turn, and its end offset is the broker's plan.

`latestOffset` is a long poll at the broker. Without work it returns the start offset, and Spark runs no batch. `read`
runs in tasks. It maps the store if the task sees the broker's own folder, and otherwise reads over the wire.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from wheelmq.delay.blocks.staging import read_blocks
from wheelmq.delay.timer import staging
from wheelmq.delay.timer.view import ReadView, StoreSizes, StoreView, sees_store
from wheelmq.delay.timer.wire_view import UNREADABLE, Segment, WireView, segment_of
from wheelmq.formats.disk.turn_row import KIND_BLOCKS, KIND_INDEX, KIND_QUEUE
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.portions import FileKind, Ranges
from wheelmq.net.errors import Refused
from wheelmq.net.sync_connection import SyncConnection
from wheelmq.spark.columns import ARROW_SCHEMA, SPARK_SCHEMA, to_batch
from wheelmq.spark.ranges import Range, ranges
from wheelmq.system.failpoint import bend, reach
from wheelmq.system.tls_client import TlsOptions, client_tls

FORMAT = "wheelmq.timer"
BATCH_ROWS = 50_000
VIEW = "view"
"""Name of an option. Spark passes option names in lower case."""
TOKEN = "leasetoken"
"""Name of the option with the token of the lease. Spark shows no value of an option whose name contains `token`."""
AUTO = "auto"
WIRE = "wire"
TLS = "tls"
"""Name of the option with the TlsOptions as JSON."""


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
    or missing.
    """

    def __init__(self, options: dict[str, str]) -> None:
        self._broker = options["broker"]
        self._terms: dict[str, Any] = msgspec.json.decode(options["terms"])
        self._token = options[TOKEN]
        self._over_the_wire = options.get(VIEW, AUTO) == WIRE
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
        return ranges(end) if "index_to" in end and end != start else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Range)
        reach("task.read")
        rows = self._rows(partition)
        skew_ms = bend("task.skew_due_ms", 0)
        if skew_ms:
            rows["due_ms"] += skew_ms
        for at in range(0, max(1, len(rows)), BATCH_ROWS):
            batch = to_batch(rows[at : at + BATCH_ROWS])
            assert batch.schema.equals(ARROW_SCHEMA)
            yield batch

    def _rows(self, partition: Range) -> staging.StagedRows:
        plan, terms = partition.plan, self._terms
        with contextlib.closing(SyncConnection(self._broker, tls=self._tls)) as link:
            view = self._view(link, plan["turn"])
            if partition.kind == KIND_BLOCKS:
                return read_blocks(view, plan["blocks"], write_ms=plan["write_ms"], turn=plan["turn"])
            if partition.kind == KIND_QUEUE:
                return staging.read_queues(
                    view, partition.queues, now_ms=plan["now_ms"], levels_ms=terms["levels_ms"], turn=plan["turn"]
                )
            if partition.kind == KIND_INDEX:
                return staging.read_index(
                    view, partition.first, partition.end, write_ms=plan["write_ms"], turn=plan["turn"]
                )
            return staging.read_walk(
                view,
                partition.first,
                partition.end,
                log_end=plan["timer_log_end"],
                precision_ms=terms["precision_ms"],
                write_ms=plan["write_ms"],
                turn=plan["turn"],
            )

    def _view(self, link: SyncConnection, turn: int) -> ReadView:
        """Return a view of the store: its files if this process sees the broker's own folder, else over the wire."""
        sizes = msgspec.convert(self._terms, StoreSizes)
        root = Path(self._terms["store_path"])
        if not self._over_the_wire and sees_store(root, self._terms["store_identity"]):
            return StoreView(root, sizes)

        def ask(kind: FileKind, name: str, ranges: Ranges) -> Segment:
            ext = headers.texts(epoch=self._terms["epoch"], turn=turn, kind=kind, name=name, token=self._token)
            answer = link.call(Command(code=RequestCode.WMQ_PIPELINE_READ, ext=ext, body=ranges.tobytes()))
            if answer.code not in (ResponseCode.SUCCESS, *UNREADABLE):
                raise Refused(answer)
            reach("task.portion")
            return segment_of(answer)

        return WireView(ask, sizes)
