"""Freed memory is used again."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import resource
import numpy as np
from wheelmq.system.memory import KEPT_ARRAY_BYTES, keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        np.ones(KEPT_ARRAY_BYTES // 2, np.uint8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

assert keep_freed_memory()
faults()
print(faults())
"""


def test_a_large_array_that_is_made_again_and_again_costs_no_faults() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 1000, "an array has 4096 pages"
