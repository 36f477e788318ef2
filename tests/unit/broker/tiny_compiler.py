"""Compiles one small kernel by the rules of the cache, and prints whether the code was in the cache."""

from __future__ import annotations

from wheelmq.formats.kernels.cache import compiling
from wheelmq.formats.kernels.jit import kernel


@kernel
def twice(number: int) -> int:
    return 2 * number


if __name__ == "__main__":
    with compiling(print, "tiny"):
        assert twice(21) == 42
    print(f"misses={sum(twice.stats.cache_misses.values())}")  # type: ignore[attr-defined]
