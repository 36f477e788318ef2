"""Freed memory is used again, and no more of it is kept than is said."""

from __future__ import annotations

import subprocess
import sys

FAULTS = """
import resource
import numpy as np

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        arrays = [np.ones(3 << 20, np.uint8) for _ in range(5)]
        del arrays
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()
print(faults())
"""

KEPT = """
import threading
import time
import numpy as np
import psutil
from wheelmq.system.memory import KEPT_BYTES

def use():
    arrays = [np.ones(1 << 20, np.uint8) for _ in range(100)]
    everyone_has.wait()
    del arrays

before = psutil.Process().memory_info().rss
everyone_has = threading.Barrier(4)
threads = [threading.Thread(target=use) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
until = time.monotonic() + 2
while (kept := (psutil.Process().memory_info().rss - before) / KEPT_BYTES) > 2 and time.monotonic() < until:
    time.sleep(0.05)  # a thread that was joined may still be on its way out
print(kept)
"""

KEEPING = "from wheelmq.system.memory import keep_freed_memory; assert keep_freed_memory()"


def printed(*programs: str) -> float:
    done = subprocess.run([sys.executable, "-c", "".join(programs)], capture_output=True, text=True, check=True)
    return float(done.stdout)


def test_memory_that_is_freed_and_wanted_again_costs_no_faults() -> None:
    assert printed(FAULTS) > 10_000, "of 38,400 pages"
    assert printed(KEEPING, FAULTS) < 1000


def test_what_is_kept_is_kept_once_for_all_threads() -> None:
    assert printed(KEEPING, KEPT) < 2, "400 MiB were freed, by four threads"
