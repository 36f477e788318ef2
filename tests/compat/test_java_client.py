"""Apache's Java client passes its suite with WheelMQ, without the slow cases. `make compat` runs all (compat/java)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from compat.java.run import CaseResult, run_suite
from compat.suite import CONFIG
from tests.running import up

LATE_MAX_MS = 1000
"""Far above the measured lateness (bench/lateness), for a busy machine. A wheel of seconds still exceeds it."""
IS_WHOLE = os.environ.get("COMPAT") == "whole"

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]


def failures(results: list[CaseResult]) -> list[str]:
    return [str(result) for result in results if result.outcome != "passed"]


@pytest.mark.spark
def test_the_java_client_passes_its_suite_with_wheelmq(tmp_path: Path) -> None:
    settings = [word for name, value in CONFIG.items() for word in ("--set", f"{name}={value}")]
    with up(tmp_path / "home", "--set", f"log_file_bytes={64 << 20}", *settings) as running:
        results = run_suite(running.found["namesrv"], not IS_WHOLE, LATE_MAX_MS)
        assert failures(results) == []
        assert running.stop() == 0
