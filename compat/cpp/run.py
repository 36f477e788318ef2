"""Installs the package `rocketmq` in a folder of its own, runs the suite for it and reads the results as they come."""

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
TARGET = FOLDER / "target"
REQUIREMENTS = FOLDER / "requirements.txt"
INSTALL_DEADLINE_S = 600.0


def wheel_fits(system: str = "", machine: str = "") -> str | None:
    """None when the wheel's library is for this machine (Linux, x86_64), else the reason to skip."""
    found = (system or platform.system(), machine or platform.machine())
    return None if found == ("Linux", "x86_64") else f"the library is for Linux on x86_64, not {' on '.join(found)}"


def run_suite(asked: Asked, on_result: Callable[[CaseResult], object] = lambda result: None) -> list[CaseResult]:
    """Run the cases that are asked for; after failures the client's log stays in `target/run-PID`."""
    home = TARGET / f"run-{os.getpid()}"
    environment = {**asked.environment(home), "PYTHONPATH": str(install()), "ROCKETMQ_CLIENT_LOGPATH": str(home)}
    return run_program(Program([sys.executable, str(FOLDER / "main.py")], environment), home, on_result)


def install() -> Path:
    """The folder of the package; pip runs only when what is pinned has changed."""
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
