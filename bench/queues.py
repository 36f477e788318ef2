"""Thousands of queues: start, memory, handles and mappings of a broker alone, on the same store.

The store is created once: 625 topics of 8 queues, one message of 256 B in each queue. Apache creates it if it is
present, otherwise WheelMQ. Each round copies it, starts a broker on it, sends a message to each queue, and pulls both
messages from each.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.machine import KIB, memory_mib
from bench.report import Figures, Metric, Report, parse, parser, tell
from bench.targets import APACHE_HEAP, Apache, Part, Target, prepare, rivals
from compat.apache.apache import ApacheBroker, ApacheNameServer
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.sync_connection import SyncConnection

TOPICS: Final = 625
QUEUES: Final = 8
BODY: Final = b"x" * 256
ASK_DEADLINE_S: Final = 60.0
START_DEADLINE_S: Final = 300.0
SETTLE_S: Final = 15.0
"""Time from the last request to the reading of memory, for a checkpoint and a garbage collection."""

Running = tuple[int, str, float]
"""A broker: its process id, its address, and the seconds until it listened."""

METRICS = [
    Metric("start_s", "broker ready on the store, s", ratio_at_most=1),
    Metric("pss", "its memory after sends and pulls, PSS MiB", ratio_at_most=1),
    Metric("anonymous", "of that anonymous, MiB", ratio_at_most=1),
    Metric("tables", "page tables, MiB"),
    Metric("handles", "open handles"),
    Metric("maps", "mappings"),
    Metric("send_us", "a send to each queue, one at a time, us", ratio_at_most=1),
    Metric("pull_us", "a pull of each queue, one at a time, us", ratio_at_most=1),
    Metric("disk", "the store's files, MiB on disk"),
]


def main(argv: Sequence[str] | None = None) -> int:
    made = parser("queues", __doc__)
    made.add_argument("--topics", type=int, default=TOPICS, help=f"of {QUEUES} queues each ({TOPICS})")
    options = parse(made, argv)
    report = Report(f"{options.topics * QUEUES:,} queues", METRICS)
    targets, why = rivals()
    if why is not None:
        report.notes.append(why)
    prepare()
    with tempfile.TemporaryDirectory(prefix="bench-queues-", dir=options.home) as folder:
        made_store = Path(folder) / "made"
        tell(f"{report.title}: the store")
        with _broker(targets[0], made_store) as (_, address, _):
            _fill(address, options.topics)
        for i in range(options.rounds):
            for kind in targets:
                if options.only in (None, kind.name):
                    tell(f"{report.title}: {kind.name}, round {i + 1} of {options.rounds}")
                    report.add(kind.name, _round(kind, made_store, Path(folder) / "round", options.topics))
    return report.finish(options.json)


def _round(kind: type[Target], store: Path, home: Path, topics: int) -> Figures:
    shutil.copytree(store, home, copy_function=_copy_sparse)
    try:
        with _broker(kind, home) as (pid, address, start_s):
            link = SyncConnection(address, ASK_DEADLINE_S)
            count = topics * QUEUES
            send_us = _timed_us(lambda: _send_to_each(link, topics), count)
            pull_us = _timed_us(lambda: _pull_each(link, topics), count)
            time.sleep(SETTLE_S)
            figures = {"start_s": start_s, "send_us": send_us, "pull_us": pull_us, **memory_mib(pid)}
            figures |= _of_process(pid)
            link.close()
        blocks = sum(path.lstat().st_blocks for path in (home / "store").rglob("*"))
        return figures | {"disk": blocks * 512 / KIB**2}
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _timed_us(work: Callable[[], None], count: int) -> float:
    began_s = time.monotonic()
    work()
    return (time.monotonic() - began_s) * 1e6 / count


def _of_process(pid: int) -> Figures:
    status = Path(f"/proc/{pid}/status").read_text()
    tables_kib = int(status.partition("VmPTE:")[2].split()[0])
    return {
        "tables": tables_kib / KIB,
        "handles": len(os.listdir(f"/proc/{pid}/fd")),
        "maps": Path(f"/proc/{pid}/maps").read_text().count("\n"),
    }


@contextmanager
def _broker(kind: type[Target], home: Path) -> Iterator[Running]:
    """Run a broker alone on the store in `home`."""
    home.mkdir(exist_ok=True)
    if kind is Apache:
        with ApacheNameServer(home) as namesrv:
            broker = ApacheBroker(home, namesrv.address, heap=APACHE_HEAP)
            began_s = time.monotonic()
            with broker:
                yield broker.pid, broker.address, time.monotonic() - began_s
                broker.stop()
        return
    began_s = time.monotonic()
    part = Part(["broker", "--port", "0"], home)
    try:
        address = part.until("listening", START_DEADLINE_S)["address"]
        yield part.process.pid, address, time.monotonic() - began_s
    finally:
        part.end()


def _fill(address: str, topics: int) -> None:
    link = SyncConnection(address, ASK_DEADLINE_S)
    for i in range(topics):
        queues = {"readQueueNums": QUEUES, "writeQueueNums": QUEUES}
        rest = {"perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False}
        ext = headers.texts(topic=f"T{i}", defaultTopic="TBW102", **queues, **rest)
        link.ask(Command(code=RequestCode.UPDATE_AND_CREATE_TOPIC, ext=ext))
    _send_to_each(link, topics)
    link.close()


def _send_to_each(link: SyncConnection, topics: int) -> None:
    now_ms = int(time.time() * 1000)
    for i in range(topics):
        for queue_id in range(QUEUES):
            fixed = {"a": "bench", "c": "TBW102", "d": 4, "f": 0, "g": now_ms, "h": 0, "i": "", "j": 0, "k": False}
            ext = headers.texts(b=f"T{i}", e=queue_id, m=False, **fixed)
            link.ask(Command(code=RequestCode.SEND_MESSAGE_V2, ext=ext, body=BODY))


def _pull_each(link: SyncConnection, topics: int) -> None:
    for i in range(topics):
        for queue_id in range(QUEUES):
            where = {"consumerGroup": "bench", "topic": f"T{i}", "queueId": queue_id, "queueOffset": 0}
            how = {"maxMsgNums": 32, "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0}
            what = {"subscription": "*", "subVersion": 0, "expressionType": "TAG"}
            answer = link.ask(Command(code=RequestCode.PULL_MESSAGE, ext=headers.texts(**where, **how, **what)))
            assert len(answer.body) > 2 * len(BODY), (i, queue_id, len(answer.body))


def _copy_sparse(source: str, target: str) -> str:
    """Copy a file without its holes. The files of queues consist almost only of holes."""
    with open(source, "rb") as there, open(target, "wb") as here:
        size = os.fstat(there.fileno()).st_size
        here.truncate(size)
        at = 0
        while at < size:
            try:
                at = os.lseek(there.fileno(), at, os.SEEK_DATA)
            except OSError:
                break
            stop = os.lseek(there.fileno(), at, os.SEEK_HOLE)
            os.lseek(here.fileno(), at, os.SEEK_SET)
            while at < stop:
                at += os.sendfile(here.fileno(), there.fileno(), at, stop - at)
    return target


if __name__ == "__main__":
    sys.exit(main())
