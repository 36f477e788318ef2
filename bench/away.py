"""Indexed timers become due while the pipeline is away: are they late?

100,000 timers of 256 B, due over ten minutes, are sent and indexed. Then nothing is sent. The JVM and all other
processes of the pipeline are killed at the least favourable moment: right before a turn would scan the wheel again,
so that as few timers as possible are armed. The pipeline stays away, and the broker arms the other timers itself
(docs/adr/0025). `--short` takes 5,000 timers and one minute. It measures WheelMQ alone: Apache RocketMQ has no such
part.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import psutil

from bench import room
from bench.deliveries import judge, read
from bench.generator import generate_taken
from bench.machine import family
from bench.rawload import Load
from bench.recovery import Ours
from bench.report import Figures, Metric, Report, parse, parser, tell
from bench.targets import prepare
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.sync_connection import SyncConnection

TIMERS: Final = 100_000
TIMERS_SHORT: Final = 5000
AWAY_S: Final = 600.0
AWAY_S_SHORT: Final = 60.0
GROUPS: Final = 20
GROUPS_SHORT: Final = 6
"""The timers are sent in groups. The timers of one group are due within a second or two."""
FIRST_S: Final = 75.0
"""Time from the first send to the first due time, in which the pipeline starts and indexes."""
RATE: Final = 5000.0
SHORT_OF_MS: Final = 20_300
"""The pipeline is killed when its turns have scanned only this far ahead. At 20 s a turn would scan again."""
READY_S: Final = 180.0
LOOK_S: Final = 0.05
REST_S: Final = 3.0

METRICS: Final = [
    Metric("timers", "timers, due while the pipeline was away"),
    Metric("armed", "of these armed by the broker itself", at_least=1),
    Metric("p50_ms", "lateness p50, ms"),
    Metric("p99_ms", "lateness p99, ms", at_most=20),
    Metric("max_ms", "lateness max, ms"),
    Metric("lost", "lost", at_most=0),
    Metric("twice", "twice", at_most=0),
    Metric("early", "early", at_most=0),
    Metric("too_soon", "armed by the broker while the pipeline turned", at_most=0),
]


def main(argv: Sequence[str] | None = None) -> int:
    made = parser("away", __doc__, rounds=1)
    made.add_argument("--timers", type=int, help=f"({TIMERS}; {TIMERS_SHORT} with --short)")
    made.add_argument("--first-s", type=float, default=FIRST_S, help="from the first send to the first due time (75)")
    made.add_argument("--away-s", type=float, help=f"({AWAY_S:.0f}; {AWAY_S_SHORT:.0f} with --short)")
    options = parse(made, argv)
    report = Report("timers while the pipeline is away", METRICS)
    if options.only == "Apache":
        return report.finish(options.json)
    prepare()
    for i in range(options.rounds):
        tell(f"away: WheelMQ, round {i + 1} of {options.rounds}")
        report.add("WheelMQ", _away(options))
    return report.finish(options.json)


def _away(options: Namespace) -> Figures:
    timers = options.timers or (TIMERS_SHORT if options.short else TIMERS)
    away_s = options.away_s or (AWAY_S_SHORT if options.short else AWAY_S)
    with room.folder("bench-away-", options.home) as home:
        broker = Ours(home, home / "store")
        broker.start()
        try:
            with closing(SyncConnection(broker.address)) as link:
                spread = _spread(options, away_s)
                sent, too_soon = _send_and_kill(home, broker.address, link, timers, spread)
                end_s = max(last_ms for _, last_ms in sent) / 1000 + REST_S
                time.sleep(max(0.0, end_s - time.time()))
                armed = _metrics(link)["timers"]["armed_by"].get("wheel_lane", 0)
        finally:
            broker.kill()
        return {**_verdict(home / "store", [taken for taken, _ in sent]), "armed": armed, "too_soon": too_soon}


def _send_and_kill(
    home: Path, address: str, link: SyncConnection, timers: int, after_s: Sequence[float]
) -> tuple[list[tuple[Any, int]], int]:
    """Send the timers, wait until they are indexed, and kill the pipeline.

    Returns for each group the accepted messages and its last due time. Also returns the number of messages that the
    broker armed in place of the pipeline before the kill.
    """
    with (home / "pipeline.log").open("wb") as log:
        command = [sys.executable, "-P", "-m", "wheelmq", "pipeline", "--broker", address, "--home", str(home)]
        environment = {**os.environ, "WHEELMQ_JAVA_CACHE": "use"}
        pipeline = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
    try:
        began_s, sent = time.time(), []
        for group, due_s in enumerate(after_s):
            delay_ms = int((began_s + due_s - time.time()) * 1000)
            load = Load(rate=RATE, messages=timers // len(after_s), delays_ms=(delay_ms, delay_ms + 1000))
            result, taken = generate_taken(address, _topic(group), load)
            sent.append((taken, result["last_ms"] + delay_ms + 1000))
        _until(lambda: _metrics(link)["pipeline"]["unindexed"] == 0, "all timers are indexed")
        _until(lambda: _ahead_ms(link) <= SHORT_OF_MS, "a turn is nearly due")
        too_soon = _metrics(link)["timers"]["armed_by"].get("wheel_lane", 0)
        if time.time() > began_s + after_s[0]:
            raise RuntimeError("the first timers were due before the pipeline was killed: this machine is too busy")
        _kill(pipeline)
        tell(f"away: the pipeline is killed, turns had walked {_ahead_ms(link) / 1000:.1f} s ahead")
    finally:
        _kill(pipeline)
    return sent, too_soon


def _kill(pipeline: subprocess.Popen[bytes]) -> None:
    """Kill the pipeline's driver, JVM and workers, if they run."""
    for process in family(pipeline.pid):
        with suppress(psutil.NoSuchProcess):
            process.kill()
    pipeline.wait()


def _spread(options: Namespace, away_s: float) -> list[float]:
    """Return the due time of each group, in seconds after the start of the first send."""
    groups = GROUPS_SHORT if options.short else GROUPS
    return [options.first_s + group * away_s / groups for group in range(groups)]


def _verdict(store: Path, taken: list[Any]) -> Figures:
    late, lost, twice, early, count = [], 0, 0, 0, 0
    for group, mine in enumerate(taken):
        found = read(store, _topic(group))
        outcome = judge(found, mine)
        late.append(found.store_ms - found.deliver_ms)
        lost, twice, early = lost + outcome.lost, twice + outcome.twice, early + outcome.early
        count += int((mine > 0).sum())
    p50_ms, p99_ms, max_ms = np.percentile(np.concatenate(late), (50, 99, 100))
    return {
        "timers": count,
        "p50_ms": float(p50_ms),
        "p99_ms": float(p99_ms),
        "max_ms": float(max_ms),
        "lost": lost,
        "twice": twice,
        "early": early,
    }


def _topic(group: int) -> str:
    return f"Away{group}"


def _metrics(link: SyncConnection) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(link.ask(Command(code=RequestCode.WMQ_METRICS)).body)
    return found


def _ahead_ms(link: SyncConnection) -> int:
    found = _metrics(link)
    return int(found["pipeline"]["walked_through_ms"]) - int(found["now_ms"])


def _until(condition: Any, text: str) -> None:
    end_s = time.monotonic() + READY_S
    while not condition():
        if time.monotonic() > end_s:
            raise RuntimeError(f"not within {READY_S:.0f} s: {text}")
        time.sleep(LOOK_S)


if __name__ == "__main__":
    sys.exit(main())
