"""mqadmin prints the same for WheelMQ and Apache RocketMQ, except for explained differences (compat/mqadmin)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from compat.mqadmin import access_steps
from compat.mqadmin.run import PLAIN, WITH_USERS, compare
from compat.mqadmin.steps import CONFIG, STEPS
from tests.running import up

FINDINGS = Path(__file__).parents[2] / "compat" / "mqadmin" / "FINDINGS.md"


@pytest.mark.timeout(300)
@pytest.mark.skipif(os.environ.get("COMPAT") != "whole", reason="takes a minute, and needs Java: make compat")
def test_every_command_prints_the_same_as_with_apache(tmp_path: Path) -> None:
    settings = [word for name, value in CONFIG.items() for word in ("--set", f"{name}={value}")]
    with up(tmp_path / "home", "--no-pipeline", *settings) as running:
        namesrv, broker = running.found["namesrv"], running.found["broker"]
        outcomes = compare(PLAIN, namesrv, broker, tmp_path / "tool", ours=True)
        assert [one.text() for one in outcomes if not one.agrees] == []
        assert running.stop() == 0


@pytest.mark.timeout(300)
@pytest.mark.skipif(os.environ.get("COMPAT") != "whole", reason="needs Java: make compat")
def test_every_command_for_users_and_access_lists_prints_the_same_as_with_apache(tmp_path: Path) -> None:
    config = tmp_path / "broker.conf"
    config.write_text("".join(f"{name}={value}\n" for name, value in access_steps.SETTINGS.items()))
    with up(tmp_path / "home", "--no-pipeline", "--config", str(config)) as running:
        namesrv, broker = running.found["namesrv"], running.found["broker"]
        outcomes = compare(WITH_USERS, namesrv, broker, tmp_path / "tool", ours=True)
        assert [one.text() for one in outcomes if not one.agrees] == []
        assert running.stop() == 0


def test_the_findings_name_each_command_that_differs() -> None:
    told = FINDINGS.read_text()
    assert [step.name for step in STEPS if step.why and f"`{step.command.split()[0]}`" not in told] == []


def test_step_names_are_unique() -> None:
    for steps in (STEPS, access_steps.STEPS):
        assert len({step.name for step in steps}) == len(steps)
