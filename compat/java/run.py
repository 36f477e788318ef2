"""Run the suite in a JVM of its own, and read the results.

Each run uses one test JVM, built once per version of the client: `compat.apache.maven` keeps the classes until a
source changes.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from compat.apache.maven import MavenProject, java_and_maven_found
from compat.suite import LATENESS_MAX_MS, Asked, CaseResult, Program, SuiteError, run_main, run_program, suite_parser

__all__ = ["CaseResult", "SuiteError", "java_and_maven_found", "main", "run_suite"]

CLIENTS = ("5.3.3", "5.4.0")
"""Versions of the client; the first is the default."""


def project(client: str) -> MavenProject:
    """Return the suite for this version of the client, with a target folder of its own."""
    folder = Path(__file__).parent
    if client == CLIENTS[0]:
        return MavenProject(folder)
    target = f"target/{client}"
    return MavenProject(folder, target, (("rocketmq.version", client), ("suite.target", target)))


def run_suite(
    namesrv: str,
    fast: bool = False,
    max_lateness_ms: int = LATENESS_MAX_MS,
    *,
    only: str = "",
    client: str = CLIENTS[0],
    on_result: Callable[[CaseResult], object] = lambda result: None,
) -> list[CaseResult]:
    """Run the cases against the brokers of `namesrv`. Calls `on_result` with each case.

    `only` is a regular expression searched in names like `TimerTest.deliverTime`. After a failure the client's log
    stays in `target/run-PID`.
    """
    suite = project(client)
    class_path = suite.class_path()
    home = suite.target / f"run-{os.getpid()}"
    asked = Asked(namesrv, fast, max_lateness_ms, only)
    return run_program(Program(_command(class_path, home, asked)), home, on_result)


def _command(class_path: str, home: Path, asked: Asked) -> list[str]:
    command = [
        "java",
        "-Xmx256m",
        "-XX:+UseSerialGC",
        "-Djava.net.preferIPv4Stack=true",
        f"-Duser.home={home}",  # the client writes its logs and broadcast offsets there
        f"-Dnamesrv={asked.namesrv}",
        f"-DmaxLatenessMs={asked.max_lateness_ms}",
        "-cp",
        class_path,
        "org.junit.platform.console.ConsoleLauncher",
        "execute",
        "--disable-banner",
        "--details=none",
        "--select-package=wheelmq.compat",
    ]
    if asked.fast:
        command.append("--exclude-tag=slow")
    if asked.only:  # JUnit matches the whole of wheelmq.compat.TimerTest#deliverTime
        command.append(f"--include-methodname=.*({asked.only}).*")
    return command


def main(argv: Sequence[str] | None = None) -> int:
    parser = suite_parser("compat.java", __doc__)
    parser.add_argument("--client", choices=CLIENTS, default=CLIENTS[0], help=f"its version ({CLIENTS[0]})")
    return run_main(parser, _run, missing=java_and_maven_found(), argv=argv)


def _run(options: argparse.Namespace, asked: Asked, on_result: Callable[[CaseResult], object]) -> list[CaseResult]:
    return run_suite(
        asked.namesrv,
        asked.fast,
        asked.max_lateness_ms,
        only=asked.only,
        client=options.client,
        on_result=on_result,
    )
