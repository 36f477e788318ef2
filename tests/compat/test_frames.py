"""The broker answers each hostile frame as Apache RocketMQ does, and survives it (compat/frames)."""

from __future__ import annotations

from pathlib import Path

import pytest

from compat.frames.run import Checked, run_cases
from tests.running import up


def differences(found: list[Checked]) -> list[str]:
    return [
        f"{checked.case.name}: {checked.outcome.text()}{'' if checked.broker_lives else ', and the broker is gone'}"
        for checked in found
        if not (checked.agrees and checked.broker_lives)
    ]


@pytest.mark.timeout(240)
def test_every_hostile_frame_is_answered_as_by_apache(tmp_path: Path) -> None:
    options = ("--set", "enablePropertyFilter=true", "--set", f"log_file_bytes={16 << 20}")  # some bodies have 4 MiB
    with up(tmp_path / "home", "--no-pipeline", *options) as running:
        found = list(run_cases(running.found["broker"], ours=True))
        assert len(found) > 100
        assert differences(found) == []
        assert running.stop() == 0
