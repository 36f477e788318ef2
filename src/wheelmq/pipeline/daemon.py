"""The process from which Spark forks its Python workers, warmed up before the first fork.

Spark runs `python -m <this module> <worker module>` and asks it for a worker whenever it has none idle;
workers that were idle for a minute it ends, the daemon stays. A cold worker imports PyArrow, PySpark's worker
and our own modules first, each worker anew. Here that happens once, before any fork, so that a worker costs a
fork and no more. (The workers that plan a Python data source come from PySpark's own daemons; Spark asks for
those once in a query's life.)

What is imported before a fork must leave no thread behind: a fork takes over only the thread that called it,
and a lock that another thread held stays locked for ever. Hence `_forbid_threads`, and the warning when a
module started one all the same.

The modules named in the environment variable WHEELMQ_WORKER_PRELOAD (separated by commas) are imported too:
that is how the pipeline gets its kernels compiled, or read from their cache, before a worker needs them.
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
"""What every worker that touches Arrow imports; the last one serves the reading of a Python source."""

_OWN_THREADS = Path("/proc/self/task")


def preload(worker_module: str) -> None:
    """Import what workers need; what cannot be imported is said on stderr and left to the worker.

    A missing module must not end the daemon: Spark would report a dead daemon in place of the ImportError.
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
    gc.freeze()  # else a collection in a worker would write to, and so copy, every page that it shares


def hooks() -> list[str]:
    """The modules that the environment asks for."""
    return [name for part in os.environ.get(PRELOAD_VARIABLE, "").split(",") if (name := part.strip())]


def thread_count() -> int:
    """The threads of this process, those of C libraries included where the system tells."""
    return len(list(_OWN_THREADS.iterdir())) if _OWN_THREADS.exists() else threading.active_count()


def _forbid_threads() -> None:
    """Keep libraries from starting threads when they are imported: OpenBLAS its pool, jemalloc its purger."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")


def main() -> None:
    """Warm up, then do what PySpark's own daemon does."""
    preload(sys.argv[1] if len(sys.argv) > 1 else "pyspark.worker")
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
