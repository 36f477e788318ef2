"""The state of the machine and its processes: load, processor seconds, memory."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psutil

from tests.crash.parts import Role, role_of

KIB: Final = 1024

LOOK_S: Final = 0.5

WORKERS: Final = (Role.SOURCE, Role.DAEMON, Role.TASK)


def machine() -> dict[str, float]:
    """Return the number of cores, the load of the last minute, and processor seconds since boot: all, and stolen ones.

    The hypervisor steals processor seconds from a virtual machine when it runs another one.
    """
    times = psutil.cpu_times()
    return {
        "cores": os.cpu_count() or 1,
        "load": round(os.getloadavg()[0], 2),
        "processor_s": sum(times[:8]),  # from user to steal; user includes guests
        "stolen_s": getattr(times, "steal", 0.0),
    }


def stolen_percent(before: Mapping[str, float], after: Mapping[str, float]) -> float:
    """Return the share of the processor that the hypervisor gave to other machines between two calls of `machine`."""
    return 100 * (after["stolen_s"] - before["stolen_s"]) / max(1e-9, after["processor_s"] - before["processor_s"])


def parts_of(pids: Mapping[str, int]) -> dict[int, str]:
    """Return the part of each process: broker and namesrv, and for WheelMQ also driver, jvm, workers."""
    found = {pid: name for name, pid in pids.items() if name in ("broker", "namesrv")}
    if "pipeline" in pids:
        found[pids["pipeline"]] = "driver"
        for process in family(pids["pipeline"]):
            role = role_of(process)
            found.setdefault(process.pid, "jvm" if role is Role.JVM else "workers" if role in WORKERS else "other")
    return found


def family(pid: int) -> list[psutil.Process]:
    """Return the process and its descendants that still run."""
    with contextlib.suppress(psutil.NoSuchProcess):
        head = psutil.Process(pid)
        return [head, *head.children(recursive=True)]
    return []


class Processor:
    """Processor seconds by part since its creation. Call `look` regularly, so that it counts processes that end."""

    def __init__(self, find: Callable[[], Mapping[int, str]]) -> None:
        self._find = find
        self._first: dict[tuple[int, float], float] = {}
        self._last: dict[tuple[int, float], tuple[str, float]] = {}
        self.look(is_first=True)

    def look(self, *, is_first: bool = False) -> None:
        """Read the processor time of each process. A process that was absent at first started with 0."""
        for pid, part in self._find().items():
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                used = sum(process.cpu_times()[:2])
                who = (pid, process.create_time())
                self._first.setdefault(who, used if is_first else 0.0)
                self._last[who] = (part, used)

    def seconds(self) -> dict[str, float]:
        """Return the processor seconds by part until now."""
        self.look()
        found: dict[str, float] = defaultdict(float)
        for who, (part, used) in self._last.items():
            found[part] += used - self._first[who]
        return dict(found)


@contextmanager
def watching(find: Callable[[], Mapping[int, str]]) -> Iterator[Processor]:
    """Look at the processes regularly during the block. Yields their meter.

    A task worker of Spark can end at any time, and its parent does not count its processor time.
    """
    processor = Processor(find)
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(LOOK_S):
            processor.look()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield processor
    finally:
        ended.set()
        watcher.join()


def memory_mib(pid: int) -> dict[str, float]:
    """Return proportional and anonymous memory of a process in MiB; empty if it is gone."""
    values = {}
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            name, _, rest = line.partition(":")
            if name in ("Pss", "Anonymous"):
                values[name.lower()] = int(rest.split()[0]) / KIB
    return values
