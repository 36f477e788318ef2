"""CLEAN_EXPIRED_CONSUMEQUEUE, CLEAN_UNUSED_TOPIC, DELETE_EXPIRED_COMMITLOG: expiry at once instead of at its hour."""

from __future__ import annotations

import logging
from typing import Final

from wheelmq.broker.answers import Answer, reply
from wheelmq.broker.connection import peer_text
from wheelmq.broker.context import Context
from wheelmq.broker.handler_table import HandlerTable, serves
from wheelmq.broker.request import Request
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.store.expiry import Expiry
from wheelmq.store.store import Store

log = logging.getLogger(__name__)

HANDLERS: Final[HandlerTable[[Store, Expiry]]] = HandlerTable()


@HANDLERS.serves(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)
def clean_queues(request: Request, store: Store, expiry: Expiry) -> Answer:
    """Delete the queue and index files of records that the log no longer has."""
    log.info("%s cleans queues", peer_text(request.connection))
    expiry.drop_before(store.log.start)
    return reply()


@serves(RequestCode.CLEAN_UNUSED_TOPIC)
def clean_topics(request: Request, context: Context) -> Answer:
    """Delete the offsets of groups in deleted topics of which no message is left.

    A deleted topic may still get messages, such as parked ones. The offsets stay until the log has none, so that no
    message is delivered again if the topic is created again.
    """
    left = {topic for (topic, _), queue in context.store.queues.items() if queue.start < queue.end}
    count = context.consumer_offsets.remove(lambda group, topic: topic not in context.topics and topic not in left)
    log.info("%s cleans topics: %d offsets of groups deleted", peer_text(request.connection), count)
    return reply()


@HANDLERS.serves(RequestCode.DELETE_EXPIRED_COMMITLOG)
def delete_log(request: Request, store: Store, expiry: Expiry) -> Answer:
    """Delete the log files that are older than the reserved time, at any hour."""
    log.info("%s deletes expired log files", peer_text(request.connection))
    expiry.poll(at_once=True)
    return reply()
