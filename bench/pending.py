"""10 million timers pending, 100 B each, due 2 to 14 hours ahead: memory, restarts, other timers, listings.

They are sent as raw frames, as fast as the broker accepts them, in slices that are due at different hours. When all
are indexed, 1,000 timers/s with delays of 1 and 8 s are sent for some seconds. Then pages of the listing of `wheelmq
timers` and its counts per minute are requested. After that the broker alone is stopped and started, then killed under
load and started. A start is complete when the broker listens and reports that all timers are pending.

Filling takes most of the time: a round takes about five minutes. A full store has about 580 bytes per timer. With too
little room on the disk there are fewer timers. The benchmark measures WheelMQ alone, unless --only names Apache,
which has no listing.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from typing import Final

import msgspec

from bench.deliveries import read
from bench.generator import generate
from bench.machine import memory_mib
from bench.rawload import Load
from bench.recovery import Broker, Ours, Theirs, running
from bench.report import Figures, Metric, Report, measure, parse, parser, spread, tell
from bench.room import GB, free_bytes, make_room
from bench.targets import Target, WheelMQ
from wheelmq.cli.timers import MINUTE_MS, NEVER_MS, count, list_soonest
from wheelmq.formats.disk.origin import timer_origin
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.timer_requests import PAGE_COUNT, TimerQuery
from wheelmq.net.sync_connection import SyncConnection

TOPIC: Final = "Pending"
SHORT_TOPIC: Final = "Short"
COUNT: Final = 10_000_000
COUNT_SHORT: Final = 200_000
COUNT_LEAST: Final = 100_000
BODY_BYTES: Final = 100
BYTES_EACH: Final = 580
"""Bytes of record, queue unit, timer log unit and index entry."""
AHEAD_BYTES: Final = 3 << 29
"""Bytes of files created ahead, with log files of a quarter of a GiB, and of the message index."""
LOG_FILE_BYTES: Final = 256 << 20

HOUR_MS: Final = 3_600_000
SLICES: Final = 12
ORDINAL: Final = "twelfth"
FIRST_MS: Final = 2 * HOUR_MS
PREFIX: Final = "00000000000000BE9E0D{:02X}"
FILL_DEADLINE_S: Final = 1800.0
INDEX_DEADLINE_S: Final = 900.0
GROWTH_MIB_MAX: Final = 40
"""Two million messages that wait for indexing take 32 MiB, which the heap keeps.

4 bytes per pending message add 35 MiB.
"""

SETTLE_S: Final = 5.0
LOOK_S: Final = 0.5

SHORT_PER_S: Final = 1000.0
SHORT_DELAYS_MS: Final = (1000, 8000)
"""The broker itself arms the first, the pipeline the second."""
SHORT_S: Final = 20.0
SHORT_OUT_S: Final = 60.0
PAGES: Final = 20
SOONEST: Final = 5
STARTS: Final = 2
"""Starts of each kind. Their median counts."""
KILL_AFTER_S: Final = 2.0
READY_DEADLINE_S: Final = 300.0
READY_LOOK_S: Final = 0.02

METRICS: Final = [
    Metric("timers", "timers pending"),
    Metric("refused", "not taken"),
    Metric("in_per_s", "in, timers/s"),
    Metric("index_s", "last one in to all indexed, s"),
    Metric("before_mib", "broker's anonymous memory with none, MiB"),
    Metric("first_mib", f"with a {ORDINAL} of them, MiB"),
    Metric("after_mib", "with all of them, MiB"),
    Metric("growth_mib", f"more with all than with a {ORDINAL}, MiB", at_most=GROWTH_MIB_MAX),
    Metric("restarted_mib", "after a start with all of them, MiB"),
    Metric("stop_s", "start after a stop, s", at_most=5),
    Metric("kill_s", "start after kill -9 under load, s", at_most=10),
    Metric("p50_ms", f"{SHORT_PER_S:,.0f}/s beside them: lateness in the topic p50, ms"),
    Metric("p99_ms", f"{SHORT_PER_S:,.0f}/s beside them: lateness in the topic p99, ms", at_most=20),
    Metric("max_ms", f"{SHORT_PER_S:,.0f}/s beside them: lateness in the topic max, ms"),
    Metric("early", "early", at_most=0),
    Metric("lost", "lost of those beside them", at_most=0),
    Metric("page_ms", f"a page of the listing ({PAGE_COUNT}), ms"),
    Metric("page_max_ms", "the slowest page, ms"),
    Metric("count_s", "counts per minute of all, s", at_most=1),
    Metric("soonest_s", f"the {SOONEST} that are due first, s", at_most=1),
    Metric("log_gb", "log, GB"),
]


def main(argv: Sequence[str] | None = None) -> int:
    made = parser("pending", __doc__, rounds=1)
    made.add_argument("--count", type=int, help=f"timers ({COUNT:,}; {COUNT_SHORT:,} with --short)")
    options = parse(made, argv)
    options.only = options.only or "WheelMQ"
    report = Report("", METRICS)
    number = _as_many_as_fit(report, options, options.count or (COUNT_SHORT if options.short else COUNT))
    report.title = f"{number:,} timers of {BODY_BYTES} B pending, due 2 to 14 hours ahead"
    ours, theirs = {"log_file_bytes": LOG_FILE_BYTES}, {"mappedFileSizeCommitLog": LOG_FILE_BYTES}
    measure(report, options, lambda target: _pending(target, number), settings=ours, apache=theirs)
    return report.finish(options.json)


def _as_many_as_fit(report: Report, options: argparse.Namespace, wanted: int) -> int:
    room = int((free_bytes(options.home) - AHEAD_BYTES) / BYTES_EACH)
    number = wanted if room >= wanted else max(COUNT_LEAST, room // COUNT_LEAST * COUNT_LEAST)
    make_room(report, options, number * BYTES_EACH, AHEAD_BYTES)
    if number < wanted:
        free = free_bytes(options.home) / GB
        report.notes.append(f"{number:,} and not {wanted:,}: {free:.1f} GB of the disk are free for them (--home)")
        tell(report.notes[-1])
    return number


def _pending(target: Target, number: int) -> Figures:
    _short(target, SHORT_S / 4)  # code is compiled, and memory reaches its normal size
    before_mib = _anonymous(target)
    figures = _fill(target, number) | {"before_mib": before_mib}
    number = int(figures["timers"])
    time.sleep(SETTLE_S)
    figures["after_mib"] = _anonymous(target)
    figures["growth_mib"] = figures["after_mib"] - figures["first_mib"]
    since_ms = int(time.time() * 1000)
    sent = _short(target, SHORT_S)
    if isinstance(target, WheelMQ):
        figures |= _listing(target, number)
    figures["log_gb"] = target.log_bytes() / GB
    target.end()
    figures |= _beside(target, sent, since_ms)
    return figures | _starts(_alone(target), number)


def _anonymous(target: Target) -> float:
    return memory_mib(target.pids["broker"])["anonymous"]


def _fill(target: Target, number: int) -> Figures:
    """Send all timers, and wait until they are indexed.

    The first slice takes the memory that sending and turns at full speed need, whatever the number of timers. Further
    growth is for the timers.
    """
    began_s, good, sending_s, first_mib = time.monotonic(), 0, 0.0, 0.0
    for i in range(SLICES):
        delays_ms = (FIRST_MS + i * HOUR_MS, FIRST_MS + i * HOUR_MS + HOUR_MS // 2)
        messages = number * (i + 1) // SLICES - number * i // SLICES
        load = Load(body_bytes=BODY_BYTES, messages=messages, delays_ms=delays_ms, prefix=PREFIX.format(i))
        left_s = FILL_DEADLINE_S - (time.monotonic() - began_s)
        result = generate(target.broker, TOPIC, dataclasses.replace(load, seconds=left_s))
        good += result["good"]
        sending_s += result["seconds"]
        tell(f"{target.name}: {good:,} in, {target.unindexed():,} of them not indexed")
        if i == 0:
            target.await_indexed(INDEX_DEADLINE_S)
            time.sleep(SETTLE_S)
            first_mib = _anonymous(target)
    last_s = time.monotonic()
    target.await_indexed(INDEX_DEADLINE_S)
    return {
        "timers": good,
        "refused": number - good,
        "in_per_s": good / sending_s,
        "index_s": time.monotonic() - last_s,
        "first_mib": first_mib,
    }


def _short(target: Target, seconds: float) -> int:
    """Send timers that are due soon, wait until all are released, and return the number of them so far."""
    load = Load(connections=4, rate=SHORT_PER_S, seconds=seconds, delays_ms=SHORT_DELAYS_MS)
    wanted = target.stored(SHORT_TOPIC) + int(generate(target.broker, SHORT_TOPIC, load)["good"])
    end_s = time.monotonic() + SHORT_OUT_S
    while target.stored(SHORT_TOPIC) < wanted and time.monotonic() < end_s:
        time.sleep(LOOK_S)
    return wanted


def _beside(target: Target, sent: int, since_ms: int) -> Figures:
    """Return the lateness of timers sent while the others were pending."""
    found = read(target.store, SHORT_TOPIC)
    late_ms = (found.store_ms - found.deliver_ms)[found.deliver_ms >= since_ms]
    return {"lost": sent - len(found), "early": int((late_ms < 0).sum()), **spread(late_ms)}


def _listing(target: WheelMQ, number: int) -> Figures:
    """Return the duration of pages at several places, and of the counts of all timers by minute."""
    took_ms = []
    with closing(SyncConnection(target.broker, timeout_s=30.0)) as link:
        for i in range(1, PAGES + 1):  # the first places have released timers, the last ones other timers
            place = timer_origin(number * i // (PAGES + 1))
            header = headers.ListTimersHeader(place=place, count=PAGE_COUNT, topic=TOPIC)
            began_s = time.monotonic()
            answer = link.ask(Command(code=RequestCode.WMQ_LIST_TIMERS, ext=headers.write(header)))
            took_ms.append((time.monotonic() - began_s) * 1000)
            if len(answer.body.splitlines()) != PAGE_COUNT:
                raise RuntimeError(f"{len(answer.body.splitlines())} are on a page of {PAGE_COUNT}")
    began_s = time.monotonic()
    counts = count([target.broker], TimerQuery(TOPIC, 0, NEVER_MS), MINUTE_MS)
    count_s = time.monotonic() - began_s
    if counts.total() != number:
        raise RuntimeError(f"the counts per minute come to {counts.total():,}, and {number:,} are pending")
    began_s = time.monotonic()
    first, found = list_soonest([target.broker], TimerQuery(TOPIC, 0, NEVER_MS), SOONEST)
    soonest_s = time.monotonic() - began_s
    if (len(first), found) != (SOONEST, number):
        raise RuntimeError(f"{len(first)} of {found:,} are listed, where {number:,} are pending")
    return {
        "page_ms": statistics.median(took_ms),
        "page_max_ms": max(took_ms),
        "count_s": count_s,
        "soonest_s": soonest_s,
    }


# Starts ---------------------------------------------------------------------------------------------------------------


def _alone(target: Target) -> Broker:
    """Return the broker of an ended target, for repeated starts on its store."""
    if isinstance(target, WheelMQ):
        return Ours(target.home, target.store, {"log_file_bytes": LOG_FILE_BYTES})
    return Theirs(target.home / "again", target.store, target.namesrv, {"mappedFileSizeCommitLog": LOG_FILE_BYTES})


def _starts(broker: Broker, number: int) -> Figures:
    tell("starts")
    with running(broker):  # an unmeasured first start, because another process left the store
        _until_ready(broker, number)
        broker.stop()
    after_stop, after_kill = [], []
    for _ in range(STARTS):
        began_s = time.monotonic()
        with running(broker):
            _until_ready(broker, number)
            after_stop.append(time.monotonic() - began_s)
            restarted_mib = memory_mib(broker.pid)["anonymous"]
            load = Load(body_bytes=BODY_BYTES, seconds=KILL_AFTER_S, delays_ms=(FIRST_MS, FIRST_MS))
            number += generate(broker.address, TOPIC, load)["good"]
            broker.kill()
        began_s = time.monotonic()
        with running(broker):
            _until_ready(broker, number)
            after_kill.append(time.monotonic() - began_s)
            broker.stop()
    return {
        "stop_s": statistics.median(after_stop),
        "kill_s": statistics.median(after_kill),
        "restarted_mib": restarted_mib,
    }


def _until_ready(broker: Broker, number: int) -> None:
    """Wait until the broker reports `number` pending timers, indexed or not. Raises RuntimeError."""
    end_s = time.monotonic() + READY_DEADLINE_S
    with closing(SyncConnection(broker.address, timeout_s=30.0)) as link:
        while time.monotonic() < end_s:
            table = msgspec.json.decode(link.ask(Command(code=RequestCode.GET_BROKER_RUNTIME_INFO)).body)["table"]
            found = int(table["timerCongestNum"])
            if isinstance(broker, Theirs):  # counts indexed timers only
                found += int(table["timerOffsetBehind"])
            if found == number:
                return
            time.sleep(READY_LOOK_S)
    raise RuntimeError(f"{found:,} are pending after {READY_DEADLINE_S:.0f} s, where {number:,} were taken")


if __name__ == "__main__":
    sys.exit(main())
