"""Read the rows of a range of a plan, in a task: from the files of the store, or over the wire."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

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
from wheelmq.spark.columns import ARROW_SCHEMA, to_batch
from wheelmq.spark.ranges import Range
from wheelmq.system.failpoint import bend, reach

BATCH_ROWS = 50_000


def batches_of(rows: staging.StagedRows) -> Iterator[pa.RecordBatch]:
    """Yield staged rows as batches, at least one."""
    skew_ms = bend("task.skew_due_ms", 0)
    if skew_ms:
        rows["due_ms"] += skew_ms
    for at in range(0, max(1, len(rows)), BATCH_ROWS):
        batch = to_batch(rows[at : at + BATCH_ROWS])
        assert batch.schema.equals(ARROW_SCHEMA)
        yield batch


def read_range(
    part: Range, terms: dict[str, Any], token: str, link: SyncConnection, *, over_the_wire: bool
) -> staging.StagedRows:
    """Return the rows of a range under a lease. Raises StoreUnreadable, CallError, Refused."""
    plan = part.plan
    view = _view(link, terms, token, plan["turn"], over_the_wire=over_the_wire)
    if part.kind == KIND_BLOCKS:
        return read_blocks(view, plan["blocks"], write_ms=plan["write_ms"], turn=plan["turn"])
    if part.kind == KIND_QUEUE:
        return staging.read_queues(
            view, part.queues, now_ms=plan["now_ms"], levels_ms=terms["levels_ms"], turn=plan["turn"]
        )
    if part.kind == KIND_INDEX:
        return staging.read_index(view, part.first, part.end, write_ms=plan["write_ms"], turn=plan["turn"])
    return staging.read_walk(
        view,
        part.first,
        part.end,
        log_end=plan["timer_log_end"],
        precision_ms=terms["precision_ms"],
        write_ms=plan["write_ms"],
        turn=plan["turn"],
    )


def _view(link: SyncConnection, terms: dict[str, Any], token: str, turn: int, *, over_the_wire: bool) -> ReadView:
    """Return a view of the store: its files if this process sees the broker's own folder, else over the wire."""
    sizes = msgspec.convert(terms, StoreSizes)
    root = Path(terms["store_path"])
    if not over_the_wire and sees_store(root, terms["store_identity"]):
        return StoreView(root, sizes)

    def ask(kind: FileKind, name: str, ranges: Ranges) -> Segment:
        ext = headers.texts(epoch=terms["epoch"], turn=turn, kind=kind, name=name, token=token)
        answer = link.call(Command(code=RequestCode.WMQ_PIPELINE_READ, ext=ext, body=ranges.tobytes()))
        if answer.code not in (ResponseCode.SUCCESS, *UNREADABLE):
            raise Refused(answer)
        reach("task.portion")
        return segment_of(answer)

    return WireView(ask, sizes)
