"""Fuzz the targets by coverage, in order. Run `make fuzz`, or:

python -m tests.fuzz [--seconds N] [--only TARGET] [--crashes FOLDER]

An input that makes a target fail ends the run of that target. It is stored in the folder for crashes. To repeat it:

python -m tests.fuzz --replay FILE   (TARGET-crash-...)
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.fuzz import targets
from tests.fuzz.targets import NAMES

STOP_S = 120
"""Extra time of a run, to import the instrumented modules and to read the corpus."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60, help="of each target")
    parser.add_argument("--only", choices=NAMES, help="this target alone")
    parser.add_argument("--crashes", type=Path, default=Path("fuzz-crashes"), help="folder for inputs that fail")
    parser.add_argument(
        "--replay", type=Path, help="check this input of --only, or of the target that its name begins with"
    )
    options = parser.parse_args()
    if options.replay is not None:
        targets.run(targets.load(options.only or options.replay.name.partition("-")[0]), options.replay.read_bytes())
        return 0
    options.crashes.mkdir(parents=True, exist_ok=True)
    failed = [name for name in ([options.only] if options.only else NAMES) if not _fuzz(name, options)]
    for name in failed:
        print(f"{name} FAILED")
    if failed:
        print(f"The inputs are in {options.crashes}: python -m tests.fuzz --replay FILE")
    return 1 if failed else 0


def _fuzz(name: str, options: argparse.Namespace) -> bool:
    """Fuzz one target in its own process. Returns True if no input failed."""
    with tempfile.TemporaryDirectory(prefix="wheelmq-fuzz-") as scratch:
        found = Path(scratch) / "found"
        found.mkdir()
        command = [
            sys.executable,
            "-m",
            "tests.fuzz.guided",
            name,
            str(options.seconds),
            str(found),
            str(options.crashes),
        ]
        # kernels run as plain Python, so that their branches count as covered
        environment = {**os.environ, "WHEELMQ_KERNELS": "plain", "NUMBA_DISABLE_JIT": "1", "TMPDIR": scratch}
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=options.seconds + STOP_S
            )
        except subprocess.TimeoutExpired:
            print(f"{name}: not finished {STOP_S} s after its time")
            return False
    print(_summary(name, done.stderr), flush=True)
    if done.returncode:
        print(done.stdout[-4000:], done.stderr[-4000:], sep="\n", flush=True)
    return done.returncode == 0


def _summary(name: str, errors: str) -> str:
    """Return how many inputs ran and how many branches they reached, from the output of libFuzzer."""
    tried = re.findall(r"stat::number_of_executed_units:\s*(\d+)", errors)
    covered = re.findall(r" cov: (\d+)", errors)
    return f"{name}: {tried[-1] if tried else '?'} inputs, {covered[-1] if covered else '?'} branches"


if __name__ == "__main__":
    sys.exit(main())
