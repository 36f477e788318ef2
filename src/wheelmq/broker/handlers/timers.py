"""GET_TIMER_CHECK_POINT, GET_TIMER_METRICS, and our listing of what is pending."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from wheelmq.broker.dispatch import serves
from wheelmq.broker.request import Answer, Request, reply
from wheelmq.delay.pending import describe
from wheelmq.formats.units import LogPosition, QueueOffset
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.headers import ListTimersHeader

if TYPE_CHECKING:
    from wheelmq.broker.broker import Broker

LOOKED_AT_MAX = 5000
"""Queue offsets that one request looks at: a listing of millions goes in many requests, none of them long."""


@serves(RequestCode.GET_TIMER_CHECK_POINT)
def get_check_point(request: Request, broker: Broker) -> Answer:
    """Apache's timercheck, as it stands now."""
    return reply(body=broker.timer.check(broker.releaser.earliest_in_hand_ms()).pack())


@serves(RequestCode.GET_TIMER_METRICS)
def get_metrics(request: Request, broker: Broker) -> Answer:
    """Messages pending, by real topic (RocketMQ: TimerMetrics)."""
    now_ms = broker.clock.now_ms()
    counts = pending_by_topic(broker)
    body = {
        "dataVersion": {"counter": broker.timer.turns.turn, "stateVersion": 0, "timestamp": now_ms},
        "timingCount": {topic: {"count": count, "timeStamp": now_ms} for topic, count in counts.items()},
    }
    return reply(body=msgspec.json.encode(body))


def pending_by_topic(broker: Broker) -> dict[str, int]:
    """How many messages wait for each topic."""
    counts: Counter[str] = Counter()
    for row in np.flatnonzero(broker.timer.pending_by_queue).tolist():
        counts[broker.store.queues.key(row)[0]] += int(broker.timer.pending_by_queue[row])
    return dict(counts)


@serves(RequestCode.WMQ_LIST_TIMERS)
def list_timers(request: Request, broker: Broker) -> Answer:
    """Pending messages from a queue offset on, one JSON object a line; `nextQueueOffset` says where to go on."""
    header = request.header(ListTimersHeader)
    timer = broker.timer
    offset = max(header.queue_offset, timer.queue.start, timer.done.floor)
    stop = min(offset + LOOKED_AT_MAX, timer.queue.end)
    lines: list[bytes] = []
    while offset < stop and len(lines) < header.count:
        if offset not in timer.done:
            unit = timer.queue.read(QueueOffset(offset), 1)[0]
            record = broker.store.log.record_at(LogPosition(int(unit["position"])))
            if record is not None:
                pending = describe(record, timer.state_of(offset))
                if header.topic in (None, pending.topic):
                    lines.append(msgspec.json.encode(pending))
        offset += 1
    return reply(body=b"\n".join(lines), nextQueueOffset=offset, endQueueOffset=timer.queue.end)
