"""Install the package `rocketmq` in a folder of its own, run the suite for it, and read the results."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from compat.building import run_tool
from compat.suite import Asked, CaseResult, Program, run_main, run_program, suite_parser

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
TARGET = FOLDER / "target"
REQUIREMENTS = FOLDER / "requirements.txt"
INSTALL_DEADLINE_S = 600.0


def wheel_fits(system: str = "", machine: str = "") -> str | None:
    """Return the reason to skip if the wheel's library is not for this machine (Linux, x86_64); None if it is."""
    found = (system or platform.system(), machine or platform.machine())
    return None if found == ("Linux", "x86_64") else f"the library is for Linux on x86_64, not {' on '.join(found)}"


def run_suite(asked: Asked, on_result: Callable[[CaseResult], object] = lambda result: None) -> list[CaseResult]:
    """Run the chosen cases. After a failure the client's log stays in `target/run-PID`."""
    home = TARGET / f"run-{os.getpid()}"
    path = os.pathsep.join([str(install()), str(ROOT)])
    environment = {**asked.environment(home), "PYTHONPATH": path, "ROCKETMQ_CLIENT_LOGPATH": str(home)}
    return run_program(Program([sys.executable, "-m", "compat.cpp.main"], environment), home, on_result)


def install() -> Path:
    """Return the folder of the package. pip runs only if the pinned versions have changed."""
    TARGET.mkdir(exist_ok=True)
    stamp, site = TARGET / "installed", TARGET / "site"
    if not stamp.exists() or stamp.read_text() != REQUIREMENTS.read_text():
        stamp.unlink(missing_ok=True)
        shutil.rmtree(site, ignore_errors=True)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:"]
        command += ["--require-hashes", "--target", str(site), "-r", str(REQUIREMENTS)]
        run_tool(command, FOLDER, INSTALL_DEADLINE_S)
        stamp.write_text(REQUIREMENTS.read_text())
    return site


def main(argv: Sequence[str] | None = None) -> int:
    return run_main(suite_parser("compat.cpp", __doc__), _run, missing=wheel_fits(), argv=argv)


def _run(options: argparse.Namespace, asked: Asked, on_result: Callable[[CaseResult], object]) -> list[CaseResult]:
    return run_suite(asked, on_result)
