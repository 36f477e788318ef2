"""A small share of `make sim`, and tests that a seed determines a run."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from wheelmq.formats.kernels import jit
from wheelmq.testing.simulation import Simulation
from wheelmq.testing.simulation.__main__ import main
from wheelmq.testing.simulation.spark import Driver


@pytest.mark.parametrize("first", [0, 4, 8, pytest.param(16, marks=pytest.mark.kernels)])
def test_the_simulation_finds_no_violation(first: int) -> None:
    for seed in range(first, first + 4):
        outcome = Simulation(seed).run()
        assert not outcome.violation, f"make sim SEED={seed}: {outcome.violation}"
        assert outcome.counts["delivered"] > 3


@pytest.mark.parametrize(
    ("driver", "seed"), [(Driver.NEVER, 105), (Driver.AWAY, 105), (Driver.HUNG, 105), (Driver.CRASHING, 106)]
)
def test_no_message_is_overdue_without_working_drivers(driver: Driver, seed: int) -> None:
    """No message is overdue while drivers are away, hang or crash. In the calm, each leaves at its millisecond."""
    outcome = Simulation(seed, driver=driver, steps=60).run()
    assert not outcome.violation, f"seed {seed} --driver {driver} --steps 60: {outcome.violation}"
    assert outcome.counts["armed by the wheel lane"] > 0


def test_the_simulation_finds_a_broker_that_does_not_scan_the_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wheelmq.delay.timer.wheel_lane.WheelLane.poll", lambda *_: False)
    monkeypatch.setattr("wheelmq.delay.timer.wheel_lane.WheelLane.next_ms", lambda *_: None)
    assert "overdue" in Simulation(105, driver=Driver.AWAY, steps=60).run().violation


def test_the_same_seed_gives_the_same_run() -> None:
    lines: list[list[str]] = [[], []]
    digests = {Simulation(3, steps=60, show=lines[i].append).run().digest for i in (0, 1)}
    assert lines[0] == lines[1]
    assert len(digests) == 1 and digests != {Simulation(4, steps=60).run().digest}


def test_a_seed_gives_the_same_run_in_another_process() -> None:
    command = [sys.executable, "-m", "wheelmq.testing.simulation", "--seed", "3", "--steps", "60"]
    environment = {**os.environ, "WHEELMQ_KERNELS": jit.MODE, "PYTHONHASHSEED": "7"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert f"seed 3: {Simulation(3, steps=60).run().digest}" in run.stdout


def test_a_violation_names_the_command_that_repeats_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("wheelmq.broker.state.consumer_offsets.ConsumerOffsets.get", lambda *_: 99)
    assert main(["--seeds", "2", "--steps", "40", "--first-only"]) == 1
    told = capsys.readouterr().out
    assert "offset 99 of" in told and "make sim SEED=0 STEPS=40" in told
