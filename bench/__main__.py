"""Run benchmarks one after another: python -m bench [--short] [--json FOLDER] [name ...]

Without a name, all benchmarks run. A name is that of a module, or one of these: `delays` and `blocks` are modes of
`lateness`; `bystanders` is `instant --bystanders`; `sends_java_all` is `sends_java --all`. With the suffix `_sync`,
both brokers answer after an fsync. Unknown options are passed to each benchmark.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.report import tell

NAMES: dict[str, tuple[str, ...]] = {
    "sends_raw": ("bench.sends_raw",),
    "lateness": ("bench.lateness",),
    "delays": ("bench.lateness", "--mode", "delays"),
    "blocks": ("bench.lateness", "--mode", "blocks"),
    "levels": ("bench.levels",),
    "timers_sustained": ("bench.timers_sustained",),
    "burst": ("bench.burst",),
    "instant": ("bench.instant",),
    "bystanders": ("bench.instant", "--bystanders"),
    "timer_producer": ("bench.timer_producer",),
    "turns": ("bench.turns",),
    "groups": ("bench.groups",),
    "wire_reads": ("bench.wire_reads",),
    "ticks": ("bench.ticks",),
    "idle": ("bench.idle",),
    "footprint": ("bench.footprint",),
    "startup": ("bench.startup",),
    "recovery": ("bench.recovery",),
    "pending": ("bench.pending",),
    "ship": ("bench.ship",),
    "absences": ("bench.absences",),
    "away": ("bench.away",),
    "sends_java": ("bench.sends_java",),
    "sends_java_all": ("bench.sends_java", "--all"),
    "backlog": ("bench.backlog",),
    "latency": ("bench.latency",),
    "pollers": ("bench.pollers",),
    "sends_raw_sync": ("bench.sends_raw", "--flush", "SYNC_FLUSH"),
    "sends_java_sync": ("bench.sends_java", "--flush", "SYNC_FLUSH"),
    "queues": ("bench.queues",),
    "holds": ("bench.holds",),
    "first_after_idle": ("bench.first_after_idle",),
    "tls": ("bench.tls",),
    "replication": ("bench.replication",),
    "topic_reads": ("bench.topic_reads",),
    "spark_topics": ("bench.spark_topics",),
}
SHORT_DEADLINE_S = 600.0
DEADLINE_S = 6 * 3600.0
ENDING_S = 90.0


def main(argv: Sequence[str] | None = None) -> int:
    made = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("names", nargs="*", metavar="name", help=", ".join(NAMES))
    made.add_argument("--short", action="store_true", help="less of everything; bounded to ten minutes each")
    made.add_argument("--json", type=Path, metavar="FOLDER", help="write the figures there, a file for each")
    options, rest = made.parse_known_args(argv)
    if unknown := [name for name in options.names if name not in NAMES]:
        made.error(f"there is no benchmark {', '.join(unknown)}; there are {', '.join(NAMES)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    failed = []
    for name in options.names or NAMES:
        command = [sys.executable, "-m", *NAMES[name], *rest, *(["--short"] if options.short else [])]
        if options.json is not None:
            options.json.mkdir(parents=True, exist_ok=True)
            command += ["--json", str(options.json / f"{name}.json")]
        if not _run(command, SHORT_DEADLINE_S if options.short else DEADLINE_S):
            failed.append(name)
        print(flush=True)
    if failed:
        tell(f"these did not run to their end: {', '.join(failed)}")
    return 1 if failed else 0


def _run(command: list[str], deadline_s: float) -> bool:
    """Run a benchmark, and end all its processes.

    Returns whether it ended before the deadline and without an error.
    """
    with subprocess.Popen(command, env={**os.environ, "PYTHONUNBUFFERED": "1"}) as process:
        try:
            return process.wait(deadline_s) == 0
        except subprocess.TimeoutExpired:
            tell(f"{' '.join(command[1:])}: not done in {deadline_s:.0f} s")
            return False
        finally:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(ENDING_S)
            process.kill()


if __name__ == "__main__":
    sys.exit(main())
