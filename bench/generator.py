"""The generator of raw frames as a process of its own, so that its work does not load this process."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench.rawload import LAST_ANSWERS_S, Bytes, Load
from bench.targets import Target

START_S: Final = 60.0

WARM_S: Final = {"Apache": 60.0, "WheelMQ": 10.0}
"""Seconds of unmeasured load after the start of a broker. The JIT compiler of Apache's JVM needs about a minute.

The rate goes up and down meanwhile, so a rule such as "until it gets no faster" ends too early.
"""
WARM_AGAIN_S: Final = 6.0
"""Seconds of unmeasured load of another shape, for a warm broker."""


def generate(address: str, topic: str, load: Load, taken: Path | None = None) -> dict[str, Any]:
    """Run a load to its end.

    Returns the result's fields and `per_second`. `taken` is a file for the accepted messages.
    """
    done = subprocess.run(
        _command(address, topic, load, taken),
        stdout=subprocess.PIPE,
        check=True,
        timeout=START_S + load.seconds + LAST_ANSWERS_S,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def fill(address: str, topic: str, load: Load) -> int:
    """Run a load until `load.messages` frames are accepted. Returns their number.

    An overloaded broker accepts fewer at once.
    """
    assert load.messages is not None
    stored = 0
    while stored < load.messages:
        missing = dataclasses.replace(load, messages=load.messages - stored)
        stored += int(generate(address, topic, missing)["good"])
    return stored


def warm_up(target: Target, topic: str, load: Load, *, is_first: bool = True) -> None:
    """Send the load unmeasured for a fixed time. `is_first` means that the broker has just started."""
    generate(target.broker, topic, dataclasses.replace(load, seconds=WARM_S[target.name] if is_first else WARM_AGAIN_S))


@contextmanager
def generating(address: str, topic: str, load: Load) -> Iterator[subprocess.Popen[bytes]]:
    """Run a load in the background. It ends with the block at the latest."""
    with subprocess.Popen(_command(address, topic, load, None), stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def generate_taken(address: str, topic: str, load: Load) -> tuple[dict[str, Any], Bytes]:
    """Do the same as `generate`, and return one byte per message: whether it was accepted."""
    with tempfile.TemporaryDirectory(prefix="bench-taken-") as folder:
        path = Path(folder) / "taken.npy"
        return generate(address, topic, load, path), np.load(path)


def _command(address: str, topic: str, load: Load, taken: Path | None) -> list[str]:
    command = [sys.executable, "-m", "bench.rawload", "--address", address, "--topic", topic]
    for field in dataclasses.fields(load):
        value = getattr(load, field.name)
        if value is None or value is False:
            continue
        if value is True:
            command.append(f"--{field.name}")
            continue
        words = value if isinstance(value, tuple) else (value,)
        command += [f"--{field.name.replace('_', '-')}", *map(str, words)]
    return command + (["--taken", str(taken)] if taken is not None else [])


@contextmanager
def sink() -> Iterator[str]:
    """Run a server that only answers. Yields its address."""
    with subprocess.Popen(
        [sys.executable, "-m", "bench.sink"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None and process.stdin is not None
            yield process.stdout.readline().strip()
        finally:
            process.kill()
