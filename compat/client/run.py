"""Run the cases, in parallel if possible, and print each result."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import logging
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from compat.apache.apache import StartError
from compat.apache.maven import java_and_maven_found
from compat.building import BuildError
from compat.client.case import CASES, DEADLINE_S, Case, World
from compat.client.servers import KINDS, Cluster, registered
from wheelmq.client import Refused
from wheelmq.formats.wire.codes import ResponseCode

for module in ("sending", "consuming", "administering"):  # they register their cases
    importlib.import_module(f"compat.client.{module}")

AT_ONCE = 6
ALONE_DEADLINE_S = 120.0


@dataclass(frozen=True)
class Result:
    name: str
    outcome: str
    """One of "passed", "failed" and "unserved", which means that the broker does not serve a request of the case."""
    seconds: float
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.outcome:8} {self.seconds:6.2f} s  {self.name}  {self.reason}".rstrip()


async def run_suite(
    cluster: Cluster, folder: Path, *, only: str = "", on_result: Callable[[Result], object] = lambda result: None
) -> list[Result]:
    """Run the cases whose name matches the regular expression `only`. Calls `on_result` with each result."""
    chosen = [one for one in CASES.values() if re.search(only, one.name)]
    slots = asyncio.Semaphore(AT_ONCE)
    token = f"{time.time_ns():x}"
    results: list[Result] = []

    async def run(one: Case) -> None:
        async with slots:
            result = await _run(one, World(cluster, one.name, token, folder / one.name))
            results.append(result)
            on_result(result)

    await asyncio.gather(*(run(one) for one in chosen if not one.is_alone))
    for one in chosen:
        if one.is_alone:
            await registered(cluster)
            await run(one)
    return results


async def _run(one: Case, world: World) -> Result:
    start_s = time.monotonic()
    try:
        async with asyncio.timeout(ALONE_DEADLINE_S if one.is_alone else DEADLINE_S * 2):
            await one.run(world)
    except Refused as rejection:
        outcome = "unserved" if rejection.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED else "failed"
        return Result(one.name, outcome, time.monotonic() - start_s, str(rejection))
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        where = "; ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames)
        return Result(one.name, "failed", time.monotonic() - start_s, f"{type(error).__name__}: {error} ({where})")
    return Result(one.name, "passed", time.monotonic() - start_s)


def main(argv: Sequence[str] | None = None) -> int:
    logging.getLogger("wheelmq.client").setLevel(logging.CRITICAL)  # cases provoke its warnings
    options = _parser().parse_args(argv)
    if options.target == "apache" and (reason := java_and_maven_found()):
        print(f"cannot run: {reason}", file=sys.stderr)
        return 2
    try:
        with tempfile.TemporaryDirectory(prefix="compat-client-") as name, KINDS[options.target](Path(name)) as cluster:
            start_s = time.monotonic()
            results = asyncio.run(
                run_suite(
                    cluster, Path(name) / "cases", only=options.only, on_result=lambda one: print(one, flush=True)
                )
            )
            took_s = time.monotonic() - start_s
    except (BuildError, StartError) as error:
        print(error, file=sys.stderr)
        return 2
    failed = sum(one.outcome == "failed" for one in results)
    unserved = sum(one.outcome == "unserved" for one in results)
    print(f"{len(results)} cases, {failed} failed, {unserved} unserved, {took_s:.1f} s against {options.target}")
    return 1 if failed or (unserved and options.target == "apache") else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m compat.client", description=__doc__)
    parser.add_argument("--target", required=True, choices=sorted(KINDS))
    parser.add_argument("--only", default="", metavar="PATTERN", help="cases by name, as a regular expression")
    return parser
