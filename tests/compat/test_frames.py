"""Every hostile frame is answered as Apache RocketMQ answers it, and the broker lives on (compat/frames)."""

from __future__ import annotations

from pathlib import Path

import pytest

from compat.frames.run import Checked, run_cases
from tests.running import up


def differing(found: list[Checked]) -> list[str]:
    return [
        f"{checked.case.name}: {checked.outcome.text()}{'' if checked.broker_lives else ', and the broker is gone'}"
        for checked in found
        if not (checked.agrees and checked.broker_lives)
    ]


@pytest.mark.timeout(240)
def test_every_case(tmp_path: Path) -> None:
    options = ("--set", "enablePropertyFilter=true", "--set", f"log_file_bytes={16 << 20}")  # some bodies have 4 MiB
    with up(tmp_path / "home", "--no-pipeline", *options) as running:
        found = list(run_cases(running.found["broker"], ours=True))
        assert len(found) > 100
        assert differing(found) == []
        assert running.stop() == 0
