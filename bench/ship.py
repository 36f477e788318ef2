"""Shipping a store: the first copy, the cost of a continuous one for senders, the check, the restore, the next start.

WheelMQ alone: Apache RocketMQ has no such command. All processes share the machine's processors.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from bench import room
from bench.generator import generate, generating
from bench.machine import Processor, memory_mib
from bench.rawload import Load
from bench.recovery import Ours, running
from bench.report import Figures, Metric, Report, parse, parser, tell
from bench.targets import QUEUES, Part, prepare
from wheelmq.formats.disk.paths import StorePaths
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.sync_connection import SyncConnection
from wheelmq.store.ship_status import read_statuses
from wheelmq.system.disk import ReadOnlyDisk

GIGABYTES = 10.0
GIGABYTES_SHORT = 0.3
BODY_BYTES = 1024
RATE = 5000.0
RATE_S = 30.0
RATE_SHORT_S = 5.0
LOOK_S = 0.01
FILL_DEADLINE_S = 3600.0
TOPIC = "Bench"

METRICS = [
    Metric("log_gb", "log of the store, GB"),
    Metric("first_mb_s", "first copy, MB/s of log"),
    Metric("first_s_per_gb", "first copy: processor seconds per GB"),
    Metric("stored_share", "target, bytes per byte of log"),
    Metric("check_mb_s", "`restore --check`, MB/s"),
    Metric("restore_mb_s", "restore with its verification, MB/s"),
    Metric("start_s", "start on the restored store, s"),
    Metric("alone_p50_ms", "5,000 sends/s without a shipper: p50, ms"),
    Metric("alone_p99_ms", "the same: p99, ms"),
    Metric("shipped_p50_ms", "5,000 sends/s with a shipper: p50, ms"),
    Metric("shipped_p99_ms", "the same: p99, ms"),
    Metric("age_p50_ms", "age of the last complete copy: p50, ms"),
    Metric("age_max_ms", "the same: max, ms"),
    Metric("shipper_percent", "processor of the shipper, % of a core"),
    Metric("shipper_mib", "memory of the shipper, MiB (PSS)"),
    Metric("full_alone", "sends/s at full rate without a shipper"),
    Metric("full_shipped", "sends/s at full rate with a shipper"),
    Metric("full_age_max_ms", "age of the copy at full rate: max, ms"),
]


def main(argv: Sequence[str] | None = None) -> int:
    made = parser("ship", __doc__, rounds=1)
    made.add_argument("--gigabytes", type=float, help=f"of log ({GIGABYTES:g}; {GIGABYTES_SHORT:g} with --short)")
    options = parse(made, argv)
    gigabytes = options.gigabytes or (GIGABYTES_SHORT if options.short else GIGABYTES)
    report = Report(f"shipping a store of {gigabytes:g} GB, bodies of {BODY_BYTES} B", METRICS)
    prepare()
    for i in range(options.rounds):
        tell(f"ship: round {i + 1} of {options.rounds}")
        report.add("WheelMQ", _round(options, gigabytes))
    return report.finish(options.json)


def _round(options: argparse.Namespace, gigabytes: float) -> Figures:
    figures: Figures = {}
    seconds = RATE_SHORT_S if options.short else RATE_S
    with room.folder("bench-ship-", options.home) as home:
        ours = Ours(home, home / "store")
        with running(ours):
            _fill(ours.address, home, gigabytes)
            figures |= _sends(ours, home, seconds, "alone")
            figures |= _first_copy(home)
            shipper = Part(["ship", str(home / "target")], home)
            try:
                shipper.until("complete")
                figures |= _sends(ours, home, seconds, "shipped", shipper)
            finally:
                shipper.end()
            ours.stop()
        figures |= _restore(home)
    return figures


def _fill(address: str, home: Path, gigabytes: float) -> None:
    tell(f"filling the store with {gigabytes:g} GB")
    record_bytes = BODY_BYTES + 190
    count = int(gigabytes * 1e9 / record_bytes)
    generate(address, TOPIC, Load(body_bytes=BODY_BYTES, messages=count, seconds=FILL_DEADLINE_S, queues=QUEUES))


def _first_copy(home: Path) -> Figures:
    tell("first copy")
    began = time.monotonic()
    done = _run(["ship", str(home / "target"), "--once"], home)
    elapsed_s = time.monotonic() - began
    raw_bytes, stored_bytes = int(done["raw_bytes"]), int(done["stored_bytes"])
    return {
        "log_gb": raw_bytes / 1e9,
        "first_mb_s": raw_bytes / 1e6 / elapsed_s,
        "first_s_per_gb": float(done["processor_s"]) / (raw_bytes / 1e9),
        "stored_share": stored_bytes / raw_bytes,
    }


def _sends(ours: Ours, home: Path, seconds: float, name: str, shipper: Part | None = None) -> Figures:
    """Measure sends at a fixed rate, and at the full rate."""
    tell(f"sends, {name}")
    load = Load(body_bytes=BODY_BYTES, seconds=seconds, rate=RATE, queues=QUEUES)
    full = Load(body_bytes=BODY_BYTES, seconds=seconds, queues=QUEUES)
    processor = None if shipper is None else Processor(lambda: {shipper.process.pid: "shipper"})
    _, times_ms, ages_ms = _probed(ours.address, home, load)
    figures: Figures = {}
    if shipper is not None and processor is not None:
        used_s = processor.seconds()["shipper"]
        figures = {"age_p50_ms": statistics.median(ages_ms), "age_max_ms": max(ages_ms)}
        figures |= {"shipper_percent": 100 * used_s / seconds, "shipper_mib": memory_mib(shipper.process.pid)["pss"]}
    at_full, _, ages_ms = _probed(ours.address, home, full)
    if shipper is not None:
        figures["full_age_max_ms"] = max(ages_ms)
    cuts = statistics.quantiles(times_ms, n=100)
    figures |= {f"{name}_p50_ms": cuts[49], f"{name}_p99_ms": cuts[98], f"full_{name}": at_full["per_second"]}
    return figures


def _probed(address: str, home: Path, load: Load) -> tuple[dict[str, Any], list[float], list[int]]:
    """Run a load, and send single messages meanwhile.

    Returns the result of the load, the times of the single sends in milliseconds, and the ages of the last complete
    copy.
    """
    times_ms: list[float] = []
    ages_ms: list[int] = []
    letters = {"a": "bench", "b": TOPIC, "c": "TBW102", "d": QUEUES, "e": 0, "f": 0, "g": 1, "h": 0, "i": "", "j": 0}
    send = Command(code=RequestCode.SEND_MESSAGE_V2, ext=headers.texts(**letters, k=False), body=bytes(BODY_BYTES))
    with generating(address, TOPIC, load) as process, closing(SyncConnection(address, timeout_s=10.0)) as link:
        while process.poll() is None:
            began = time.perf_counter()
            link.ask(send)
            times_ms.append(1000 * (time.perf_counter() - began))
            for status in read_statuses(ReadOnlyDisk(), StorePaths(home / "store")):
                ages_ms.append(time.time_ns() // 1_000_000 - status.complete_ms)
            time.sleep(LOOK_S)
        assert process.stdout is not None
        found: dict[str, Any] = json.loads(process.stdout.read())
    return found, times_ms, ages_ms


def _restore(home: Path) -> Figures:
    figures: Figures = {}
    for name, words in (("check", ["--check"]), ("restore", ["--to", str(home / "restored" / "store")])):
        tell(name)
        began = time.monotonic()
        done = _run(["restore", str(home / "target"), *words], home)
        figures[f"{name}_mb_s"] = (int(done["log_end"]) - int(done["log_start"])) / 1e6 / (time.monotonic() - began)
    (home / "again").mkdir()
    again = Ours(home / "again", home / "restored" / "store")
    began = time.monotonic()
    with running(again):
        figures["start_s"] = time.monotonic() - began
        again.stop()
    return figures


def _run(words: Sequence[str], home: Path) -> dict[str, Any]:
    """Run a command to its end. Returns the fields of its last event, and `processor_s`."""
    command = [sys.executable, "-P", "-m", "wheelmq", *words, "--home", str(home), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        processor = Processor(lambda: {process.pid: "command"})
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            processor.look()
        used_s = processor.seconds()["command"]
    if process.returncode:
        raise RuntimeError(f"{' '.join(words)} failed: {lines[-1:]}")
    return {**json.loads(lines[-1]), "processor_s": used_s}


if __name__ == "__main__":
    sys.exit(main())
