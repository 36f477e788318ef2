"""Runs the suite in a JVM of its own and reads the results as they come.

One test JVM per run, built once: `compat.apache.maven` keeps the classes until a source changes.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from compat.apache.__main__ import setting
from compat.apache.apache import ApacheBroker, ApacheNameServer, StartError
from compat.apache.maven import BuildError, MavenProject, java_and_maven_found

__all__ = ["CaseResult", "SuiteError", "java_and_maven_found", "main", "run_suite"]

PROJECT = MavenProject(Path(__file__).parent)
LATENESS_MAX_MS = 2_500
CONFIG = {"enablePropertyFilter": "true"}
"""What a broker is started with for the cases; the rest is its defaults."""
RUN_DEADLINE_S = 300.0
_ENDED_WITH_RESULTS = (0, 1)  # of JUnit's console launcher: all passed, some failed
_RESULT_LINE_START = '{"case":'


class SuiteError(Exception):
    """The run itself broke: no case, or a JVM that did not end in order."""


@dataclass(frozen=True)
class CaseResult:
    """One case; `measures` holds what it reported, as `lateness_p99_ms`."""

    name: str
    outcome: str
    """"passed", "failed" or "skipped"."""
    seconds: float
    reason: str
    measures: dict[str, float]

    @property
    def failed(self) -> bool:
        return self.outcome == "failed"

    def __str__(self) -> str:
        measures = "  ".join(f"{name} {value:.0f}" for name, value in sorted(self.measures.items()))
        told = "  ".join(part for part in (measures, " ".join(self.reason.split())) if part)
        return f"{self.outcome:7} {self.seconds:6.2f} s  {self.name}  {told}".rstrip()


def run_suite(
    namesrv: str,
    fast: bool = False,
    max_lateness_ms: int = LATENESS_MAX_MS,
    *,
    only: str = "",
    on_result: Callable[[CaseResult], object] = lambda result: None,
) -> list[CaseResult]:
    """Run the cases against the brokers of `namesrv`; `on_result` hears each as it ends.

    `only` is a regular expression searched in names like `TimerTest.deliverTime`. After failures the client's log
    stays in `target/run-PID`.
    """
    class_path = PROJECT.class_path()
    home = PROJECT.target / f"run-{os.getpid()}"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    error_log = home / "stderr.log"
    with error_log.open("wb") as errors:
        process = subprocess.Popen(
            _command(class_path, home, namesrv, fast, max_lateness_ms, only),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=home,
        )
    watchdog = threading.Timer(RUN_DEADLINE_S, process.kill)
    watchdog.start()
    results = []
    told = []
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(_RESULT_LINE_START):
                results.append(_result(line))
                on_result(results[-1])
            else:
                told.append(line)
        code = process.wait()
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()
    if not results or code not in _ENDED_WITH_RESULTS:
        said = "".join(told)[-2000:] + error_log.read_text(errors="replace")[-2000:]
        raise SuiteError(f"the test JVM ended with code {code} after {len(results)} cases:\n{said}")
    if not any(result.failed for result in results):
        shutil.rmtree(home)
    return results


def _command(class_path: str, home: Path, namesrv: str, fast: bool, max_lateness_ms: int, only: str) -> list[str]:
    command = [
        "java",
        "-Xmx256m",
        "-XX:+UseSerialGC",
        "-Djava.net.preferIPv4Stack=true",
        f"-Duser.home={home}",  # the client writes its logs and broadcast offsets there
        f"-Dnamesrv={namesrv}",
        f"-DmaxLatenessMs={max_lateness_ms}",
        "-cp",
        class_path,
        "org.junit.platform.console.ConsoleLauncher",
        "execute",
        "--disable-banner",
        "--details=none",
        "--select-package=wheelmq.compat",
    ]
    if fast:
        command.append("--exclude-tag=slow")
    if only:  # JUnit matches the whole of wheelmq.compat.TimerTest#deliverTime
        command.append(f"--include-methodname=.*({only}).*")
    return command


def _result(line: str) -> CaseResult:
    fields = json.loads(line)
    return CaseResult(
        name=fields["case"],
        outcome=fields["outcome"],
        seconds=fields["seconds"],
        reason=fields["reason"],
        measures={name: float(value) for name, value in fields["measures"].items()},
    )


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    if reason := java_and_maven_found():
        print(f"cannot run: {reason}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the servers and the JVM go with us
    try:
        with _target(options.target, dict(options.set)) as namesrv:
            started_at_s = time.monotonic()
            results = run_suite(
                namesrv,
                options.fast,
                options.max_lateness_ms,
                only=options.only,
                on_result=lambda result: print(result, flush=True),
            )
            took_s = time.monotonic() - started_at_s
    except (BuildError, StartError, SuiteError) as error:
        print(error, file=sys.stderr)
        return 2
    if options.json:
        options.json.write_text(json.dumps([dataclasses.asdict(result) for result in results], indent=1) + "\n")
    failed = sum(result.failed for result in results)
    print(f"{len(results)} cases, {failed} failed, {took_s:.1f} s against {options.target}")
    return 1 if failed else 0


@contextmanager
def _target(target: str, broker_config: dict[str, str]) -> Iterator[str]:
    """The address of the name server to test against, with Apache's servers around it if it is theirs."""
    if target != "apache":
        yield target
        return
    with tempfile.TemporaryDirectory(prefix="apache-rocketmq-") as folder:
        home = Path(folder)
        with ApacheNameServer(home) as namesrv, ApacheBroker(home, namesrv.address, config={**CONFIG, **broker_config}):
            yield namesrv.address


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m compat.java", description=__doc__)
    parser.add_argument("--target", required=True, help="'apache', or the address of a name server")
    parser.add_argument("--only", default="", type=_pattern, metavar="PATTERN", help="in Class.case, as a regex")
    parser.add_argument("--fast", action="store_true", help="leave out the cases over 10 s")
    parser.add_argument("--max-lateness-ms", type=int, default=LATENESS_MAX_MS, help=f"({LATENESS_MAX_MS})")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")
    parser.add_argument(
        "--set", type=setting, action="append", default=[], metavar="KEY=VALUE", help="a line of Apache's broker.conf"
    )
    return parser


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"not a regular expression: {error}") from error
    return text
