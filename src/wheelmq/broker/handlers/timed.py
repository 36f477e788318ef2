"""Measure the puts of handlers (RocketMQ: StoreStatsService)."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from wheelmq.broker.admission.put_status import PutFailed, PutStatus
from wheelmq.broker.answers import PeerError
from wheelmq.broker.context import Context
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import Message

log = logging.getLogger(__name__)

M = TypeVar("M", Message, list[Message])
R = TypeVar("R")
P = ParamSpec("P")


def timed(put: Callable[Concatenate[Context, M, P], R]) -> Callable[Concatenate[Context, M, P], R]:
    """Return `put`, which then counts its time in the broker's PutTimes."""

    @functools.wraps(put)
    def measured(context: Context, message: M, /, *rest: P.args, **named: P.kwargs) -> R:
        times, monotonic = context.stats.put_times, context.clock.monotonic
        messages = message if isinstance(message, list) else [message]
        body_bytes = sum(len(one.body) for one in messages)
        result = "UNKNOWN_ERROR"
        times.begin()
        begin_s = monotonic()
        try:
            stored = put(context, message, *rest, **named)
            result = "PUT_OK"
            return stored
        except PutFailed as failed:
            result = failed.status
            if failed.status == PutStatus.UNKNOWN_ERROR:
                first = messages[0]
                text = "the failed put: topic=%s queueId=%d messages=%d bodyLength=%d"
                topic = first.properties.get(props.REAL_TOPIC, first.topic)
                log.error(text, topic, first.queue_id, len(messages), body_bytes)
            raise
        except PeerError as rejection:
            result = rejection.remark
            raise
        finally:
            times.note_put(monotonic() - begin_s, body_bytes, result)

    return measured
