"""Run the simulation under some seeds, and print the seeds that end in a violation."""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from wheelmq.formats.kernels import jit
from wheelmq.testing.cluster import ClusterSimulation
from wheelmq.testing.cluster.simulation import STEPS as CLUSTER_STEPS
from wheelmq.testing.simulation.run_result import RunResult
from wheelmq.testing.simulation.simulation import STEPS, Simulation
from wheelmq.testing.simulation.spark import Driver


def main(arguments: list[str] | None = None) -> int:
    """Run the command line. Returns 1 if a seed failed."""
    parser = argparse.ArgumentParser(prog="wheelmq.testing.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="number of seeds (default: %(default)s)")
    parser.add_argument("--from", type=int, default=0, dest="first", help="first seed (default: %(default)s)")
    parser.add_argument("--steps", type=int, help=f"steps per run (default: {STEPS}, of a cluster {CLUSTER_STEPS})")
    parser.add_argument("--seed", type=int, help="run only this seed")
    parser.add_argument(
        "--driver", type=Driver, choices=list(Driver), help="behaviour of the drivers (default: from the seed)"
    )
    parser.add_argument("--cluster", action="store_true", help="run a master and its slaves instead of one broker")
    parser.add_argument("--first-only", action="store_true", help="stop at the first seed that fails")
    parser.add_argument("--trace", action="store_true", help="print each step")
    options = parser.parse_args(arguments)
    seeds = range(options.first, options.first + options.seeds) if options.seed is None else [options.seed]
    counts: Counter[str] = Counter()
    done = failed = 0
    for seed in seeds:
        if failed and options.first_only:
            break
        done += 1
        outcome = _run(seed, options)
        counts += outcome.counts
        if outcome.violation:
            failed += 1
            print(f"seed {seed}: {outcome.violation}\n    {_command(seed, options)}", flush=True)
            if options.seed is not None:
                print(*outcome.trace, sep="\n")
        elif options.seed is not None:
            print(f"seed {seed}: {outcome.digest}")
    print(f"{done} seeds, {failed} violations; " + ", ".join(f"{n} {name}" for name, n in sorted(counts.items())))
    return 1 if failed else 0


def _run(seed: int, options: argparse.Namespace) -> RunResult:
    show = print if options.trace else None
    if options.cluster:
        return ClusterSimulation(seed, steps=options.steps or CLUSTER_STEPS, show=show).run()
    return Simulation(seed, steps=options.steps or STEPS, show=show, driver=options.driver).run()


def _command(seed: int, options: argparse.Namespace) -> str:
    """Return the commands that repeat a run."""
    steps = f" STEPS={options.steps}" if options.steps else ""
    chosen = f"make sim {'CLUSTER=1 ' if options.cluster else ''}SEED={seed}{steps}"
    chosen += " WHEELMQ_KERNELS=compiled" if jit.available() else ""
    repeated = f"--seed {seed}" + (f" --steps {options.steps}" if options.steps else "")
    repeated += f" --driver {options.driver}" if options.driver is not None else ""
    repeated += " --cluster" if options.cluster else ""
    return f"{chosen}   (python -m wheelmq.testing.simulation {repeated} --trace)"


if __name__ == "__main__":
    sys.exit(main())
