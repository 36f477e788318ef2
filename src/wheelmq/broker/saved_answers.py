"""Answers that wait until a table of the config folder is on disk."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final

from wheelmq.broker.admission.error_text import rejection_text
from wheelmq.broker.answers import Answer, Deferred, PeerError
from wheelmq.broker.context import Context
from wheelmq.broker.new_queues import QueueUnopened
from wheelmq.broker.request import Request
from wheelmq.broker.state.table_file import WAITERS_MAX, TableFile
from wheelmq.broker.state.topics import TopicUnsaved
from wheelmq.formats.wire.codes import ResponseCode
from wheelmq.system.disk import DiskFull

WAITING_BYTES_MAX: Final = 64 << 20
"""Memory of all sends that wait for their new topic or queue: bodies, properties and headers."""
_REQUEST_BYTES: Final = 1024
"""Memory of a waiting send, apart from its texts and its body."""


def when_saved(table: TableFile, change: Callable[[], object], answer: Callable[[], Answer]) -> Answer:
    """Change a table, and return the answer of `answer` once the change is on disk.

    If the write fails, the answer is the error, and the table takes the change back. Raises PeerError before the change
    if too many answers wait already.
    """
    _check_room(table)
    change()

    def saved(error: OSError | None) -> Answer:
        return answer() if error is None else _fail(table, error)

    waiting = Deferred()
    table.when_saved(waiting.callback(saved))
    return waiting


def when_topic_saved(request: Request, context: Context, serve: Callable[[], Answer]) -> Answer:
    """Serve a request that stores messages, now or once its topic is on disk and its queue has its turn.

    `serve` raises TopicUnsaved or QueueUnopened before it has stored anything, and is called again later. The request
    keeps the time at which it came: its relative delay starts then. Raises PeerError.
    """
    try:
        return serve()
    except TopicUnsaved:
        wait = context.topics.file.when_saved
    except QueueUnopened as unopened:
        queue = unopened.queue

        def wait(done: Callable[[OSError | None], None]) -> None:
            context.new_queues.wait(queue, lambda: done(None))

    table, size = context.topics.file, _memory_bytes(request)
    _check_room(table)
    if context.topics.waiting_bytes + size > WAITING_BYTES_MAX or len(context.new_queues) >= WAITERS_MAX:
        remark = (
            f"{context.topics.waiting_bytes} bytes of sends wait for new topics, and {len(context.new_queues)} sends "
            "for new queues: send again"
        )
        raise PeerError(ResponseCode.SYSTEM_BUSY, remark)
    if request.waits_since_ms is None:
        request.waits_since_ms = context.clock.now_ms()
    request.command.body = bytes(request.command.body)  # the buffer of the connection is reused
    context.topics.waiting_bytes += size

    def waited(error: OSError | None) -> Answer:
        context.topics.waiting_bytes -= size
        return when_topic_saved(request, context, serve) if error is None else _fail(table, error)

    answer = Deferred()
    wait(answer.callback(waited))
    return answer


def check_place(context: Context, topic: str, queue_id: int, *, opens_queue: bool = True) -> None:
    """Check that a message can be stored in a queue now. `opens_queue` is False for a half message.

    Raises TopicUnsaved or QueueUnopened if it must wait, PutFailed if it would wait in vain.
    """
    try:
        context.topics.check_saved(topic)
        if opens_queue:
            context.new_queues.check(topic, queue_id)
    except (TopicUnsaved, QueueUnopened):
        context.admission.check_put()
        raise


def _memory_bytes(request: Request) -> int:
    texts = sum(sys.getsizeof(name) + sys.getsizeof(text) for name, text in request.ext.items())
    return _REQUEST_BYTES + texts + len(request.command.body)


def _check_room(table: TableFile) -> None:
    if not table.has_room:
        remark = f"too many requests wait until {table.path.name} is written: try again"
        raise PeerError(ResponseCode.SYSTEM_BUSY, remark)


def _fail(table: TableFile, error: OSError) -> Answer:
    if isinstance(error, DiskFull):
        raise error
    raise PeerError(ResponseCode.SYSTEM_ERROR, f"{table.path.name} could not be written: {rejection_text(error)}")
