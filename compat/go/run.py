"""Build the suite for client-go v2, run it, and read the results."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from compat.building import run_tool
from compat.suite import Asked, CaseResult, Program, run_main, run_program, suite_parser, tools_found

FOLDER = Path(__file__).parent
TARGET = FOLDER / "target"
BUILD_DEADLINE_S = 600.0


def go_found() -> str | None:
    """Return the reason to skip if Go is not on the PATH; None if it is."""
    return tools_found("go")


def run_suite(asked: Asked, on_result: Callable[[CaseResult], object] = lambda result: None) -> list[CaseResult]:
    """Run the chosen cases. After a failure the client's log stays in `target/run-PID`."""
    home = TARGET / f"run-{os.getpid()}"
    return run_program(Program([str(build())], asked.environment(home)), home, on_result)


def build() -> Path:
    """Build the program. With Go's cache (GOCACHE) this takes a second if no source has changed."""
    TARGET.mkdir(exist_ok=True)
    program = TARGET / "compat"
    command = ["go", "build", "-mod=readonly", "-trimpath", "-o", str(program), "."]
    run_tool(command, FOLDER, BUILD_DEADLINE_S, GOFLAGS="-modcacherw", GOTOOLCHAIN="local")
    return program


def main(argv: Sequence[str] | None = None) -> int:
    return run_main(suite_parser("compat.go", __doc__), _run, missing=go_found(), argv=argv)


def _run(options: argparse.Namespace, asked: Asked, on_result: Callable[[CaseResult], object]) -> list[CaseResult]:
    return run_suite(asked, on_result)
