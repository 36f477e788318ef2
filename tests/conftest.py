"""Rules for all tests: their distribution over processes, and tests that need a JDK and Maven.

Without a JDK and Maven those tests are skipped with a visible notice. In CI they fail.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from compat.apache.maven import java_and_maven_found

NO_JAVA = java_and_maven_found()
IS_CI = os.environ.get("CI") == "true"
FOLDER = Path(__file__).parent
LONG = (
    "crash/test_kills.py",
    "twin/test_bounds.py",
    "compat/test_handover.py",
    "compat/test_handover_units.py",
    "compat/test_java_client.py",
    "crash/test_sends.py",
    "spark",
    "crash/test_skew.py",
    "crash/test_brokers.py",
    "system/test_up.py",
    "compat",
    "crash",
    "fuzz",
)
"""The slowest files and folders, in this order. They start first, so that no process runs alone at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> int:
        return next((i for i, name in enumerate(LONG) if item.path.is_relative_to(FOLDER / name)), len(LONG))

    items.sort(key=rank)


class Spread(LoadScopeScheduling):
    """With more than one process (`-n`), one process runs all tests of a file, and one runs all Spark tests.

    The option `--dist loadgroup` of xdist groups nothing with pytest 9.2, which ignores the name that xdist sets.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "spark" if file.startswith("tests/spark/") else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Spread:
    config.option.loadscopereorder = False  # the order is that of LONG
    return Spread(config, log)


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
