"""Headers of the delay pipeline's own requests (WMQ_PIPELINE_...)."""

from __future__ import annotations

from wheelmq.formats.wire.headers.base import Header, Int32, Int64


class PipelineHeader(Header):
    """WMQ_PIPELINE_OPEN: the name and the id of the pipeline that requests the lease."""

    name: str
    holder_id: str = ""


class TurnHeader(Header):
    """WMQ_PIPELINE_PLAN, _RENEW, _COMMIT: the lease with its token, and the turn."""

    epoch: Int64
    turn: Int64 = 0
    timeout_ms: Int64 = 1000
    token: str = ""


class UploadHeader(Header):
    """WMQ_PIPELINE_UPLOAD: one chunk of one task attempt's rows."""

    epoch: Int64
    turn: Int64
    kind: str
    part: Int32
    attempt: Int64
    chunk: Int64
    token: str = ""


class ReadHeader(Header):
    """WMQ_PIPELINE_READ: the portion of the store that a task of this turn needs. The body holds its ranges."""

    epoch: Int64
    turn: Int64
    kind: str
    name: str = ""
    token: str = ""


class PortionHeader(Header):
    """The answer to WMQ_PIPELINE_READ: the number of ranges in the body, its crc32, and the log's start and end."""

    count: Int64
    crc: Int64
    log_start: Int64
    log_end: Int64
