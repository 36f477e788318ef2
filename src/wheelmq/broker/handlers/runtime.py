"""GET_BROKER_RUNTIME_INFO: the keys that mqadmin's clusterList and brokerStatus read, and the timer's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from wheelmq.broker.dispatch import serves
from wheelmq.broker.request import Answer, Request, reply
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import VERSION

if TYPE_CHECKING:
    from wheelmq.broker.broker import Broker

VERSION_TEXT = "V5_3_3"
_POOLS = ("send", "pull", "ack")


@serves(RequestCode.GET_BROKER_RUNTIME_INFO)
def get_runtime_info(request: Request, broker: Broker) -> Answer:
    """What the broker is doing."""
    table = {key: str(value) for key, value in runtime_info(broker).items()}
    return reply(body=msgspec.json.encode({"table": dict(sorted(table.items()))}))


def runtime_info(broker: Broker) -> dict[str, object]:
    """The table, by Apache's keys; times in milliseconds, behind in seconds or messages as Apache says it."""
    now_ms = broker.clock.now_ms()
    store, timer = broker.store, broker.timer
    check = timer.check(broker.releaser.earliest_in_hand_ms())
    first = store.log.record_at(store.log.start)
    return {
        "brokerActive": "true",
        "brokerVersion": VERSION,
        "brokerVersionDesc": VERSION_TEXT,
        "bootTimestamp": broker.boot_ms,
        "runtime": f"[ {(now_ms - broker.boot_ms) // 1000} seconds ]",
        "startAcceptSendRequestTimeStamp": 0,
        "commitLogMinOffset": store.log.start,
        "commitLogMaxOffset": store.log.end,
        "commitLogDiskRatio": round(broker.disk.used_share(store.paths.root), 4),
        "remainHowManyDataToFlush": f"{store.log.end - store.log.synced} Byte",
        "dispatchBehindBytes": 0,  # queue units are written in the tick that appends
        "earliestMessageTimeStamp": first.store_ms if first else -1,
        "pageCacheLockTimeMills": 0,  # nothing holds a lock while it writes
        "putTps": broker.put_rate.text(),
        "getTransferredTps": broker.get_rate.text(),
        **{f"{pool}ThreadPoolQueueSize": 0 for pool in _POOLS},  # requests are served as they are read
        **{f"{pool}ThreadPoolQueueHeadWaitTimeMills": 0 for pool in _POOLS},
        **{f"scheduleMessageOffset_{level}": f"{first},{end}" for level, first, end in timer.level_spans()},
        "timerReadBehind": max(0, now_ms - check.last_read_ms) // 1000,
        "timerOffsetBehind": timer.queue.end - timer.indexed_to,
        "timerCongestNum": int(timer.pending_by_queue.sum()),
        "timerEnqueueTps": f"{broker.enqueue_rate.per_second(60):.6g}",
        "timerDequeueTps": f"{broker.dequeue_rate.per_second(60):.6g}",
    }
