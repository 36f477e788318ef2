"""Run the suite in a JVM of its own, and read the results.

Each run uses one test JVM, built once per version of the client: `compat.apache.maven` keeps the classes until a
source changes.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from compat.apache.maven import MavenProject, java_and_maven_found
from compat.certificates import Pair
from compat.suite import LATENESS_MAX_MS, Asked, CaseResult, Program, SuiteError, run_main, run_program, suite_parser

__all__ = ["CORE", "CaseResult", "JavaTls", "SuiteError", "java_and_maven_found", "main", "run_suite"]

CLIENTS = ("5.3.3", "5.4.0")
"""Versions of the client; the first is the default."""
CORE = "SendTest|ConsumeTest|LitePullTest|DelayLevelTest|TimerTest|TransactionTest|QueryTest|RefusalTest"
"""A pattern of the cases that use each way of a message, for a second run with TLS."""


def project(client: str) -> MavenProject:
    """Return the suite for this version of the client, with a target folder of its own."""
    folder = Path(__file__).parent
    if client == CLIENTS[0]:
        return MavenProject(folder)
    target = f"target/{client}"
    return MavenProject(folder, target, (("rocketmq.version", client), ("suite.target", target)))


@dataclass(frozen=True)
class JavaTls:
    """TLS of the client. Without an authority it trusts any server, as Apache's default is."""

    authority: Path | None = None
    own: Pair | None = None
    """The client's own certificate. It needs an authority, because the client's test mode sends none."""

    def properties(self) -> dict[str, object]:
        """Return the properties of Java that the client reads."""
        found: dict[str, object] = {"tls.enable": "true"}
        if self.authority is not None:
            found |= {"tls.test.mode.enable": "false", "tls.client.authServer": "true"}
            found["tls.client.trustCertPath"] = self.authority
        if self.own is not None:
            found |= {"tls.client.certPath": self.own.certificate, "tls.client.keyPath": self.own.key}
        return found


def run_suite(
    namesrv: str,
    fast: bool = False,
    max_lateness_ms: int = LATENESS_MAX_MS,
    *,
    only: str = "",
    client: str = CLIENTS[0],
    tls: JavaTls | None = None,
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
    return run_program(Program(_command(class_path, home, asked, tls)), home, on_result)


def _command(class_path: str, home: Path, asked: Asked, tls: JavaTls | None) -> list[str]:
    command = [
        "java",
        "-Xmx256m",
        "-XX:+UseSerialGC",
        "-Djava.net.preferIPv4Stack=true",
        f"-Duser.home={home}",  # the client writes its logs and broadcast offsets there
        f"-Dnamesrv={asked.namesrv}",
        f"-DmaxLatenessMs={asked.max_lateness_ms}",
        *(f"-D{name}={value}" for name, value in ({} if tls is None else tls.properties()).items()),
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
    parser.add_argument("--tls", action="store_true", help="connect with TLS, and trust any server")
    parser.add_argument("--tls-ca", type=Path, metavar="FILE", help="connect with TLS, and trust these certificates")
    return run_main(parser, _run, missing=java_and_maven_found(), argv=argv)


def _run(options: argparse.Namespace, asked: Asked, on_result: Callable[[CaseResult], object]) -> list[CaseResult]:
    return run_suite(
        asked.namesrv,
        asked.fast,
        asked.max_lateness_ms,
        only=asked.only,
        client=options.client,
        tls=JavaTls(options.tls_ca) if options.tls or options.tls_ca is not None else None,
        on_result=on_result,
    )
