"""Tests that need a JDK and Maven: skipped aloud where they are not, and an error in CI."""

from __future__ import annotations

import os

import pytest

from compat.apache.maven import java_and_maven_found

NO_JAVA = java_and_maven_found()
IS_CI = os.environ.get("CI") == "true"

_skipped: list[str] = []


def pytest_runtest_setup(item: pytest.Item) -> None:
    if NO_JAVA is None or item.get_closest_marker("java") is None:
        return
    if IS_CI:
        pytest.fail(f"{NO_JAVA}: in CI nothing may be left out", pytrace=False)
    _skipped.append(item.nodeid)
    pytest.skip(NO_JAVA)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _skipped:
        return
    terminalreporter.section("NOT TESTED AGAINST APACHE ROCKETMQ", sep="!", red=True, bold=True)
    terminalreporter.line(f"{NO_JAVA}. Install a JDK (17 or newer) and Maven, and run again. Left out were:")
    for name in _skipped:
        terminalreporter.line(f"  {name}")
