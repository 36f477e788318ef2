"""Apache's own Java client, 5.3.3, under command: see bench/java/.../Main.java for what it obeys."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Self

import numpy as np
import numpy.typing as npt

from bench.report import Figures
from bench.targets import QUEUES, Target
from compat.apache.maven import MavenProject

PROJECT: Final = MavenProject(Path(__file__).parent / "java")
HEAP: Final = "1g"
START_DEADLINE_S: Final = 60.0

Column = npt.NDArray[np.int64]


class ClientFailed(Exception):
    """It refused a command, or ended."""


@dataclass(frozen=True)
class Arrivals:
    """What the consumer was handed, a row for each time."""

    keys: list[str]
    at_ms: Column
    """When the listener was called."""
    deliver_ms: Column
    """TIMER_DELIVER_MS; -1 without."""
    delay_ms: Column
    """TIMER_DELAY_MS; -1 without."""
    due_ms: Column
    """__WMQ_DUE; -1 without."""

    def __len__(self) -> int:
        return len(self.keys)


class JavaClient:
    """A producer of one topic, in a JVM that ends with the block; with a push consumer, but in the mode `send`.

    The consumer keeps what it is handed (`consume`), or how long that was on its way (`time`).
    """

    def __init__(
        self, target: Target, topic: str, *, body_bytes: int = 256, mode: Literal["consume", "send", "time"] = "consume"
    ) -> None:
        self._home = target.home / f"client-{topic}"
        self._words = [target.namesrv, topic, str(QUEUES), str(body_bytes), mode]

    def __enter__(self) -> Self:
        self._home.mkdir()
        options = [f"-Xms{HEAP}", f"-Xmx{HEAP}", "-XX:+AlwaysPreTouch", "-Djava.net.preferIPv4Stack=true"]
        options += [f"-Duser.home={self._home}", "-cp", PROJECT.class_path(), "wheelmq.bench.Main"]
        self._errors = self._home / "stderr.log"
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                ["java", *options, *self._words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                process_group=0,
            )
        try:
            self._hear(START_DEADLINE_S)
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()

    def command(self, text: str, deadline_s: float) -> dict[str, Any]:
        """Obey one line. Raises ClientFailed when it cannot, or not in time."""
        assert self._process.stdin is not None
        self._process.stdin.write(text + "\n")
        self._process.stdin.flush()
        return self._hear(deadline_s)

    def wait(self, count: int, deadline_s: float) -> dict[str, Any]:
        """Wait until `count` messages came, or for as long as the deadline; how many did, and the client's pauses."""
        return self.command(f"await {count} {int(deadline_s * 1000)}", deadline_s + 10)

    def arrivals(self) -> Arrivals:
        """All that came since the last reset."""
        path = self._home / "arrivals"
        self.command(f"write {path}", 60)
        rows = [line.split() for line in path.read_text().splitlines()]
        columns = np.array([[int(word) for word in row[2:]] for row in rows], np.int64).reshape(-1, 4)
        return Arrivals([row[0] for row in rows], *columns.T)

    def times(self, count: int, per_second: int, threads: int) -> tuple[dict[str, Any], Column]:
        """Send so many at that pace: what came of it, and from when each was to be sent to the listener, us."""
        path = self._home / "times"
        said = self.command(f"time {count} {per_second} {threads} {path}", 2 * count / per_second + 90)
        return said, np.array(path.read_text().split(), np.int64)

    def drain(self, count: int, deadline_s: int) -> dict[str, Any]:
        """Hand `count` messages that wait to a new group: whether that was `drained`, and `ms`, first to last."""
        return self.command(f"drain {count} {deadline_s}", deadline_s + 30)

    def reset(self) -> None:
        """Forget what came, and what pauses there were."""
        self.command("reset", 10)

    def _hear(self, deadline_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        watchdog = threading.Timer(deadline_s, self._process.kill)
        watchdog.start()
        try:
            for said in _objects(self._process.stdout):
                if "error" in said:
                    raise ClientFailed(said["error"])
                return said
        finally:
            watchdog.cancel()
        raise ClientFailed(f"no answer in {deadline_s:.0f} s: {self._errors.read_text(errors='replace')[-2000:]}")

    def _kill(self) -> None:
        with self._process:  # closes the pipes
            self._process.kill()


def pauses(said: dict[str, Any]) -> Figures:
    """How far the client itself is to be trusted, from the answer to an `await`."""
    return {name: said[name] for name in ("longest_collection_ms", "wake_p99_ms", "wake_max_ms")}


def _objects(lines: Any) -> Iterator[dict[str, Any]]:
    """The lines that are JSON objects; the client's libraries may print others."""
    for line in lines:
        if line.startswith("{"):
            yield json.loads(line)
