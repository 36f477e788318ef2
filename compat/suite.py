"""The shared part of the suites of clients: a client's program as a process, and one command line.

The program is written in the client's language and holds the expectations. It prints one JSON line per case, at the
case's end:

    {"case": "Timer.delayMs", "outcome": "passed", "seconds": 1.4, "reason": "", "measures": {"lateness_ms": 3}}

The line starts with `{"case":`; other lines are kept for the report of a broken run. The program ends with code 0
(all passed) or 1 (some failed).
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from compat.apache.__main__ import setting
from compat.apache.apache import ApacheBroker, ApacheNameServer, StartError
from compat.apache.maven import java_and_maven_found
from compat.building import BuildError

LATENESS_MAX_MS = 2_500
CONFIG = {"enablePropertyFilter": "true", "waitTimeMillsInSendQueue": "5000"}
"""The settings of a broker for the cases; all others are its defaults.

By default, Apache's broker rejects a request that has waited for 200 ms, which happens on a busy machine.
"""
RUN_DEADLINE_S = 300.0
_ENDED_WITH_RESULTS = (0, 1)
_RESULT_LINE_START = '{"case":'


class SuiteError(Exception):
    """The run itself failed: it had no case, or its program did not end cleanly."""


@dataclass(frozen=True)
class CaseResult:
    """One case. `measures` holds its figures, such as `lateness_p99_ms`."""

    name: str
    outcome: str
    """One of "passed", "failed" and "skipped"."""
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


@dataclass(frozen=True)
class Asked:
    """The options of a run. `only` is a regular expression that is searched in names like `Timer.delayMs`."""

    namesrv: str
    fast: bool = False
    """Leave out the cases over 10 s."""
    max_lateness_ms: int = LATENESS_MAX_MS
    only: str = ""

    def environment(self, home: Path) -> dict[str, str]:
        """Return the options as environment variables for a program, which writes its files in `home`."""
        return {
            "COMPAT_NAMESRV": self.namesrv,
            "COMPAT_FAST": "1" if self.fast else "",
            "COMPAT_LATENESS_MAX_MS": str(self.max_lateness_ms),
            "COMPAT_ONLY": self.only,
            "HOME": str(home),
        }


@dataclass(frozen=True)
class Program:
    """A client's built program: its command, and its additional environment variables."""

    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


def run_program(
    program: Program, home: Path, on_result: Callable[[CaseResult], object] = lambda result: None
) -> list[CaseResult]:
    """Run a program in a new folder `home`, which is deleted if all cases passed.

    Calls `on_result` with each case.
    """
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    error_log = home / "stderr.log"
    with error_log.open("wb") as errors:
        process = subprocess.Popen(
            program.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=home,
            env={**os.environ, **program.environment},
        )
    watchdog = threading.Timer(RUN_DEADLINE_S, process.kill)
    watchdog.start()
    results = []
    told = []
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(_RESULT_LINE_START):
                results.append(result_of(line))
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
        raise SuiteError(f"the client's program ended with code {code} after {len(results)} cases:\n{said}")
    if not any(result.failed for result in results):
        shutil.rmtree(home)
    return results


def result_of(line: str) -> CaseResult:
    """Return the case of a printed line. Raises KeyError or ValueError if the line has none."""
    fields = json.loads(line)
    return CaseResult(
        name=fields["case"],
        outcome=fields["outcome"],
        seconds=fields["seconds"],
        reason=fields["reason"],
        measures={name: float(value) for name, value in fields["measures"].items()},
    )


def tools_found(*tools: str) -> str | None:
    """Return the reason to skip if a tool is not on the PATH; None if all are."""
    missing = [tool for tool in tools if shutil.which(tool) is None]
    return f"not on the PATH: {', '.join(missing)}" if missing else None


def run_main(
    parser: argparse.ArgumentParser,
    run: Callable[[argparse.Namespace, Asked, Callable[[CaseResult], object]], list[CaseResult]],
    *,
    missing: str | None,
    argv: Sequence[str] | None,
    config: Mapping[str, str] = CONFIG,
) -> int:
    """Run the command of a suite. Returns 0 if all passed, 1 if some failed, and 2 if the run failed.

    `missing` is a reason not to run, and gives 2 as well.
    """
    options = parser.parse_args(argv)
    if options.target == "apache":
        missing = missing or java_and_maven_found()
    if missing:
        print(f"cannot run: {missing}", file=sys.stderr)
        return 0 if options.skip else 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends the servers and the program with this process
    try:
        with _target(options.target, {**config, **dict(options.set)}) as namesrv:
            started_at_s = time.monotonic()
            asked = Asked(namesrv, options.fast, options.max_lateness_ms, options.only)
            results = run(options, asked, lambda result: print(result, flush=True))
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
def _target(target: str, broker_config: Mapping[str, str]) -> Iterator[str]:
    """Yield the address of the name server to test against. Starts Apache's servers if they are the target."""
    if target != "apache":
        yield target
        return
    with tempfile.TemporaryDirectory(prefix="apache-rocketmq-") as folder:
        home = Path(folder)
        with ApacheNameServer(home) as namesrv, ApacheBroker(home, namesrv.address, config=broker_config):
            yield namesrv.address


def suite_parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of all suites. `name` is that of the package, such as "compat.java"."""
    parser = argparse.ArgumentParser(prog=f"python -m {name}", description=description)
    parser.add_argument("--target", required=True, help="'apache', or the address of a name server")
    parser.add_argument("--only", default="", type=_pattern, metavar="PATTERN", help="in Class.case, as a regex")
    parser.add_argument("--fast", action="store_true", help="leave out the cases over 10 s")
    parser.add_argument("--max-lateness-ms", type=int, default=LATENESS_MAX_MS, help=f"({LATENESS_MAX_MS})")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")
    parser.add_argument(
        "--skip", action="store_true", help="where the client's tools are missing, say so and end with 0"
    )
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
