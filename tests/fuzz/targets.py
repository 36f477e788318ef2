"""The targets by name, and what is held of every one of them."""

from __future__ import annotations

import importlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, cast

NAMES = ("frames", "properties", "expressions", "batches", "bodies", "files", "requests")

CORPUS = Path(__file__).parent / "corpus"
"""A folder of inputs for each target."""

INPUT_BYTES_MAX = 4096

CPU_S_MAX = 2.0
"""Of one input. What is linear in the input takes a hundredth of it; the rest is for a machine that is busy."""


class Target(Protocol):
    """What a module of a target has."""

    TOKENS: Sequence[bytes]
    """Pieces that lead somewhere when a mutation puts them in."""

    def check(self, data: bytes) -> None:
        """Raises when something does not hold for these bytes."""
        ...


class TooSlow(AssertionError):
    """An input took longer than any may."""


def load(name: str) -> Target:
    """The target of that name; its module is imported now."""
    return cast(Target, importlib.import_module(f"tests.fuzz.{name}"))


def run(target: Target, data: bytes) -> None:
    """Check one input, and the time that it takes."""
    began = time.process_time()
    target.check(data)
    took_s = time.process_time() - began
    if took_s > CPU_S_MAX:
        raise TooSlow(f"{took_s:.1f} s of processor for {len(data)} bytes")


def corpus(name: str) -> list[bytes]:
    """The inputs that are kept for a target, in the order of their names."""
    return [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]
