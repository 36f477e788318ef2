"""mqadmin's commands print of WheelMQ what they print of Apache RocketMQ, but for what is told why (compat/mqadmin)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from compat.mqadmin.run import compare
from compat.mqadmin.steps import CONFIG, STEPS
from tests.running import up

FINDINGS = Path(__file__).parents[2] / "compat" / "mqadmin" / "FINDINGS.md"


@pytest.mark.timeout(300)
@pytest.mark.skipif(os.environ.get("COMPAT") != "whole", reason="takes a minute, and needs Java: make compat")
def test_every_command(tmp_path: Path) -> None:
    settings = [word for name, value in CONFIG.items() for word in ("--set", f"{name}={value}")]
    with up(tmp_path / "home", "--no-pipeline", *settings) as running:
        namesrv, broker = running.found["namesrv"], running.found["broker"]
        differing = [one.text() for one in compare(namesrv, broker, tmp_path / "tool", ours=True) if not one.agrees]
        assert differing == []
        assert running.stop() == 0


def test_what_differs_is_told() -> None:
    told = FINDINGS.read_text()
    assert [step.name for step in STEPS if step.why and f"`{step.command.split()[0]}`" not in told] == []


def test_names_are_unique() -> None:
    assert len({step.name for step in STEPS}) == len(STEPS)
