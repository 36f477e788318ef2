"""Apache's Java client finds the same with WheelMQ as with Apache RocketMQ (compat/java)."""

from __future__ import annotations

from pathlib import Path

import pytest

from compat.apache.apache import ApacheBroker, ApacheNameServer
from compat.java.run import CaseResult, run_suite
from tests.running import up

LATE_MAX_MS = 1000
"""Far above what is measured (bench/lateness), still below what a wheel of seconds can do: this machine may be busy."""

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]


def failed(results: list[CaseResult]) -> list[str]:
    return [str(result) for result in results if result.outcome != "passed"]


@pytest.mark.spark
def test_with_wheelmq(tmp_path: Path) -> None:
    with up(tmp_path / "home", "--set", f"log_file_bytes={64 << 20}") as running:
        results = run_suite(running.found["namesrv"], max_lateness_ms=LATE_MAX_MS)
        assert failed(results) == []
        assert running.stop() == 0


def test_with_apache_rocketmq(tmp_path: Path) -> None:
    """The cases tell the truth about Apache's broker too; `make compat` runs the long ones as well."""
    with ApacheNameServer(tmp_path) as names, ApacheBroker(tmp_path, names.address):
        assert failed(run_suite(names.address, fast=True)) == []
