"""WheelMQ as its users run it: `wheelmq up` in separate processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

START_DEADLINE_S = 150
"""The first start after a change of the kernels compiles them."""
STOP_DEADLINE_S = 60
COMMAND_DEADLINE_S = 60
SMALL = ("--set", f"log_file_bytes={1 << 22}", "--set", "timer_slots=3600", "--set", "timer_roll_window_slots=1800")


def wheelmq(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", "wheelmq", *arguments]


class Up:
    """A running `wheelmq up --json`."""

    def __init__(self, process: subprocess.Popen[str], found: dict[str, Any], errors: Path) -> None:
        self.process = process
        self.found = found
        self.errors = errors

    def command(self, *arguments: str) -> str:
        """Run a command that must succeed. Returns its output."""
        command = wheelmq(*arguments, "--namesrv", self.found["namesrv"])
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_DEADLINE_S)
        assert done.returncode == 0, (arguments, done.stderr, self.errors.read_text())
        return done.stdout

    def failing_command(self, *arguments: str) -> str:
        """Run a command that must end with code 1. Returns its output and errors."""
        command = wheelmq(*arguments, "--namesrv", self.found["namesrv"])
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_DEADLINE_S)
        assert done.returncode == 1, (arguments, done.stdout, done.stderr)
        return done.stdout + done.stderr

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(STOP_DEADLINE_S)


@contextmanager
def up(home: Path, *options: str) -> Iterator[Up]:
    """Start all servers. A process that is left at the end is an error."""
    errors = home.parent / "up.err"
    ports = [f"--{part}-port=0" for part in ("namesrv", "broker", "dashboard")]
    environment = {**os.environ, "WHEELMQ_JAVA_CACHE": "use"}
    with errors.open("w") as file:
        process = subprocess.Popen(
            wheelmq("up", "--home", str(home), "--json", *ports, *SMALL, *options),
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
            env=environment,
        )
    family: list[psutil.Process] = []
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, errors.read_text()
        family = psutil.Process(process.pid).children(recursive=True)
        yield Up(process, json.loads(line), errors)
        assert process.poll() is not None, "the test ends with what it started"
        _, left = psutil.wait_procs(family, timeout=5)
        assert left == []
    finally:
        for one in family:
            if one.is_running():
                one.kill()
        if process.poll() is None:
            process.kill()
        process.communicate()


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]
