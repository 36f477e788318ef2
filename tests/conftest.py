"""Rules for all tests: their code, their distribution over processes, and tests that need other programs.

A test runs the kernels or the plain code. WHEELMQ_KERNELS=compiled or =plain decides it for all tests but those with
a mark. Without it, the unit tests, the property tests and the simulation run the plain code.

Tests that need a JDK and Maven, or Chromium, are skipped without them, with a visible notice. In CI those with Java
fail. Chromium is not in any package that the lock file names, so CI may be without it.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Generator
from pathlib import Path
from unittest import mock

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from compat.apache.maven import java_and_maven_found
from tests.browser.chromium import VARIABLE, find_chromium
from wheelmq.formats.kernels import jit
from wheelmq.formats.kernels.cache import use_cache

NO_JAVA = java_and_maven_found()
NO_BROWSER = None if find_chromium() else "there is no Chromium on the PATH"
IS_CI = os.environ.get("CI") == "true"
FOLDER = Path(__file__).parent
LONG = (
    "crash/test_kills.py",
    "twin/test_bounds.py",
    "compat/test_handover.py",
    "compat/test_java_client.py",
    "crash/test_sends.py",
    "crash/test_copies.py",
    "spark",
    "crash/test_skew.py",
    "crash/test_brokers.py",
    "system/test_up.py",
    "system/test_tls.py",
    "compat",
    "crash",
    "fuzz",
)
"""The slowest files and folders, in this order. They start first, so that no process runs alone at the end."""


PLAIN = ("unit", "property", "sim", "ship", "deploy", "browser")
"""The folders whose tests run the plain code by default."""
BOTH = ("twin", "golden")
"""The folders whose tests compare the kernels and the plain code."""

use_cache()  # with WHEELMQ_KERNELS=plain too: marked tests call kernels


def mode_of(item: pytest.Item) -> str:
    """Return the code that a test runs: `compiled` or `plain`."""
    folder = item.path.relative_to(FOLDER).parts[0] if item.path.is_relative_to(FOLDER) else ""
    if item.get_closest_marker("kernels") is not None or folder in BOTH:
        return "compiled"
    if item.get_closest_marker("plain") is not None:
        return "plain"
    return os.environ.get("WHEELMQ_KERNELS") or ("plain" if folder in PLAIN else "compiled")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    with mock.patch.multiple(jit, MODE=mode_of(item), _is_held_back=False):  # a broker may hold the kernels back
        return (yield)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--share", type=int, default=1, metavar="N", help="run one test of N, always the same ones")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    share = config.getoption("--share")
    left_out = [item for item in items if zlib.crc32(item.nodeid.encode()) % share]
    if left_out:
        items[:] = [item for item in items if zlib.crc32(item.nodeid.encode()) % share == 0]
        config.hook.pytest_deselected(items=left_out)

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
    if NO_BROWSER is not None and item.get_closest_marker("browser") is not None:
        pytest.skip(NO_BROWSER)
    if NO_JAVA is None or item.get_closest_marker("java") is None:
        return
    if IS_CI:
        pytest.fail(f"{NO_JAVA}: in CI nothing may be left out", pytrace=False)
    pytest.skip(NO_JAVA)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for mark, title, remedy in (
        ("java", "NOT TESTED AGAINST APACHE ROCKETMQ", f"{NO_JAVA}. Install a JDK (17 or newer) and Maven"),
        ("browser", "NOT TESTED IN A BROWSER", f"{NO_BROWSER}. Install one, or name it in {VARIABLE}"),
    ):
        skipped = [report.nodeid for report in terminalreporter.stats.get("skipped", []) if mark in report.keywords]
        if skipped:
            terminalreporter.section(title, sep="!", red=True, bold=True)
            terminalreporter.line(f"{remedy}, and run again. Left out were:")
            for name in skipped:
                terminalreporter.line(f"  {name}")
