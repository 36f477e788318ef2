"""Plant each bug and print how many seeds the simulation needs to find it:  python -m tests.planted [NAME ...]"""

from __future__ import annotations

import sys

from tests.planted.planting import SEEDS_MAX, names, seeds_to_catch


def main(chosen: list[str]) -> int:
    """Run the named bugs, or all. Returns 1 if the simulation missed one of them, else 0."""
    missed = 0
    for name in chosen or names():
        found = seeds_to_catch(name)
        if found is None:
            missed += 1
            print(f"{name}: not found in {SEEDS_MAX} seeds", flush=True)
        else:
            seeds, violation = found
            print(f"{name}: found by seed {seeds - 1}, the {seeds}. of them: {violation}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
