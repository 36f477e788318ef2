"""Headers of the requests that upload and commit batches of a sink (WMQ_BATCH_...)."""

from __future__ import annotations

from wheelmq.formats.wire.headers.base import Header, Int32, Int64


class BatchUploadHeader(Header):
    """WMQ_BATCH_UPLOAD: one chunk of the rows that a task attempt has for one topic."""

    job: str
    batch: Int64
    part: Int32
    attempt: Int64
    topic: str
    chunk: Int32


class BatchCommitHeader(Header):
    """WMQ_BATCH_COMMIT: the batch, and the longest wait for its rows."""

    job: str
    batch: Int64
    timeout_ms: Int64 = 0


class BatchLayoutHeader(Header):
    """WMQ_BATCH_LAYOUT: the batch whose layout is saved or returned."""

    job: str
    batch: Int64
