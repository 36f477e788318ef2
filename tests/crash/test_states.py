"""150 states of the disk in every test run (`make states` has 10,000), and faulty brokers that must be detected."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from tests.crash import states
from tests.crash.states import Explorer, report
from wheelmq.delay.blocks.blocks import Blocks
from wheelmq.store import mapped, recovery

pytestmark = pytest.mark.timeout(400)
COUNT = 100
FEW = 40
MESSAGES = 250


def explore(folder: Path, count: int, flush: str = "SYNC_FLUSH") -> Explorer:
    """Try states of a shorter run."""
    explorer = Explorer(count, 1, flush=flush, messages=MESSAGES)
    explorer.explore(folder)
    print("\n".join(report(explorer, 0.0)))
    return explorer


def test_a_power_cut_loses_and_corrupts_no_acknowledged_message(tmp_path: Path) -> None:
    explorer = explore(tmp_path, COUNT)
    assert not explorer.wrong
    assert sum(explorer.by_kind.values()) == COUNT and len(explorer.by_kind) == 3
    assert explorer.drained >= 4


def test_answers_before_the_sync_are_detected(tmp_path: Path) -> None:
    assert explore(tmp_path, FEW, "ASYNC_FLUSH").wrong["lost"] > 0


def test_a_start_without_checksum_checks_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "body_bytes", lambda number: 10_000)  # a middle page of each body may be missing
    monkeypatch.setattr(recovery, "LogScan", functools.partial(recovery.LogScan, check_bodies=False))
    assert explore(tmp_path, 2 * FEW).wrong["corrupt"] > 0


def test_answers_before_the_sync_of_blocks_are_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Blocks, "flush_job", lambda blocks: (blocks.end, list))
    assert explore(tmp_path, FEW).wrong["lost"] > 0


def test_a_missing_sync_of_new_block_names_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped, "NAMES_ABOVE", 0)
    assert explore(tmp_path, FEW).wrong["lost"] > 0
