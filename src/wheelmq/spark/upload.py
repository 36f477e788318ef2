"""The last step of a task: upload its rows to the broker, and report the upload to the driver."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from wheelmq.formats.disk.turn_row import KINDS, TURN_ROW
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.sync_connection import SyncConnection
from wheelmq.system.failpoint import reach
from wheelmq.system.tls_client import TlsOptions, client_tls

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


def uploader(
    broker: str, epoch: int, token: str, tls: TlsOptions | None
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function for mapInArrow. It uploads its partition, and yields a summary row for each kind of rows."""

    def upload(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        parts = [batch for batch in batches if batch.num_rows]
        if not parts:
            return
        table = pa.Table.from_batches(parts)
        kinds = table.column("kind")
        for kind in kinds.unique().to_pylist():  # a stage may have shuffled rows of several kinds into one partition
            mine = table.filter(pc.equal(kinds, kind)) if len(kinds.unique()) > 1 else table
            yield _upload_kind(mine, KINDS[kind], broker, epoch, token, tls)

    return upload


def _upload_kind(
    table: pa.Table, kind: str, broker: str, epoch: int, token: str, tls: TlsOptions | None
) -> pa.RecordBatch:
    """Upload the rows of one kind, and return their summary."""
    rows = to_rows(table)
    turn = table.column("turn")[0].as_py()
    context = TaskContext.get()
    part, attempt = context.partitionId(), context.taskAttemptId()
    reach("task.upload")
    raw = rows.tobytes()
    link = SyncConnection(broker, tls=client_tls(tls))
    place: dict[str, object] = {"turn": turn, "kind": kind, "part": part, "attempt": attempt}
    chunks = send_chunks(link, raw, epoch=epoch, token=token, **place)
    reach("task.uploaded")
    summary = [[turn], [kind], [part], [attempt], [chunks], [len(rows)], [zlib.crc32(raw)]]
    return pa.RecordBatch.from_arrays(
        [pa.array(value, type=field.type) for value, field in zip(summary, _SUMMARY_ARROW, strict=True)],
        schema=_SUMMARY_ARROW,
    )


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
    link.close()
    return len(chunks)
