"""Random runs of broker and shipper: python -m tests.ship [--seeds N] [--from N] [--steps N] [--seed N]"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.ship.world import World


def run(seed: int, steps: int) -> Counter[str]:
    folder = Path(tempfile.mkdtemp(prefix="wheelmq-ship-"))
    world = World(folder, seed)
    try:
        world.run(steps)
    finally:
        world.close()
        shutil.rmtree(folder, ignore_errors=True)
    return world.counts


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m tests.ship", description=__doc__)
    options.add_argument("--seeds", type=int, default=50)
    options.add_argument("--from", dest="first", type=int, default=0)
    options.add_argument("--seed", type=int)
    options.add_argument("--steps", type=int, default=120)
    chosen = options.parse_args()
    seeds = [chosen.seed] if chosen.seed is not None else range(chosen.first, chosen.first + chosen.seeds)
    began, total, failed = time.monotonic(), Counter[str](), []
    for seed in seeds:
        try:
            total += run(seed, chosen.steps)
        except Exception as error:
            failed.append(seed)
            print(f"seed {seed}: {type(error).__name__}: {error}", flush=True)
            if chosen.seed is not None:
                raise
    print(f"{len(list(seeds))} seeds in {time.monotonic() - began:.0f} s, failed: {failed}")
    print(", ".join(f"{name} {count}" for name, count in sorted(total.items())))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
