"""CLEAN_EXPIRED_CONSUMEQUEUE, CLEAN_UNUSED_TOPIC, DELETE_EXPIRED_COMMITLOG: expiry, now instead of at its time."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from wheelmq.broker.connection import peer_text
from wheelmq.broker.dispatch import serves
from wheelmq.broker.request import Answer, Request, reply
from wheelmq.formats.wire.codes import RequestCode

if TYPE_CHECKING:
    from wheelmq.broker.broker import Broker

log = logging.getLogger(__name__)


@serves(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)
def clean_queues(request: Request, broker: Broker) -> Answer:
    """Remove what queues and index have of records that are gone from the log."""
    log.info("%s has queues cleaned", peer_text(request.connection))
    broker.expiry.drop_before(broker.store.log.start)
    return reply()


@serves(RequestCode.CLEAN_UNUSED_TOPIC)
def clean_topics(request: Request, broker: Broker) -> Answer:
    """Forget where groups were in topics that were deleted and of which no message is left.

    What a topic got after it was deleted, as what was parked for it, goes with the log's files, as all does; where
    groups were stays as long as that does, so that none comes again when the topic is made anew.
    """
    left = {topic for (topic, _), queue in broker.store.queues.items() if queue.start < queue.end}
    count = broker.consumer_offsets.remove(lambda group, topic: topic not in broker.topics and topic not in left)
    log.info("%s has topics cleaned: %d places of groups are forgotten", peer_text(request.connection), count)
    return reply()


@serves(RequestCode.DELETE_EXPIRED_COMMITLOG)
def delete_log(request: Request, broker: Broker) -> Answer:
    """Remove the log files that are older than the reserved time, whatever the hour."""
    log.info("%s has expired log files removed", peer_text(request.connection))
    broker.expiry.poll(at_once=True)
    return reply()
