"""Replicate between WheelMQ and Apache RocketMQ, in both directions, with real processes.

python -m compat.replication [--only PATTERN] [--version 5.5.0]
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from compat.apache.apache import VERSIONS
from compat.apache.maven import java_and_maven_found
from compat.replication.cases import CASES, Measures, Place
from compat.suite import CaseResult


def run_case(case: Callable[[Place], Measures], folder: Path, version: str = VERSIONS[0]) -> CaseResult:
    """Run one case in a new folder, which is deleted if the case passed."""
    folder.mkdir(parents=True)
    began_s = time.monotonic()
    try:
        with Place(folder, version) as place:
            measures = case(place)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)
        lines = [f"{Path(one.filename).name}:{one.lineno}" for one in where if "replication" in one.filename]
        reason = f"{type(error).__name__}: {error} ({', '.join(lines)}); its files are in {folder}"
        return CaseResult(case.__name__, "failed", time.monotonic() - began_s, reason, {})
    shutil.rmtree(folder)
    return CaseResult(case.__name__, "passed", time.monotonic() - began_s, "", measures)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases. Returns 0 if all passed, 1 if some failed, and 2 without the tools."""
    parser = argparse.ArgumentParser(prog="python -m compat.replication", description=__doc__)
    parser.add_argument("--only", default="", metavar="PATTERN", help="in the name of a case, as a regex")
    parser.add_argument("--version", default=VERSIONS[0], choices=VERSIONS, help="the version of Apache RocketMQ")
    options = parser.parse_args(argv)
    missing = java_and_maven_found()
    if missing:
        print(f"cannot run: {missing}", file=sys.stderr)
        return 2
    folder = Path(tempfile.mkdtemp(prefix="wheelmq-replication-"))
    results = []
    for case in CASES:
        if re.search(options.only, case.__name__):
            results.append(run_case(case, folder / case.__name__, options.version))
            print(results[-1], flush=True)
    failed = sum(result.failed for result in results)
    if not failed:
        shutil.rmtree(folder)
    print(f"{len(results)} cases, {failed} failed, with Apache RocketMQ {options.version}")
    return 1 if failed else 0
