"""The process from which Spark forks its Python workers, prepared before the first fork.

Spark runs `python -m <this module> <worker module>`, and requests a worker from it when none is idle. The daemon
imports PyArrow, PySpark's worker and our own modules once, so a worker costs only a fork. The workers that plan a
Python data source come from PySpark's own daemons, once per query.

An import before a fork must leave no thread running: a lock that another thread held stays locked forever. So
`_forbid_threads` exists, and the daemon warns about a module that started a thread.

The daemon also imports the modules named in the environment variable WHEELMQ_WORKER_PRELOAD, separated by commas. The
pipeline uses it to compile or load its kernels before a worker needs them.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
import threading
import traceback
from pathlib import Path

PRELOAD_VARIABLE = "WHEELMQ_WORKER_PRELOAD"

PRELOADED = ("numpy", "pyarrow", "pyspark.sql.pandas.serializers", "pyspark.sql.conversion")
"""Modules that every worker with Arrow imports. The last one is for reading a Python source."""

_OWN_THREADS = Path("/proc/self/task")


def preload(worker_module: str) -> None:
    """Import the modules that workers need. Print import errors on stderr, and leave these modules to the worker.

    A missing module must not end the daemon. Spark would report a dead daemon instead of the ImportError.
    """
    _forbid_threads()
    for module in (worker_module, *PRELOADED, *hooks()):
        try:
            importlib.import_module(module)
        except Exception:
            print(f"The worker daemon could not preload {module}:", file=sys.stderr)
            traceback.print_exc()
            continue
        if thread_count() > 1:
            print(f"{module} started a thread when it was preloaded: forks may hang", file=sys.stderr)
    gc.collect()
    gc.freeze()  # otherwise a collection in a worker would write to, and so copy, every shared page


def hooks() -> list[str]:
    return [name for part in os.environ.get(PRELOAD_VARIABLE, "").split(",") if (name := part.strip())]


def thread_count() -> int:
    """Return the number of threads of this process, including those of C libraries if the system reports them."""
    return len(list(_OWN_THREADS.iterdir())) if _OWN_THREADS.exists() else threading.active_count()


def _forbid_threads() -> None:
    """Prevent libraries from starting threads on import: OpenBLAS its pool, jemalloc its purger."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")


def main() -> None:
    preload(sys.argv[1] if len(sys.argv) > 1 else "pyspark.worker")
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
