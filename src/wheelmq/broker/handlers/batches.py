"""WMQ_BATCH_UPLOAD, _COMMIT, _LAYOUT: the batches of a sink that delivers each row once (docs/formats/batches.md)."""

from __future__ import annotations

from typing import Any, Final

from wheelmq.broker.answers import Answer, PeerError, reply, run_on_worker
from wheelmq.broker.batches.batches import Batch, Batches, Phase
from wheelmq.broker.batches.cursor import TopicChunk
from wheelmq.broker.batches.layouts import LayoutOutdated
from wheelmq.broker.context import Context
from wheelmq.broker.handler_table import HandlerTable
from wheelmq.broker.puts import MARK_ROOM_BYTES, check_writable
from wheelmq.broker.request import Request
from wheelmq.formats import names
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.batch import (
    CHUNK_BYTES_MAX,
    CHUNK_ROWS_MAX,
    JOB_CHARS_MAX,
    BatchDecision,
    BatchId,
    BatchLayout,
    BatchPart,
    RowsWrong,
    UploadedChunk,
    UploadedRow,
    rows_of,
)
from wheelmq.formats.java import java_boolean
from wheelmq.formats.wire import bodies
from wheelmq.formats.wire.bodies import PERM_WRITE
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.headers import BatchCommitHeader, BatchLayoutHeader, BatchUploadHeader

PARTS_MAX: Final = 100_000
CHUNKS_MAX: Final = 100_000
WAIT_MS_MAX: Final = 30_000
LAYOUT_BYTES_MAX: Final = 1 << 20
_UNFIT: Final = (props.TIMER_DEL_UNIQKEY, props.DELAY_IN_SECONDS, props.INNER_NUM)
"""Properties of cancels, blocks and inner batches."""

HANDLERS: Final[HandlerTable[[Context, Batches]]] = HandlerTable()


@HANDLERS.serves(RequestCode.WMQ_BATCH_UPLOAD)
def upload(request: Request, context: Context, batches: Batches) -> Answer:
    """Check the rows of a chunk and save them. The answer comes once they are on disk."""
    _check_open(context)
    header = request.header(BatchUploadHeader)
    batch = _batch(header.job, header.batch)
    if min(header.part, header.attempt, header.chunk) < 0 or header.chunk >= CHUNKS_MAX:
        raise PeerError(ResponseCode.INVALID_PARAMETER, "part, attempt or chunk is out of range")
    if len(request.body) > CHUNK_BYTES_MAX:
        raise PeerError(ResponseCode.MESSAGE_ILLEGAL, f"a chunk has at most {CHUNK_BYTES_MAX} bytes")
    chunk = UploadedChunk(context.clock.now_ms(), request.connection.peer, request.body)
    _check_rows(context, batches, header.topic, chunk)
    part = BatchPart(part=header.part, attempt=header.attempt, topic=header.topic, chunks=0, rows=0, crc=0)
    job = batches.save_job(batch, part, header.chunk, chunk)
    if job is None:
        return reply()

    def make(result: Any) -> Command:
        if isinstance(result, Exception):
            return reply(ResponseCode.SYSTEM_ERROR, f"the chunk was not saved: {result}")
        return reply()

    answer = run_on_worker(context.workers.background, job, make)
    timeout_ms = context.settings.requests.response_timeout_ms
    return context.holds.with_deadline(request, answer, timeout_ms, _late)


@HANDLERS.serves(RequestCode.WMQ_BATCH_COMMIT)
def commit(request: Request, context: Context, batches: Batches) -> Answer:
    """Append the rows of the named uploads, once. The answer comes once they are on disk, or at the timeout."""
    _check_open(context)
    header = request.header(BatchCommitHeader)
    batch = _batch(header.job, header.batch)
    parts = tuple(bodies.read(request.body, bodies.BatchParts).parts)
    _check_parts(parts)
    batches.commit(BatchDecision(job=header.job, batch=header.batch, parts=parts))

    def attempt(last: bool) -> Command | None:
        found = batches.find(batch)
        if found is None:
            return reply(ResponseCode.SYSTEM_BUSY, "the broker is no longer the master of the batch: commit it again")
        if isinstance(found, int):
            return reply(rows=found)
        if found.phase is Phase.REJECTED:
            batches.forget_rejected(batch)
            return reply(ResponseCode.INVALID_PARAMETER, found.problem)
        return _unfinished(found) if last else None

    now = attempt(False)
    if now is not None:
        return now
    return context.holds.wait(request, batch, min(max(0, header.timeout_ms), WAIT_MS_MAX), attempt)


@HANDLERS.serves(RequestCode.WMQ_BATCH_LAYOUT)
def layout(request: Request, context: Context, batches: Batches) -> Answer:
    """Save the layout of a batch, if the body has one, and return the saved one. The first layout counts.

    `rows` is the number of rows of a batch that the broker has decided.
    """
    _check_open(context)
    header = request.header(BatchLayoutHeader)
    batch = _batch(header.job, header.batch)
    topics = bodies.read(request.body, bodies.BatchQueues).topics
    if not topics:
        found = batches.layouts.find(batch)
        return reply(body=bodies.write(bodies.BatchQueues(topics={} if found is None else found.topics)))
    if len(request.body) > LAYOUT_BYTES_MAX:
        raise PeerError(ResponseCode.INVALID_PARAMETER, f"a layout has at most {LAYOUT_BYTES_MAX} bytes")
    for topic in topics:
        problem = names.topic_problem(topic)
        if problem is not None:
            raise PeerError(ResponseCode.INVALID_PARAMETER, problem)
    asked = BatchLayout(job=header.job, batch=header.batch, topics=topics)
    rows = batches.known_rows(batch) if batches.layouts.find(batch) else None
    try:
        saved, job = batches.layouts.save_job(asked)
    except LayoutOutdated as error:
        raise PeerError(ResponseCode.INVALID_PARAMETER, str(error)) from None

    def make(result: Any) -> Command:
        if isinstance(result, Exception):
            return reply(ResponseCode.SYSTEM_ERROR, f"the layout was not saved: {result}")
        return reply(body=bodies.write(bodies.BatchQueues(topics=saved.topics)), rows=rows)

    answer = run_on_worker(context.workers.background, job, make)
    return context.holds.with_deadline(request, answer, context.settings.requests.response_timeout_ms, _late)


def _unfinished(found: Batch) -> Command:
    problem = f": {found.problem}" if found.problem else ""
    remark = f"{found.done or 0} of {found.decision.rows} rows are in the log{problem}. Commit the batch again"
    return reply(ResponseCode.SYSTEM_BUSY, remark, rows=found.done or 0)


def _check_open(context: Context) -> None:
    if not context.role.is_master:
        raise PeerError(ResponseCode.SLAVE_NOT_AVAILABLE, context.role.slave_text)
    check_writable(context.settings)
    context.admission.check_open()


def _batch(job: str, number: int) -> BatchId:
    if not job or len(job) > JOB_CHARS_MAX or number < 0:
        raise PeerError(
            ResponseCode.INVALID_PARAMETER, f"a job has 1 to {JOB_CHARS_MAX} characters, and a batch a number from 0 on"
        )
    return BatchId(job, number)


def _check_parts(parts: tuple[BatchPart, ...]) -> None:
    if len(parts) > PARTS_MAX:
        raise PeerError(ResponseCode.INVALID_PARAMETER, f"a commit has at most {PARTS_MAX} parts")
    for part in parts:
        problem = names.topic_problem(part.topic)
        if problem is None and (min(part.part, part.attempt, part.chunks, part.rows) < 0 or part.chunks > CHUNKS_MAX):
            problem = "a number is out of range"
        if problem is not None:
            raise PeerError(ResponseCode.INVALID_PARAMETER, f"part {part.part}: {problem}")
    if len({(part.part, part.topic) for part in parts}) < len(parts):
        raise PeerError(ResponseCode.INVALID_PARAMETER, "a commit names one attempt for each part and topic")


def _check_rows(context: Context, batches: Batches, topic: str, chunk: UploadedChunk) -> None:
    """Check that each row can be appended later. Raises PeerError, PutFailed."""
    problem = names.topic_problem(topic)
    if problem is not None:
        raise PeerError(ResponseCode.INVALID_PARAMETER, problem)
    config = context.topics.get(topic)
    if topic in names.NOT_FOR_SENDING or topic.startswith("%"):
        raise PeerError(ResponseCode.NO_PERMISSION, f"rows of a batch cannot be sent to {topic}")
    if config is None:
        raise PeerError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!")
    if not config.perm & PERM_WRITE:
        raise PeerError(ResponseCode.NO_PERMISSION, f"the topic[{topic}] sending message is forbidden")
    found = TopicChunk(topic, chunk)
    if batches.fast is not None and batches.fast.accepts(found, config.write_queue_nums, MARK_ROOM_BYTES):
        context.admission.check_put()
        return
    try:
        rows = rows_of(chunk.rows)
    except RowsWrong as error:
        raise PeerError(ResponseCode.INVALID_PARAMETER, str(error)) from None
    if len(rows) > CHUNK_ROWS_MAX:
        raise PeerError(ResponseCode.MESSAGE_ILLEGAL, f"a chunk has at most {CHUNK_ROWS_MAX} rows")
    for i, row in enumerate(rows):
        problem = _row_problem(context, row, config.write_queue_nums)
        if problem is not None:
            raise PeerError(ResponseCode.MESSAGE_ILLEGAL, f"row {i}: {problem}")
        context.puts.check_marked(batches.message(topic, chunk, row))


def _row_problem(context: Context, row: UploadedRow, queues: int) -> str | None:
    if not 0 <= row.queue_id < queues:
        return f"queue {row.queue_id} does not exist: the topic has {queues}"
    body_bytes_max = context.settings.requests.body_bytes_max
    if not 0 < len(row.body) <= body_bytes_max:
        return f"a body of {len(row.body)} bytes: it has 1 to {body_bytes_max} (maxMessageSize)"
    properties = props.parse(row.properties.decode("utf-8", "replace"))
    if not properties.get(props.UNIQ_KEY):
        return "the property UNIQ_KEY is missing"
    if java_boolean(properties.get(props.TRAN_MSG)) or any(name in properties for name in _UNFIT):
        return "a row cannot be a transaction, a cancel, a batch, or a message with delayInSeconds"
    return None


def _late() -> Command:
    return reply(ResponseCode.SYSTEM_BUSY, "the disk did not save the upload in time")
