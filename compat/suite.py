"""What suites of clients share: a client's program in a process of its own, one JSON line per case, one command line.

The program is written in the client's language and holds the expectations. It prints for each case, as it ends,

    {"case": "Timer.delayMs", "outcome": "passed", "seconds": 1.4, "reason": "", "measures": {"lateness_ms": 3}}

(the line starts with `{"case":`; others are kept for the report of a broken run) and ends with code 0 (all passed) or
1 (some failed).
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
"""What a broker is started with for the cases; the rest is its defaults. Left alone, Apache's refuses what has waited
for 200 ms, as on a busy machine it does.
"""
RUN_DEADLINE_S = 300.0
_ENDED_WITH_RESULTS = (0, 1)
_RESULT_LINE_START = '{"case":'


class SuiteError(Exception):
    """The run itself broke: no case, or a program that did not end in order."""


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


@dataclass(frozen=True)
class Asked:
    """What a run is asked for; `only` is a regular expression searched in names like `Timer.delayMs`."""

    namesrv: str
    fast: bool = False
    """Leave out what takes over 10 s."""
    max_lateness_ms: int = LATENESS_MAX_MS
    only: str = ""

    def environment(self, home: Path) -> dict[str, str]:
        """How a program of another language is told: it writes its files in `home`."""
        return {
            "COMPAT_NAMESRV": self.namesrv,
            "COMPAT_FAST": "1" if self.fast else "",
            "COMPAT_LATENESS_MAX_MS": str(self.max_lateness_ms),
            "COMPAT_ONLY": self.only,
            "HOME": str(home),
        }


@dataclass(frozen=True)
class Program:
    """A client's program, built: its command, and what is added to the environment it runs in."""

    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


def run_program(
    program: Program, home: Path, on_result: Callable[[CaseResult], object] = lambda result: None
) -> list[CaseResult]:
    """Run it in `home`, which is made anew and goes when nothing failed; `on_result` hears each case as it ends."""
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
    """The case of a line that a program printed; KeyError or ValueError if it is none."""
    fields = json.loads(line)
    return CaseResult(
        name=fields["case"],
        outcome=fields["outcome"],
        seconds=fields["seconds"],
        reason=fields["reason"],
        measures={name: float(value) for name, value in fields["measures"].items()},
    )


def tools_found(*tools: str) -> str | None:
    """None when all are on the PATH, else the reason to skip."""
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
    """The command of a suite: 0 when all passed, 1 when some failed, 2 when the run broke or `missing` says why not."""
    options = parser.parse_args(argv)
    if options.target == "apache":
        missing = missing or java_and_maven_found()
    if missing:
        print(f"cannot run: {missing}", file=sys.stderr)
        return 0 if options.skip else 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the servers and the program go with us
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
    """The address of the name server to test against, with Apache's servers around it if it is theirs."""
    if target != "apache":
        yield target
        return
    with tempfile.TemporaryDirectory(prefix="apache-rocketmq-") as folder:
        home = Path(folder)
        with ApacheNameServer(home) as namesrv, ApacheBroker(home, namesrv.address, config=broker_config):
            yield namesrv.address


def suite_parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """The options all suites have; `name` is that of the package, as "compat.java"."""
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
