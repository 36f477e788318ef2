"""LOCK_BATCH_MQ, UNLOCK_BATCH_MQ: locks that give an orderly consumer exclusive use of its queues."""

from __future__ import annotations

from wheelmq.broker.answers import Answer, reply
from wheelmq.broker.context import Context
from wheelmq.broker.handler_table import serves
from wheelmq.broker.request import Request
from wheelmq.formats.wire import bodies
from wheelmq.formats.wire.codes import RequestCode


@serves(RequestCode.LOCK_BATCH_MQ)
def lock_queues(request: Request, context: Context) -> Answer:
    """Lock queues for a client, or renew its locks. The answer names the queues that it holds."""
    body = bodies.read(request.body, bodies.LockBatch)
    held = context.locks.lock(body.consumer_group, body.mq_set, body.client_id, context.clock.monotonic_ms())
    return reply(body=bodies.write({"lockOKMQSet": held}))


@serves(RequestCode.UNLOCK_BATCH_MQ)
def unlock_queues(request: Request, context: Context) -> Answer:
    """Unlock queues of a client."""
    body = bodies.read(request.body, bodies.LockBatch)
    context.locks.unlock(body.consumer_group, body.mq_set, body.client_id)
    return reply()
