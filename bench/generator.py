"""The generator of raw frames as a process of its own, so that its work is not in ours."""

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

START_S: Final = 60.0

WARM_SLICE_S: Final = 3.0
WARM_GROWTH: Final = 1.1
"""A broker is warm when a slice of load brings no more than this much above the best before."""
WARM_SLICES: Final = 16
"""A JVM on a busy machine takes up to half a minute until its code is compiled."""


def generate(address: str, topic: str, load: Load, taken: Path | None = None) -> dict[str, Any]:
    """Run a load to its end; the result's fields and `per_second`. `taken` is a file for which messages were taken."""
    done = subprocess.run(
        _command(address, topic, load, taken),
        stdout=subprocess.PIPE,
        check=True,
        timeout=START_S + load.seconds + LAST_ANSWERS_S,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def warm_up(address: str, topic: str, load: Load) -> None:
    """Send such a load, unmeasured, until the broker gets no faster; at most `WARM_SLICES` times."""
    best = 0.0
    for i in range(WARM_SLICES):
        rate = generate(address, topic, dataclasses.replace(load, seconds=WARM_SLICE_S))["per_second"]
        if i >= 2 and rate < best * WARM_GROWTH:
            return
        best = max(best, rate)


@contextmanager
def generating(address: str, topic: str, load: Load) -> Iterator[subprocess.Popen[bytes]]:
    """A load that runs beside us; it ends with the block at the latest."""
    with subprocess.Popen(_command(address, topic, load, None), stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def generate_taken(address: str, topic: str, load: Load) -> tuple[dict[str, Any], Bytes]:
    """As `generate`, with a byte for each message: whether it was taken."""
    with tempfile.TemporaryDirectory(prefix="bench-taken-") as folder:
        path = Path(folder) / "taken.npy"
        return generate(address, topic, load, path), np.load(path)


def _command(address: str, topic: str, load: Load, taken: Path | None) -> list[str]:
    command = [sys.executable, "-m", "bench.rawload", "--address", address, "--topic", topic]
    for field in dataclasses.fields(load):
        value = getattr(load, field.name)
        if value is None:
            continue
        words = value if isinstance(value, tuple) else (value,)
        command += [f"--{field.name.replace('_', '-')}", *map(str, words)]
    return command + (["--taken", str(taken)] if taken is not None else [])


@contextmanager
def sink() -> Iterator[str]:
    """The address of a server that answers and does nothing else."""
    with subprocess.Popen(
        [sys.executable, "-m", "bench.sink"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None and process.stdin is not None
            yield process.stdout.readline().strip()
        finally:
            process.kill()
