"""The targets by name, and the rules of all targets."""

from __future__ import annotations

import importlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, cast

NAMES = ("frames", "properties", "expressions", "batches", "bodies", "files", "requests", "access", "entrance")

CORPUS = Path(__file__).parent / "corpus"
"""A folder of inputs for each target."""

INPUT_BYTES_MAX = 4096

CPU_S_MAX = 2.0
"""Limit of one input. Work that is linear in the input takes a hundredth of it, so a busy machine stays within it."""


class Target(Protocol):
    """The members of a target module."""

    TOKENS: Sequence[bytes]
    """Pieces that a mutation inserts to reach new branches."""

    def check(self, data: bytes) -> None:
        """Check the rules. Raises an error if these bytes violate one."""
        ...


class TooSlow(AssertionError):
    """An input exceeded CPU_S_MAX."""


def load(name: str) -> Target:
    """Import and return the target with this name."""
    return cast(Target, importlib.import_module(f"tests.fuzz.{name}"))


def run(target: Target, data: bytes) -> None:
    """Check one input and its processor time. Raises TooSlow."""
    began = time.process_time()
    target.check(data)
    took_s = time.process_time() - began
    if took_s > CPU_S_MAX:
        raise TooSlow(f"{took_s:.1f} s of processor for {len(data)} bytes")


def corpus(name: str) -> list[bytes]:
    """Return the stored inputs of a target, in the order of their names."""
    return [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]
