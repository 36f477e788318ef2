"""Freed memory is used again, and only a limited part of it is kept."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from wheelmq.system.memory import without_collections

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


def test_memory_that_is_used_again_causes_few_page_faults() -> None:
    assert printed(FAULTS) > 10_000, "of 38,400 pages"
    assert printed(KEEPING, FAULTS) < 1000


def test_freed_memory_is_kept_once_for_all_threads() -> None:
    assert printed(KEEPING, KEPT) < 2, "400 MiB were freed, by four threads"


COLLECTIONS = """
import gc
from wheelmq.system.memory import COLLECTION_S, CROWDED_COLLECTION_S, Collections

now_s = 0.0
began = gc.get_stats()[2]["collections"]
collections = Collections(lambda: now_s)
kept = [[] for _ in range(300_000)]
assert gc.get_stats()[2]["collections"] == began
now_s = COLLECTION_S
assert not collections.poll(is_crowded=True) and collections.poll(is_crowded=False)
assert not collections.poll(is_crowded=False)
now_s += CROWDED_COLLECTION_S - 1
assert not collections.poll(is_crowded=True)
now_s += 1
assert collections.poll(is_crowded=True), "reconnects and other garbage grow in a crowd too"
print(gc.get_stats()[2]["collections"] - began)
"""


def test_full_garbage_collections_run_on_request() -> None:
    assert printed(COLLECTIONS) == 2


WITHOUT = """
import gc
from wheelmq.system.memory import without_collections

def collections(): return sum(one["collections"] for one in gc.get_stats())

with without_collections():
    began = collections()
    kept = [[] for _ in range(100_000)]
    with without_collections():
        pass
    more = [[] for _ in range(100_000)]
    met = collections() - began
more = [[] for _ in range(100_000)]
assert gc.isenabled() and collections() > began
print(met)
"""


def test_code_that_creates_lasting_objects_runs_without_collections() -> None:
    assert printed(WITHOUT) == 0


def test_collections_go_on_after_an_error() -> None:
    was_enabled = gc.isenabled()
    with pytest.raises(KeyError), without_collections():
        assert not gc.isenabled()
        raise KeyError
    assert gc.isenabled() is was_enabled


TRIM = """
from wheelmq.system.memory import GROWN_BYTES, FreedMemory, anonymous_bytes, keep_freed_memory

keep_freed_memory()
freed = FreedMemory()
assert freed.trim_job() is None
before = anonymous_bytes()
zeros = bytes(1 << 20)
parts = [bytearray(zeros) for _ in range(2 * (GROWN_BYTES >> 20))]
pin = parts[-1]
del parts
assert anonymous_bytes() - before > 1.5 * GROWN_BYTES, "the C library keeps the pages"
freed.trim_job()()
assert freed.trim_job() is None
print((anonymous_bytes() - before) / GROWN_BYTES)
"""


def test_freed_pages_below_a_used_page_return_to_the_system() -> None:
    assert printed(TRIM) < 0.5, "of the memory that was freed"


PEAK = """
from wheelmq.system.memory import GROWN_BYTES, FreedMemory, anonymous_bytes, keep_freed_memory

keep_freed_memory()
freed = FreedMemory()
least = anonymous_bytes()
zeros = bytes(1 << 20)
parts = [bytearray(zeros) for _ in range(2 * (GROWN_BYTES >> 20))]

def looks_until_trim():
    for look in range(1, 1000):
        job = freed.trim_job()
        if job is not None:
            job()
            return look

assert [looks_until_trim() for _ in range(10)] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 256]
more = [bytearray(zeros) for _ in range(2 * (GROWN_BYTES >> 20))]
assert looks_until_trim() == 1, "a new peak"
assert anonymous_bytes() - least > 3 * GROWN_BYTES
pin = more[-1]
del parts, more
assert looks_until_trim() == 2
assert anonymous_bytes() - least < GROWN_BYTES
assert freed.trim_job() is None
print(1)
"""


def test_memory_returns_to_the_system_after_a_peak_without_free_memory() -> None:
    """The process checks for freed memory during the peak too. It checks less often while it finds none."""
    assert printed(PEAK) == 1
