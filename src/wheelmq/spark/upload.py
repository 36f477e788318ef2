"""The last step of a task: upload its rows to the broker, and report the upload to the driver."""

from __future__ import annotations

import contextlib
import logging
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from wheelmq.formats.disk.turn_row import KINDS, TURN_ROW
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.errors import CallError
from wheelmq.net.sync_connection import BoundedConnection, SyncConnection
from wheelmq.spark.columns import PROBLEM_CHARACTERS_MAX
from wheelmq.system.failpoint import reach
from wheelmq.system.tls_client import TlsOptions, client_tls

log = logging.getLogger(__name__)

CHUNK_ROWS: Final = 100_000

SUMMARY: Final = "turn long, kind string, part int, attempt long, chunks int, rows long, crc long"
_SUMMARY_ARROW = pa.schema(
    [
        ("turn", pa.int64()),
        ("kind", pa.string()),
        ("part", pa.int32()),
        ("attempt", pa.int64()),
        ("chunks", pa.int32()),
        ("rows", pa.int64()),
        ("crc", pa.int64()),
    ]
)


GROUP_SUMMARY: Final = f"member int, problem string, {SUMMARY}"
_GROUP_SUMMARY_ARROW = pa.schema([("member", pa.int32()), ("problem", pa.string()), *_SUMMARY_ARROW])


class UploadLease(NamedTuple):
    """A lease as the uploads of a batch need it."""

    broker: str
    epoch: int
    token: str


Upload = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def uploader(broker: str, epoch: int, token: str, tls: TlsOptions | None) -> Upload:
    """Return the function for mapInArrow. It uploads its partition, and yields a summary row for each kind of rows."""

    def upload(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for table in _tables(batches, "kind"):
            with contextlib.closing(SyncConnection(broker, tls=client_tls(tls))) as link:
                summary = _upload_kind(table, link, epoch, token)
            yield _record(summary, _SUMMARY_ARROW)

    return upload


def group_uploader(leases: Mapping[int, UploadLease], wait_s: float, tls: TlsOptions | None) -> Upload:
    """Return the function for mapInArrow in a query group. It uploads the rows of each lease to its own broker.

    The function itself has the tokens of the `leases`, because Spark shows neither its code nor its values. A local
    property would be in clear text in Spark's event log.

    It yields a summary row for each kind of rows. After a problem, the row has the problem, and the task goes on with
    the next lease. It waits for each broker for at most `wait_s` in total.
    """

    def upload(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for rows in _tables(batches, "member"):
            member, turn = rows.column("member")[0].as_py(), rows.column("turn")[0].as_py()
            for summary in _upload_lease(rows, turn, leases.get(member), wait_s, tls):
                yield _record({"problem": None, **summary, "member": member}, _GROUP_SUMMARY_ARROW)

    return upload


def _upload_lease(
    rows: pa.Table, turn: int, lease: UploadLease | None, wait_s: float, tls: TlsOptions | None
) -> Iterator[dict[str, Any]]:
    """Upload the rows of one lease by one connection. Yields a summary for each kind, until there is a problem."""
    nothing: dict[str, Any] = dict.fromkeys(_SUMMARY_ARROW.names, 0) | {"turn": turn, "kind": ""}
    problem = next(iter(rows.column("problem").drop_null().to_pylist()), None)
    if problem is None:
        try:
            if lease is None:
                raise CallError("STALE: the lease is not in the batch")
            with contextlib.closing(BoundedConnection(lease.broker, wait_s, client_tls(tls))) as link:
                for table in _tables(iter(rows.to_batches()), "kind"):
                    yield _upload_kind(table, link, lease.epoch, lease.token)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"[:PROBLEM_CHARACTERS_MAX]
    if problem is not None:
        log.warning("no upload for turn %d: %s", turn, problem)
        yield nothing | {"problem": problem}


def _tables(batches: Iterator[pa.RecordBatch], column: str) -> Iterator[pa.Table]:
    """Yield the rows of each value of a column. A stage may have shuffled rows of several values into one partition."""
    parts = [batch for batch in batches if batch.num_rows]
    if not parts:
        return
    table = pa.Table.from_batches(parts)
    values = table.column(column)
    distinct = values.unique().to_pylist()
    for value in distinct:
        yield table.filter(pc.equal(values, value)) if len(distinct) > 1 else table


def _record(summary: dict[str, Any], schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([summary[field.name]], type=field.type) for field in schema], schema=schema
    )


def _upload_kind(table: pa.Table, link: SyncConnection, epoch: int, token: str) -> dict[str, Any]:
    """Upload the rows of one kind, and return their summary."""
    rows = to_rows(table)
    kind, turn = KINDS[table.column("kind")[0].as_py()], table.column("turn")[0].as_py()
    context = TaskContext.get()
    part, attempt = context.partitionId(), context.taskAttemptId()
    reach("task.upload")
    raw = rows.tobytes()
    place: dict[str, object] = {"turn": turn, "kind": kind, "part": part, "attempt": attempt}
    chunks = send_chunks(link, raw, epoch=epoch, token=token, **place)
    reach("task.uploaded")
    return {**place, "chunks": chunks, "rows": len(rows), "crc": zlib.crc32(raw)}


def to_rows(table: pa.Table) -> np.ndarray[Any, np.dtype[Any]]:
    """Return turn rows for the columns of a partition, sorted by fire time and origin. Raises ValueError for a null."""
    rows = np.zeros(table.num_rows, TURN_ROW)
    for name in TURN_ROW.names or ():
        if name != "order":
            if table.column(name).null_count:
                raise ValueError(f"the column {name} has a null")
            rows[name] = table.column(name).to_numpy()
    rows = rows[np.lexsort((rows["origin"], rows["fire_ms"]))]
    rows["order"] = np.argsort(rows["origin"], kind="stable")
    return rows


def send_chunks(link: SyncConnection, raw: bytes, **place: object) -> int:
    """Upload packed turn rows in chunks that fit a frame. Return the number of chunks. Raises CallError, Refused.

    `place` are the fields that all chunks share: epoch, token, turn, kind, part and attempt.
    """
    size = CHUNK_ROWS * TURN_ROW.itemsize
    chunks = range(0, len(raw), size)
    for chunk, at in enumerate(chunks):
        ext = headers.texts(**place, chunk=chunk)
        link.ask(Command(code=RequestCode.WMQ_PIPELINE_UPLOAD, ext=ext, body=raw[at : at + size]))
    return len(chunks)
