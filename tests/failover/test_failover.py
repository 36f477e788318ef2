"""Fifteen losses in each mode in every test run (`make failover` has 1,000), and what a seed determines."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from tests.failover.logs import difference
from tests.failover.run import Loss, Run, make_moments, report
from wheelmq.testing.harness import BrokerHarness

LOSSES = 15
SEED = 3


@pytest.mark.timeout(420)
@pytest.mark.parametrize("mode", ["SYNC_MASTER", "ASYNC_MASTER"])
def test_losses_of_machines_lose_and_repeat_nothing_that_was_replicated(mode: str, tmp_path: Path) -> None:
    outcome = asyncio.run(Run(tmp_path, LOSSES, mode, SEED, print).execute(400.0))
    print("\n".join(report(outcome)))
    assert outcome.violations == []
    assert sum(outcome.losses.values()) == LOSSES and set(outcome.losses) == set(Loss)
    assert outcome.counts["twice"] == outcome.counts["early"] == outcome.counts["invented"] == 0
    assert (outcome.lost == 0) or mode == "ASYNC_MASTER"
    assert outcome.read == outcome.counts["delivered"] > 50 * LOSSES


def test_a_seed_determines_the_losses() -> None:
    assert make_moments(40, 7) == make_moments(40, 7) != make_moments(40, 8)


@pytest.mark.parametrize("seed", range(10))
def test_each_run_of_seven_losses_has_every_kind(seed: int) -> None:
    assert Counter(moment.loss for moment in make_moments(7, seed)) == dict.fromkeys(Loss, 1)


def test_logs_that_differ_are_reported(tmp_path: Path) -> None:
    for name, body in (("a", b"one"), ("b", b"two"), ("c", b"one")):
        with BrokerHarness(tmp_path / name) as harness:
            harness.send("T", body)
            harness.stop()
    assert difference(tmp_path / "a", tmp_path / "c") is None
    assert "has other bytes" in (difference(tmp_path / "a", tmp_path / "b") or "")
