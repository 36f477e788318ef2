"""Headers of the delay pipeline's own requests (WMQ_PIPELINE_...)."""

from __future__ import annotations

from wheelmq.formats.wire.headers.base import Header, Int32, Int64


class PipelineHeader(Header):
    """WMQ_PIPELINE_OPEN: who asks for the lease."""

    name: str
    holder_id: str = ""


class TurnHeader(Header):
    """WMQ_PIPELINE_PLAN, _RENEW, _COMMIT: which lease, and which turn."""

    epoch: Int64
    turn: Int64 = 0
    timeout_ms: Int64 = 1000


class UploadHeader(Header):
    """WMQ_PIPELINE_UPLOAD: one chunk of one task attempt's rows."""

    epoch: Int64
    turn: Int64
    kind: str
    part: Int32
    attempt: Int64
    chunk: Int64


class ReadHeader(Header):
    """WMQ_PIPELINE_READ: which portion of the store a task of this turn asks for; its ranges are the body."""

    epoch: Int64
    turn: Int64
    kind: str
    name: str = ""


class PortionHeader(Header):
    """What answers WMQ_PIPELINE_READ: ranges that the body covers, its crc32, and where log files begin and end."""

    count: Int64
    crc: Int64
    log_start: Int64
    log_end: Int64
