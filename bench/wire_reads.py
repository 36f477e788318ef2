"""A task of the pipeline that reads a store over the wire, and one that maps its files: rows/s and memory.

A broker without a pipeline stores timers of 4 KiB. Then a process indexes all of them, as the tasks of a turn do. Over
the wire, it requests the ranges from another process through a Unix socket, in the form of READ. Address space and
memory are the growth of that process, from before its first read to the peak. Each read follows an unmeasured one of
1,000 rows. It measures WheelMQ alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import closing
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Final

import numpy as np
import psutil

from bench.generator import generate
from bench.rawload import Load
from bench.report import Figures, Metric, Report, parse, parser, tell
from bench.room import make_room
from bench.targets import WheelMQWithoutPipeline, prepare
from wheelmq.broker.settings import BrokerSettings
from wheelmq.broker.store_sizes import store_sizes
from wheelmq.delay.timer import staging
from wheelmq.delay.timer.portions import OnDisk, PortionReader
from wheelmq.delay.timer.view import ReadView, StoreSizes, StoreView
from wheelmq.delay.timer.wire_view import Segment, WireView
from wheelmq.formats.kernels.cache import use_cache
from wheelmq.formats.wire.portions import RANGE, FileKind, Ranges
from wheelmq.store.settings import StoreSettings
from wheelmq.system.clock import SystemClock

TOPIC: Final = "WireReads"
COUNT: Final = 400_000
COUNT_SHORT: Final = 40_000
BODY_BYTES: Final = 4096
RECORD_BYTES: Final = 4600
"""Bytes on disk for each timer."""
DAY_MS: Final = 86_400_000
FILL_S: Final = 600.0
TASK_ROWS: Final = 20_000
"""Rows of a task of the pipeline."""
FIRST_ROWS: Final = 1000
MIB: Final = 1 << 20
WAYS: Final = ("files", "wire")

METRICS: Final = [
    metric
    for way in WAYS
    for metric in (
        Metric(f"{way}_rows", f"{way}: rows/s"),
        Metric(f"{way}_rows_core", f"{way}: rows/s of a core"),
        Metric(f"{way}_address_mib", f"{way}: address space, MiB", at_most=256 if way == "wire" else None),
        Metric(f"{way}_resident_mib", f"{way}: memory, MiB", at_most=128 if way == "wire" else None),
    )
] + [Metric("log_mib", "log of the broker, MiB")]


def main(argv: Sequence[str] | None = None) -> int:
    made = parser("wire_reads", __doc__, rounds=1)
    made.add_argument("--count", type=int, help=f"timers ({COUNT:,}; {COUNT_SHORT:,} with --short)")
    made.add_argument("--task", nargs=3, metavar=("STORE", "SOCKET", "COUNT"), help="used by the benchmark itself")
    options = parse(made, argv)
    if options.task is not None:
        store, socket, count = options.task
        print(json.dumps(_task(Path(store), socket, int(count))))
        return 0
    count = options.count or (COUNT_SHORT if options.short else COUNT)
    report = Report(f"{count:,} timers of {BODY_BYTES} B indexed by one process", METRICS)
    make_room(report, options, count * RECORD_BYTES)
    if options.only != "Apache":
        prepare()
        for i in range(options.rounds):
            tell(f"wire reads: round {i + 1} of {options.rounds}")
            report.add("WheelMQ", _round(options, count))
    return report.finish(options.json)


def _round(options: Namespace, count: int) -> Figures:
    with WheelMQWithoutPipeline(options.home) as target:
        load = Load(body_bytes=BODY_BYTES, messages=count, seconds=FILL_S, delays_ms=(DAY_MS, 2 * DAY_MS))
        stored = int(generate(target.broker, TOPIC, load)["good"])
        figures = {"log_mib": target.log_bytes() / MIB}
        target.end()
        for way in WAYS:
            figures |= {f"{way}_{name}": value for name, value in _run(target.store, way, stored).items()}
    return figures


def _run(store: Path, way: str, count: int) -> Figures:
    """Run the task in a process of its own, and serve its requests."""
    with tempfile.TemporaryDirectory(prefix="bench-wire-") as folder, closing(Listener(f"{folder}/socket")) as listener:
        threading.Thread(target=_serve, args=(listener, store), daemon=True).start()
        socket = f"{folder}/socket" if way == "wire" else ""
        command = [sys.executable, "-m", "bench.wire_reads", "--task", str(store), socket, str(count)]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=FILL_S)
        found: Figures = json.loads(done.stdout)
        return found


# The two processes ----------------------------------------------------------------------------------------------------


def _sizes(store: Path) -> StoreSizes:
    return store_sizes(BrokerSettings(store=StoreSettings(path=store)))


def _serve(listener: Listener, store: Path) -> None:
    """Answer the requests of one task, as the broker does."""
    reader, log = PortionReader(store, _sizes(store)), StoreView(store, _sizes(store)).log
    try:
        with listener.accept() as link:
            while True:
                kind, name, raw = link.recv()
                ranges = np.frombuffer(raw, RANGE)
                found = reader.read((1, 1), FileKind(kind), name, ranges, OnDisk(log.end, 0))
                link.send((found.body, found.covered, zlib.crc32(found.body), log.start, log.end))
    except (EOFError, OSError):
        return


def _asker(link: Connection) -> Callable[[FileKind, str, Ranges], Segment]:
    def ask(kind: FileKind, name: str, ranges: Ranges) -> Segment:
        link.send((str(kind), name, ranges.tobytes()))
        return Segment(*link.recv())

    return ask


def _task(store: Path, socket: str, count: int) -> Figures:
    """Index all timers, over the wire if there is a socket. Returns the figures of this process."""
    use_cache()
    view: ReadView = WireView(_asker(Client(socket)), _sizes(store)) if socket else StoreView(store, _sizes(store))
    _index(view, 0, min(FIRST_ROWS, count))
    before = psutil.Process().memory_info()
    began_s, processor_s = time.perf_counter(), time.process_time()
    for first in range(0, count, TASK_ROWS):
        _index(view, first, min(first + TASK_ROWS, count))
    seconds, processor = time.perf_counter() - began_s, time.process_time() - processor_s
    peak = _peaks()
    return {
        "rows": count / seconds,
        "rows_core": count / processor,
        "address_mib": (peak["VmPeak"] - before.vms) / MIB,
        "resident_mib": (peak["VmHWM"] - before.rss) / MIB,
    }


def _index(view: ReadView, first: int, end: int) -> None:
    rows = staging.read_index(view, first, end, write_ms=SystemClock().now_ms(), turn=1)
    assert len(rows) == end - first and (rows["due_ms"] > 0).all()


def _peaks() -> dict[str, int]:
    """Return the highest address space and memory of this process, in bytes."""
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) << 10 for words in lines if words[0] in ("VmPeak:", "VmHWM:")}


if __name__ == "__main__":
    sys.exit(main())
