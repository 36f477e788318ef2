"""The unpacked golden stores: Apache's store, the list of messages sent to it, and the rows that Apache reads."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from compat.golden.life import Life
from wheelmq.formats.kernels import jit
from wheelmq.testing.clock import ManualClock
from wheelmq.testing.harness import BrokerHarness

FOLDER = Path(__file__).parent
SIZES: dict[str, Any] = {
    "log_file_bytes": 1 << 16,
    "queue_file_bytes": 20 * 50,
    "timer_log_file_bytes": 52 * 10 + 16,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
    "timer_slots": 7 * 24 * 3600,
    "timer_roll_window_slots": 2 * 24 * 3600,
    "timer_lead_ms": 30_000,
}
"""The same sizes as in compat/golden/__main__.py."""


class Golden(NamedTuple):
    """One store with its list of messages. Each test gets a copy of its own."""

    store: Path
    life: Life
    lines: list[dict[str, Any]]
    """The rows that Apache's classes read (compat/apache: StoreDump)."""

    def rows(self, kind: str) -> list[dict[str, Any]]:
        return [{name: value for name, value in line.items() if name != "kind"} for line in self._of(kind)]

    def _of(self, kind: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["kind"] == kind]

    def open(self, **settings: Any) -> BrokerHarness:
        """Open a broker on the store, at the moment at which Apache's broker ended."""
        clock = ManualClock(self.life.ended_ms)
        return BrokerHarness(self.store, clock=clock, **{**SIZES, **settings})


@pytest.fixture(params=["stopped", "killed"])
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Golden:
    with tarfile.open(FOLDER / f"apache-{request.param}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    life = msgspec.json.decode((tmp_path / "life.json").read_bytes(), type=Life)
    lines = (tmp_path / "dump.jsonl").read_bytes().splitlines()
    return Golden(tmp_path / "store", life, [msgspec.json.decode(line) for line in lines])


@pytest.fixture(params=["compiled", "plain"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run each test with the kernels and without."""
    mode: str = request.param
    monkeypatch.setattr(jit, "MODE", mode)
    return mode
