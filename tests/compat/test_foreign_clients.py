"""Clients other than the Java client 5.3.3 pass their suites with WheelMQ. `make compat` runs both brokers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

import compat.cpp.run
import compat.go.run
import compat.java.run
import compat.node.run
from compat.suite import Asked, CaseResult
from tests.running import up

LATE_MAX_MS = 1000
"""Far above the measured lateness (bench/lateness), for a busy machine. A wheel of seconds still exceeds it."""

NO_GO = compat.go.run.go_found()
NO_NODE = compat.node.run.node_found()
NO_LIBRARY = compat.cpp.run.wheel_fits()

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.environ.get("COMPAT") != "whole", reason="minutes: COMPAT=whole, as `make compat` sets it"),
]


def java_5_4_0(asked: Asked) -> list[CaseResult]:
    return compat.java.run.run_suite(asked.namesrv, max_lateness_ms=asked.max_lateness_ms, client="5.4.0")


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home = tmp_path_factory.mktemp("foreign") / "home"
    with up(home, "--set", f"log_file_bytes={64 << 20}", "--set", "enablePropertyFilter=true") as running:
        yield running.found["namesrv"]
        assert running.stop() == 0


@pytest.mark.parametrize(
    "run_suite",
    [
        pytest.param(compat.go.run.run_suite, id="go", marks=pytest.mark.skipif(NO_GO is not None, reason=str(NO_GO))),
        pytest.param(
            compat.node.run.run_suite, id="node", marks=pytest.mark.skipif(NO_NODE is not None, reason=str(NO_NODE))
        ),
        pytest.param(
            compat.cpp.run.run_suite, id="cpp", marks=pytest.mark.skipif(NO_LIBRARY is not None, reason=str(NO_LIBRARY))
        ),
        pytest.param(java_5_4_0, id="java 5.4.0", marks=pytest.mark.java),
    ],
)
def test_a_foreign_client_passes_its_suite_with_wheelmq(
    namesrv: str, run_suite: Callable[[Asked], list[CaseResult]]
) -> None:
    results = run_suite(Asked(namesrv, max_lateness_ms=LATE_MAX_MS))
    assert [str(result) for result in results if result.outcome != "passed"] == []
    assert len(results) > 15
