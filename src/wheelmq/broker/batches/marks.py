"""The marks of batches in the log, from which the broker knows how many rows of a batch the log has."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np

from wheelmq.formats import names
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.batch import BatchId, BatchMark, encode_key, key_hashes
from wheelmq.formats.disk.message import Message, Record
from wheelmq.formats.java import tag_code
from wheelmq.formats.units import LogPosition
from wheelmq.store.store import Store

QUEUE_ID = 0


class BatchProgress(NamedTuple):
    """The rows of a batch in the log, and the position after the last one."""

    done: int
    rows: int
    end: LogPosition


def mark_message(mark: BatchMark) -> Message:
    key = BatchId(mark.job, mark.batch).key
    properties = {props.TAGS: key, props.UNIQ_KEY: f"{key}-{mark.first}"}
    return Message(names.BATCH_TOPIC, QUEUE_ID, msgspec.json.encode(mark), properties)


def find_progress(store: Store, batch: BatchId) -> BatchProgress | None:
    """Return the progress of a batch by its last mark in the queue of marks; None without any.

    A mark is written after all rows before it, so the last one decides.
    """
    queue = store.queues.find(names.BATCH_TOPIC, QUEUE_ID)
    if queue is None:
        return None
    code, positions = tag_code(batch.key), list[int]()
    for units in queue.chunks():
        positions += units["position"][np.flatnonzero(units["tag_code"] == code)].tolist()
    for position in reversed(positions):
        record = store.log.record_at(LogPosition(position))
        mark = None if record is None else _mark_of(record, batch)
        if record is not None and mark is not None:
            return _progress_at(store, record, mark)
    return None


def _mark_of(record: Record, batch: BatchId) -> BatchMark | None:
    if record.message.topic != names.BATCH_TOPIC:
        return None
    try:
        mark = msgspec.json.decode(record.message.body, type=BatchMark)
    except msgspec.DecodeError:
        return None
    return mark if BatchId(mark.job, mark.batch) == batch else None


def _progress_at(store: Store, record: Record, mark: BatchMark) -> BatchProgress:
    """Return the progress by one mark: its rows directly follow it in the log, in one file."""
    end, done = LogPosition(record.position + record.size), mark.first
    for key in mark.keys:
        row = store.log.record_at(end)
        if row is None or key_hashes([encode_key(row.message.properties.get(props.UNIQ_KEY, ""))]) != (key,):
            break
        end, done = LogPosition(row.position + row.size), done + 1
    return BatchProgress(done, mark.rows, end)
