"""What holds for all tests: how they are spread over processes, and what becomes of those that need a JDK and Maven.

Those are skipped aloud where there are none, and an error in CI.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from compat.apache.maven import java_and_maven_found

NO_JAVA = java_and_maven_found()
IS_CI = os.environ.get("CI") == "true"
SPARK_FOLDER = Path(__file__).parent / "spark"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With more than one process (`-n`), a file's tests stay together, and all that share the one Spark session."""
    for item in items:
        group = "spark" if item.path.is_relative_to(SPARK_FOLDER) else str(item.path)
        item.add_marker(pytest.mark.xdist_group(group))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if NO_JAVA is None or item.get_closest_marker("java") is None:
        return
    if IS_CI:
        pytest.fail(f"{NO_JAVA}: in CI nothing may be left out", pytrace=False)
    pytest.skip(NO_JAVA)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = [report.nodeid for report in terminalreporter.stats.get("skipped", []) if "java" in report.keywords]
    if NO_JAVA is None or not skipped:
        return
    terminalreporter.section("NOT TESTED AGAINST APACHE ROCKETMQ", sep="!", red=True, bold=True)
    terminalreporter.line(f"{NO_JAVA}. Install a JDK (17 or newer) and Maven, and run again. Left out were:")
    for name in skipped:
        terminalreporter.line(f"  {name}")
