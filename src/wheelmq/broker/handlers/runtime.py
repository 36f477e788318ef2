"""GET_BROKER_RUNTIME_INFO: every key that mqadmin's brokerStatus prints for an Apache broker.

A round is the queue of each group of requests: its age is the wait (docs/adr/0021-a-queue-is-a-round.md).
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from wheelmq.broker.admission import overload
from wheelmq.broker.answers import Answer, reply
from wheelmq.broker.handler_table import HandlerTable
from wheelmq.broker.metric_sources import MetricSources
from wheelmq.broker.request import Request
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import VERSION
from wheelmq.observe.histogram import Histogram

VERSION_TEXT = "V5_3_3"
_POOLS: Final = {"send": overload.SEND, "pull": overload.PULL, "litePull": overload.LITE_PULL, "query": overload.QUERY}
NO_BUFFERS: Final = (1 << 31) - 1
"""Apache's value for a broker without a pool of buffers in front of the page cache."""
_SPANS: Final = (
    ("[<=0ms]", 0.0),
    ("[0~10ms]", 0.01),
    ("[10~50ms]", 0.05),
    ("[50~100ms]", 0.1),
    ("[100~200ms]", 0.2),
    ("[200~500ms]", 0.5),
    ("[500ms~1s]", 1.0),
    ("[1~2s]", 2.0),
    ("[2~3s]", 3.0),
    ("[3~4s]", 4.0),
    ("[4~5s]", 5.0),
    ("[5~10s]", 10.0),
)
"""Apache's groups of durations, each with its upper bound in seconds. The last group is [10s~]."""

HANDLERS: Final[HandlerTable[[MetricSources]]] = HandlerTable()


@HANDLERS.serves(RequestCode.GET_BROKER_RUNTIME_INFO)
def get_runtime_info(request: Request, sources: MetricSources) -> Answer:
    """Return the figures of the broker."""
    table = {key: str(value) for key, value in runtime_info(sources).items()}
    return reply(body=msgspec.json.encode({"table": dict(sorted(table.items()))}))


def runtime_info(sources: MetricSources) -> dict[str, object]:
    """Return the table by Apache's keys. Times are milliseconds; lags are seconds or messages, as in Apache's."""
    up_ms = sources.clock.now_ms() - sources.boot_ms
    return {
        "brokerActive": "true",
        "brokerVersion": VERSION,
        "brokerVersionDesc": VERSION_TEXT,
        "bootTimestamp": sources.boot_ms,
        "runtime": _duration(up_ms),
        "startAcceptSendRequestTimeStamp": sources.settings.requests.sends_from_ms,
        **_store(sources),
        **_puts(sources),
        **_gets(sources),
        **_pools(sources),
        **_delays(sources),
    }


def _store(sources: MetricSources) -> dict[str, object]:
    store = sources.engine.store
    first = store.log.record_at(store.log.start)
    used = round(store.disk.used_share(store.paths.root), 4)
    total, free = store.disk.space(store.paths.root)
    return {
        "commitLogMinOffset": store.log.start,
        "commitLogMaxOffset": store.log.end,
        "commitLogDirCapacity": f"Total : {_bytes(total)}, Free : {_bytes(free)}.",
        "commitLogDiskRatio": used,
        f"commitLogDiskRatio_{store.log.files.folder}": used,
        "consumeQueueDiskRatio": used,
        "earliestMessageTimeStamp": first.store_ms if first else -1,
        "remainHowManyDataToFlush": _bytes(store.log.end - store.log.synced),
        "remainTransientStoreBufferNumbs": NO_BUFFERS,
        "dispatchBehindBytes": 0,  # the end of each round writes its queue units
        "dispatchMaxBuffer": 0,
        "pageCacheLockTimeMills": 0,  # no write holds a lock
    }


def _puts(sources: MetricSources) -> dict[str, object]:
    stats, puts, times = sources.stats, sources.stats.put_times.puts, sources.engine.store.dispatched_count
    before, today = stats.put_mornings
    return {
        "putTps": stats.put_rate.text(),
        "putMessageTimesTotal": max(1, times),  # at least 1 as in Apache, which divides by it
        "putMessageSizeTotal": stats.put_bytes,
        "putMessageAverageSize": stats.put_bytes / max(1, times),
        "putMessageFailedTimes": stats.failed_puts,
        "putMessageEntireTimeMax": round(puts.greatest * 1000),
        "putMessageDistributeTime": _distribution(puts),
        "putLatency99": f"{puts.percentile(0.99) * 1000:.2f}",
        "putLatency999": f"{puts.percentile(0.999) * 1000:.2f}",
        "msgPutTotalYesterdayMorning": before,
        "msgPutTotalTodayMorning": today,
        "msgPutTotalTodayNow": stats.put_total(),
    }


def _gets(sources: MetricSources) -> dict[str, object]:
    stats = sources.stats
    before, today = stats.get_mornings
    return {
        "getTotalTps": stats.total_rate.text(),
        "getFoundTps": stats.found_rate.text(),
        "getMissTps": stats.missed_rate.text(),
        "getTransferredTps": stats.transferred_rate.text(),
        "getMessageEntireTimeMax": round(stats.put_times.longest_read_s * 1000),
        "msgGetTotalYesterdayMorning": before,
        "msgGetTotalTodayMorning": today,
        "msgGetTotalTodayNow": stats.get_total(),
    }


def _pools(sources: MetricSources) -> dict[str, Any]:
    """Return the queues of request groups, with the capacities in force. POP is not served, so acks have no queue."""
    requests, round_ms = sources.overload, round(1000 * sources.ticks.elapsed_s)
    found: dict[str, Any] = {
        "EndTransactionQueueSize": requests.size(overload.ENDS),
        "EndTransactionThreadPoolQueueCapacity": requests.capacity(overload.ENDS),
        **{f"ackThreadPoolQueue{figure}": 0 for figure in ("Size", "Capacity", "HeadWaitTimeMills")},
    }
    for pool, group in _POOLS.items():
        size = requests.size(group)
        found[f"{pool}ThreadPoolQueueSize"] = size
        found[f"{pool}ThreadPoolQueueCapacity"] = requests.capacity(group)
        found[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = round_ms if size else 0
    return found


def _delays(sources: MetricSources) -> dict[str, object]:
    timer = sources.engine.timer
    check = timer.timercheck(sources.releaser.earliest_in_hand_ms())
    return {
        **{f"scheduleMessageOffset_{level}": f"{first},{end}" for level, first, end in timer.pending.levels.spans()},
        "timerReadBehind": max(0, sources.clock.now_ms() - check.last_read_ms) // 1000,
        "timerOffsetBehind": timer.queue.end - timer.indexed_to,
        "timerCongestNum": int(timer.pending.counts.by_queue.sum()),
        "timerEnqueueTps": f"{sources.timer_rates.indexed.per_second(60):.6g}",
        "timerDequeueTps": f"{sources.timer_rates.released.per_second(60):.6g}",
    }


def _distribution(puts: Histogram) -> str:
    found, before = [], 0
    for name, bound_s in _SPANS:
        upto = puts.count_to(bound_s)
        found.append(f"{name}:{upto - before}")
        before = upto
    return " ".join([*found, f"[10s~]:{puts.count - before}"]) + " "


def _duration(ms: int) -> str:
    seconds = ms // 1000
    days, hours, minutes = seconds // 86_400, seconds // 3600 % 24, seconds // 60 % 60
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds % 60} seconds ]"


def _bytes(count: int) -> str:
    if count < 1024:
        return f"{count} B"
    exponent = (count.bit_length() - 1) // 10
    return f"{count / (1 << 10 * exponent):.1f} {'KMGTPE'[exponent - 1]}iB"
