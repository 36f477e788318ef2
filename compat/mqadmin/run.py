"""Run mqadmin's commands in order against a name server and a broker, and compare their output.

The output for Apache RocketMQ is in expected.txt, and with `--users` in expected-access.txt. `--target apache --record`
writes it again.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from compat.apache.apache import ApacheBroker, ApacheNameServer, java_command
from compat.apache.maven import java_and_maven_found
from compat.mqadmin import access_steps
from compat.mqadmin.output import normalised, produced
from compat.mqadmin.steps import CONFIG, STEPS, Step
from wheelmq.broker.handlers import HANDLERS

UNTIL_S: Final = 30.0
AGAIN_S: Final = 1.0
TOPICS: Final = [{"topicName": "Listed", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}]
GROUPS: Final = [{"groupName": "G_file", "retryMaxTimes": 5}]


@dataclass(frozen=True)
class Suite:
    """Commands, and the servers for them."""

    steps: tuple[Step, ...]
    expected: Path
    """The file with the output of Apache."""
    apache_settings: dict[str, str]
    tools_yml: str = ""
    """The file with the access key of mqadmin; empty without users."""


PLAIN: Final = Suite(STEPS, Path(__file__).parent / "expected.txt", CONFIG)
WITH_USERS: Final = Suite(
    access_steps.STEPS,
    Path(__file__).parent / "expected-access.txt",
    access_steps.APACHE_SETTINGS,
    access_steps.TOOLS_YML,
)


@dataclass(frozen=True)
class Outcome:
    """A step, its expected output, and its actual output."""

    step: Step
    expected: str
    found: str

    @property
    def agrees(self) -> bool:
        if self.step.why:
            return re.search(self.step.ours, self.found) is not None
        return self.expected == self.found

    def text(self) -> str:
        if self.step.why:
            return f"{self.step.name}: no {self.step.ours!r} in\n{self.found}"
        lines = difflib.unified_diff(self.expected.splitlines(), self.found.splitlines(), "Apache", "found", "", "", 1)
        return f"{self.step.name}: {self.step.command}\n" + "\n".join(lines)


class Tool:
    """A JVM that runs mqadmin's commands."""

    def __init__(self, namesrv: str, home: Path) -> None:
        options = (f"-Drocketmq.namesrv.addr={namesrv}", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
        command, environment = java_command(home, "256m", "tools", options)
        self._errors = (home / "tool.err").open("wb")
        self._process = subprocess.Popen(
            [*command, "wheelmq.compat.AdminCommands"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=home,
            env=environment,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def run(self, words: Sequence[str]) -> str:
        """Return the output of a command. Raises EOFError if the JVM has ended."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(("\t".join(words) + "\n").encode())
        self._process.stdin.flush()
        size = self._process.stdout.readline()
        if not size:
            raise EOFError(f"the JVM ended at {words}")
        return self._process.stdout.read(int(size)).decode()


def run_steps(suite: Suite, namesrv: str, broker: str, home: Path) -> Iterator[tuple[Step, str]]:
    """Yield each step, and its output to compare."""
    exports = home / "exports"
    exports.mkdir(parents=True)
    known = {"namesrv": namesrv, "broker": broker, "home": str(exports)}
    for name, content in (("topics", TOPICS), ("groups", GROUPS)):
        known[name] = str(home / f"{name}.json")
        Path(known[name]).write_text(json.dumps(content))
    if suite.tools_yml:
        (home / "conf").mkdir()
        (home / "conf" / "tools.yml").write_text(suite.tools_yml)
    with Tool(namesrv, home) as tool:
        for step in suite.steps:
            said = _run(tool, step, known)
            for name, pattern in step.keeps.items():
                found = re.search(pattern, said)
                known[name] = found[1] if found else f"no-{name}"
            try:
                yield step, normalised(step, produced(step, said, exports), known)
            except ValueError as error:
                yield step, f"{error}:\n{said}"


def _run(tool: Tool, step: Step, known: dict[str, str]) -> str:
    words = [word.format(**known) for word in step.command.split()]
    said = tool.run(words)
    deadline = time.monotonic() + UNTIL_S
    while step.until and not re.search(step.until, said) and time.monotonic() < deadline:
        time.sleep(AGAIN_S)
        said = tool.run(words)
    return said


def compare(suite: Suite, namesrv: str, broker: str, home: Path, *, ours: bool) -> Iterator[Outcome]:
    """Yield the outcome of each step. For WheelMQ, skip steps with requests that it does not serve yet."""
    expected = load(suite)
    for step, found in run_steps(suite, namesrv, broker, home):
        if ours and not all(code in HANDLERS for code in step.codes):
            continue
        wanted = expected.get(step.name, "")
        if not ours and step.why:
            yield Outcome(Step(step.name, step.command), wanted, found)
        else:
            yield Outcome(step, wanted, found)


def load(suite: Suite) -> dict[str, str]:
    """Return the output of Apache, by the step's name."""
    if not suite.expected.exists():
        return {}
    parts = re.split(r"^== (.*)\n", suite.expected.read_text(), flags=re.MULTILINE)
    return {name: text.rstrip("\n") for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def record(suite: Suite, found: dict[str, str]) -> None:
    """Write the output of Apache."""
    suite.expected.write_text("".join(f"== {name}\n{text}\n" for name, text in found.items()))


@contextmanager
def apache(suite: Suite, home: Path) -> Iterator[tuple[str, str]]:
    """Run Apache's name server and broker. Yields their addresses."""
    with (
        ApacheNameServer(home) as namesrv,
        ApacheBroker(home, namesrv.address, config=suite.apache_settings) as broker,
    ):
        yield namesrv.address, broker.address


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m compat.mqadmin", description=__doc__)
    parser.add_argument(
        "--target", required=True, help="'apache', or NAMESERVER,BROKER: the addresses of ours (README.md)"
    )
    parser.add_argument("--record", action="store_true", help="with apache: write expected.txt anew")
    parser.add_argument("--users", action="store_true", help="run the commands for users and access lists")
    options = parser.parse_args(argv)
    suite = WITH_USERS if options.users else PLAIN
    if reason := java_and_maven_found():
        print(f"cannot run: {reason}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="mqadmin-") as folder:
        home = Path(folder)
        if options.target == "apache":
            with apache(suite, home / "servers") as (namesrv, broker):
                if options.record:
                    record(
                        suite, {step.name: found for step, found in run_steps(suite, namesrv, broker, home / "tool")}
                    )
                    return 0
                return _tell(compare(suite, namesrv, broker, home / "tool", ours=False))
        namesrv, _, broker = options.target.partition(",")
        return _tell(compare(suite, namesrv, broker, home / "tool", ours=True))


def _tell(outcomes: Iterator[Outcome]) -> int:
    count = failed = 0
    for outcome in outcomes:
        count += 1
        if not outcome.agrees:
            failed += 1
            print(outcome.text(), flush=True)
    print(f"{count} commands, {failed} differ")
    return 1 if failed else 0
