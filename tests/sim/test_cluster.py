"""A small share of the simulated clusters of `make sim`, and tests that a seed determines a run."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from wheelmq.broker.replication.master_watch import MasterWatch
from wheelmq.formats.kernels import jit
from wheelmq.testing.cluster import ClusterSimulation
from wheelmq.testing.simulation.__main__ import main


@pytest.mark.parametrize("first", [0, 8, 16, pytest.param(24, marks=pytest.mark.kernels)])
def test_the_simulation_of_a_cluster_finds_no_violation(first: int) -> None:
    promotions = 0
    for seed in range(first, first + 4):
        outcome = ClusterSimulation(seed).run()
        assert not outcome.violation, f"make sim CLUSTER=1 SEED={seed}: {outcome.violation}"
        assert outcome.counts["delivered"] >= 2, "the calm sends two messages"
        promotions += outcome.counts["failover"] + outcome.counts["switch"]
    assert promotions > 0


def test_an_error_in_a_task_of_a_broker_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(watch: MasterWatch) -> None:
        raise ValueError("a mistake")

    monkeypatch.setattr(MasterWatch, "_run", fail)
    assert "ValueError: a mistake" in ClusterSimulation(1, steps=1).run().violation


def test_the_same_seed_gives_the_same_cluster() -> None:
    lines: list[list[str]] = [[], []]
    digests = {ClusterSimulation(3, show=lines[i].append).run().digest for i in (0, 1)}
    assert lines[0] == lines[1]
    assert len(digests) == 1 and "" not in digests and digests != {ClusterSimulation(4).run().digest}


def test_a_seed_gives_the_same_cluster_in_another_process() -> None:
    command = [sys.executable, "-m", "wheelmq.testing.simulation", "--cluster", "--seed", "5"]
    environment = {**os.environ, "WHEELMQ_KERNELS": jit.MODE, "PYTHONHASHSEED": "7"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert f"seed 5: {ClusterSimulation(5).run().digest}" in run.stdout


def test_a_violation_names_the_command_that_repeats_the_cluster(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("wheelmq.broker.replication.role.Role.is_sync", property(lambda role: False))
    assert main(["--cluster", "--seeds", "6", "--steps", "9", "--first-only"]) == 1
    told = capsys.readouterr().out
    assert "another mode" in told and "make sim CLUSTER=1 SEED=" in told and "--cluster" in told
