"""Apache's own Java client, 5.3.3, under remote control; bench/java/.../Main.java lists its commands."""

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
    """The client rejected a command, or ended."""


@dataclass(frozen=True)
class Arrivals:
    """The deliveries to the consumer, one row each."""

    keys: list[str]
    at_ms: Column
    """The time of the listener's call."""
    deliver_ms: Column
    """TIMER_DELIVER_MS; -1 without."""
    delay_ms: Column
    """TIMER_DELAY_MS; -1 without."""
    due_ms: Column
    """__WMQ_DUE; -1 without."""

    def __len__(self) -> int:
        return len(self.keys)


class JavaClient:
    """A producer of one topic, in a JVM that ends with the block. Except in the mode `send` it has a push consumer.

    The consumer keeps the messages (`consume`) or their latencies (`time`).
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

    @property
    def pid(self) -> int:
        return self._process.pid

    def command(self, text: str, deadline_s: float) -> dict[str, Any]:
        """Execute one command. Raises ClientFailed if it fails or exceeds the deadline."""
        assert self._process.stdin is not None
        self._process.stdin.write(text + "\n")
        self._process.stdin.flush()
        return self._hear(deadline_s)

    def wait(self, count: int, deadline_s: float) -> dict[str, Any]:
        """Wait for `count` messages, at most until the deadline.

        Returns the number of messages, and the client's pauses.
        """
        return self.command(f"await {count} {int(deadline_s * 1000)}", deadline_s + 10)

    def arrivals(self) -> Arrivals:
        """Return all deliveries since the last reset."""
        path = self._home / "arrivals"
        self.command(f"write {path}", 60)
        rows = [line.split() for line in path.read_text().splitlines()]
        columns = np.array([[int(word) for word in row[2:]] for row in rows], np.int64).reshape(-1, 4)
        return Arrivals([row[0] for row in rows], *columns.T)

    def times(self, count: int, per_second: int, threads: int) -> tuple[dict[str, Any], Column]:
        """Send `count` messages at a rate.

        Returns the result, and the time from each scheduled send to the listener, us.
        """
        path = self._home / "times"
        said = self.command(f"time {count} {per_second} {threads} {path}", 2 * count / per_second + 90)
        return said, np.array(path.read_text().split(), np.int64)

    def drain(self, count: int, deadline_s: int) -> dict[str, Any]:
        """Deliver `count` stored messages to a new group.

        Returns whether that was `drained`, and `ms` from first to last.
        """
        return self.command(f"drain {count} {deadline_s}", deadline_s + 30)

    def reset(self) -> None:
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
    """Return the client's own pauses from the answer to an `await`. They limit the trust in its figures."""
    return {name: said[name] for name in ("longest_collection_ms", "wake_p99_ms", "wake_max_ms")}


def _objects(lines: Any) -> Iterator[dict[str, Any]]:
    """Yield the lines that are JSON objects. The client's libraries may print other lines."""
    for line in lines:
        if line.startswith("{"):
            yield json.loads(line)
