"""Query groups: the cost of the pipeline for each broker, and its restart, with 1, 10, 30 and 100 brokers.

The brokers are models with sockets, in one process, because a hundred brokers do not fit one machine. Each gives a plan
a second: 1,000 messages to index, and 1,000 units to scan. The tasks read them from a store that all models share. The
pipeline is the real one, under its supervisor.

A restart begins with a `kill -9` of the driver. It ends when each broker has committed a turn.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import psutil

from bench import room
from bench.machine import Processor, family, memory_mib, parts_of
from bench.report import Figures, Metric, Report, parse, parser, tell
from bench.targets import prepare
from bench.turns import look_until
from tests.crash.parts import Role, role_of
from tests.modelled_broker import ModelledBroker, serve
from tests.turn_template import turn_template

COUNTS: Final = (1, 10, 30, 100)
ROWS: Final = 1000
"""Messages to index, and units to scan, of each turn."""
START_DEADLINE_S: Final = 300.0
SETTLE_S: Final = 20.0
"""Time from the first turns of all brokers to the first measurement: the JVM compiles."""
RESTARTS: Final = 3
POLL_S: Final = 0.1
STOP_S: Final = 60.0


def metrics(counts: Sequence[int]) -> list[Metric]:
    found = []
    for n in counts:
        found += [
            Metric(f"idle_{n}", f"{n}: idle, processor ms/s for each broker"),
            Metric(f"load_{n}", f"{n}: under load, processor ms/s for each broker"),
            Metric(f"driver_{n}", f"{n}: driver under load, processor s/s"),
            Metric(f"jvm_{n}", f"{n}: JVM under load, processor s/s"),
            Metric(f"workers_{n}", f"{n}: planners and workers under load, processor s/s"),
            Metric(f"turns_{n}", f"{n}: turns/s of each broker under load"),
            Metric(f"pss_{n}", f"{n}: all of Spark and the driver, PSS MiB"),
            Metric(f"planners_{n}", f"{n}: planner processes"),
            Metric(f"planner_pss_{n}", f"{n}: planner processes, PSS MiB"),
            Metric(f"restart_{n}", f"{n}: kill -9 until each broker has a turn, s", at_most=10 if n == 100 else None),
        ]
    return found


def main(argv: Sequence[str] | None = None) -> int:
    made = parser("groups", __doc__, rounds=1)
    made.add_argument("--counts", help=f"numbers of brokers ({','.join(map(str, COUNTS))}; 1,10 with --short)")
    made.add_argument("--seconds", type=float, help="idle, and under load (30; 10 with --short)")
    made.add_argument("--groups", type=int, help="the option of `wheelmq pipeline` (its default)")
    made.add_argument("--models", type=int, help=argparse.SUPPRESS)
    options = parse(made, argv)
    if options.models is not None:
        asyncio.run(serve_models(options.models))
        return 0
    counts = [int(n) for n in (options.counts or ("1,10" if options.short else ",".join(map(str, COUNTS)))).split(",")]
    seconds = options.seconds or (10.0 if options.short else 30.0)
    report = Report(f"query groups over {seconds:g} s idle and {seconds:g} s at 1,000 timers/s", metrics(counts))
    prepare()
    for i in range(options.rounds):
        figures: Figures = {}
        for n in counts:
            tell(f"query groups: {n} brokers, round {i + 1} of {options.rounds}")
            figures |= {f"{name}_{n}": value for name, value in _measure(n, seconds, options).items()}
        report.add("WheelMQ", figures)
    return report.finish(options.json)


# The models -----------------------------------------------------------------------------------------------------------


async def serve_models(count: int) -> None:
    """Serve models until the standard input ends. Each line of it is a command, and each answer is a line of JSON."""
    with tempfile.TemporaryDirectory(prefix="bench-groups-") as folder, turn_template(Path(folder), ROWS) as template:
        brokers = [ModelledBroker(template.terms, template.plan) for _ in range(count)]
        served = [await serve(broker) for broker in brokers]
        print(json.dumps([address for _, address in served]), flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            for broker in brokers:
                broker.template = template.plan if line.strip() != "idle" else None
            found = [[broker.turn, broker.committed_s[-1] if broker.committed_s else 0.0] for broker in brokers]
            print(json.dumps(found), flush=True)


class Models:
    def __init__(self, count: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.groups", "--models", str(count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,
        )
        self.addresses: list[str] = self._line()
        self.is_idle = False

    def look(self) -> list[tuple[int, float]]:
        """Return the last turn of each broker, and the monotonic time of its commit."""
        assert self._process.stdin is not None
        self._process.stdin.write("idle\n" if self.is_idle else "load\n")
        self._process.stdin.flush()
        return [(turn, committed_s) for turn, committed_s in self._line()]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(STOP_S)

    def _line(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


# The pipeline ---------------------------------------------------------------------------------------------------------


@contextmanager
def pipeline(models: Models, home: Path, groups: int | None) -> Iterator[subprocess.Popen[bytes]]:
    """Run `wheelmq pipeline` for the models."""
    words = [word for address in models.addresses for word in ("--broker", address)]
    words += ["--groups", str(groups)] if groups is not None else []
    command = [sys.executable, "-P", "-m", "wheelmq", "pipeline", "--home", str(home), *words]
    environment = {**os.environ, "WHEELMQ_JAVA_CACHE": "use", "PYTHONDONTWRITEBYTECODE": ""}
    with (home / "supervisor.log").open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, process_group=0
        )
    try:
        yield process
    finally:
        below = family(process.pid)
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
        for one in below:
            with contextlib.suppress(psutil.Error):
                one.kill()
        process.wait()


def driver_pid(supervisor: int) -> int:
    """Return the process id of the driver. Raises StopIteration while there is none."""
    return next(child.pid for child in psutil.Process(supervisor).children() if "--driver" in child.cmdline())


def _until(condition: Callable[[], bool], home: Path) -> None:
    ends_s = time.monotonic() + START_DEADLINE_S
    while not condition():
        if time.monotonic() > ends_s:
            tail = (home / "supervisor.log").read_text(errors="replace")[-2000:]
            raise TimeoutError(f"not all brokers have a turn within {START_DEADLINE_S:.0f} s; its log ends:\n{tail}")
        time.sleep(POLL_S)


def _measure(count: int, seconds: float, options: Any) -> Figures:
    restarts = 1 if options.short else RESTARTS
    with ExitStack() as stack:
        home = stack.enter_context(room.folder("bench-groups-", options.home))
        models = stack.enter_context(contextlib.closing(Models(count)))
        supervisor = stack.enter_context(pipeline(models, home, options.groups))
        _until(lambda: all(turn >= 2 for turn, _ in models.look()), home)
        time.sleep(SETTLE_S if not options.short else SETTLE_S / 2)
        figures = _under_load(models, supervisor.pid, seconds)
        killed = [_restart(models, supervisor.pid, home) for _ in range(restarts)]
        figures["restart"] = sorted(killed)[len(killed) // 2]
        tell(f"query groups: restarts {', '.join(f'{one:.1f}' for one in killed)} s")
        models.is_idle = True
        models.look()
        time.sleep(SETTLE_S / 2)
        used = _watch(supervisor.pid, seconds)
        figures["idle"] = 1000 * sum(used.values()) / seconds / count
    return figures


def _under_load(models: Models, supervisor: int, seconds: float) -> Figures:
    before, began_s = models.look(), time.monotonic()
    used = _watch(supervisor, seconds)
    turns = sum(now - was for (now, _), (was, _) in zip(models.look(), before, strict=True))
    lasted_s, count = time.monotonic() - began_s, len(before)
    pss = {process.pid: memory_mib(process.pid).get("pss", 0.0) for process in family(driver_pid(supervisor))}
    planners = [process.pid for process in family(driver_pid(supervisor)) if role_of(process) is Role.SOURCE]
    return {
        "load": 1000 * sum(used.values()) / seconds / count,
        **{part: used.get(part, 0.0) / seconds for part in ("driver", "jvm", "workers")},
        "turns": turns / lasted_s / count,
        "pss": sum(pss.values()),
        "planners": len(planners),
        "planner_pss": sum(pss.get(pid, 0.0) for pid in planners),
    }


def _watch(supervisor: int, seconds: float) -> dict[str, float]:
    """Return the processor seconds by part over `seconds`."""
    pid = driver_pid(supervisor)
    processor = Processor(lambda: parts_of({"pipeline": pid}))
    look_until(time.monotonic() + seconds, processor)
    return processor.seconds()


def _restart(models: Models, supervisor: int, home: Path) -> float:
    """Kill the driver. Return the seconds until each broker has committed a turn of the next driver."""
    killed_s = time.monotonic()
    os.kill(driver_pid(supervisor), signal.SIGKILL)
    opened_s = killed_s + POLL_S  # a commit that was on its way to the broker is not one of the next driver
    _until(lambda: all(committed_s > opened_s for _, committed_s in models.look()), home)
    last_s = max(committed_s for _, committed_s in models.look())
    time.sleep(SETTLE_S / 2)
    return last_s - killed_s


if __name__ == "__main__":
    sys.exit(main())
