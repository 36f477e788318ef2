"""Install ali-ons with the versions of package-lock.json, run the suite for it, and read the results."""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from compat.building import run_tool
from compat.suite import Asked, CaseResult, Program, run_main, run_program, suite_parser, tools_found

FOLDER = Path(__file__).parent
TARGET = FOLDER / "target"
INSTALL_DEADLINE_S = 600.0
PINS = ("package.json", "package-lock.json")


def node_found() -> str | None:
    """Return the reason to skip if Node or npm is not on the PATH; None if both are."""
    return tools_found("node", "npm")


def run_suite(asked: Asked, on_result: Callable[[CaseResult], object] = lambda result: None) -> list[CaseResult]:
    """Run the chosen cases. After a failure the client's output stays in `target/run-PID`."""
    home = TARGET / f"run-{os.getpid()}"
    environment = {**asked.environment(home), "NODE_PATH": str(install())}
    return run_program(Program(["node", str(FOLDER / "main.js")], environment), home, on_result)


def install() -> Path:
    """Return the folder of the modules. npm runs only if the pinned versions have changed."""
    TARGET.mkdir(exist_ok=True)
    stamp = TARGET / "installed"
    fingerprint = pins_of(FOLDER)
    if not stamp.exists() or stamp.read_text() != fingerprint:
        stamp.unlink(missing_ok=True)
        for name in PINS:
            shutil.copyfile(FOLDER / name, TARGET / name)
        command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--omit-lockfile-registry-resolved"]
        run_tool(command, TARGET, INSTALL_DEADLINE_S)
        stamp.write_text(fingerprint)
    return TARGET / "node_modules"


def pins_of(folder: Path) -> str:
    """Return a digest of the files with pinned versions."""
    return hashlib.sha256(b"\0".join((folder / name).read_bytes() for name in PINS)).hexdigest()


def main(argv: Sequence[str] | None = None) -> int:
    return run_main(suite_parser("compat.node", __doc__), _run, missing=node_found(), argv=argv)


def _run(options: argparse.Namespace, asked: Asked, on_result: Callable[[CaseResult], object]) -> list[CaseResult]:
    return run_suite(asked, on_result)
