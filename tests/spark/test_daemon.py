"""Python workers start with their modules imported."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from wheelmq.pipeline.daemon import PRELOAD_VARIABLE, PRELOADED


@pytest.fixture(scope="module")
def seen(spark: SparkSession) -> dict[str, Any]:
    """Return the state of a worker before it imports anything itself.

    The function is nested, so that it is pickled by value: workers cannot import test modules.
    """

    def inspect_worker(_: Iterator[Any]) -> Iterator[dict[str, Any]]:
        import gc
        import os
        import sys

        import psutil  # type: ignore[import-untyped, unused-ignore]

        parent = psutil.Process(os.getppid())
        yield {
            "modules": set(sys.modules),
            "frozen": gc.get_freeze_count(),
            "daemon": parent.cmdline(),
            "daemon_threads": parent.num_threads(),
            "pyspark": sys.modules["pyspark"].__file__,
        }

    (found,) = spark.sparkContext.parallelize([1], 1).mapPartitions(inspect_worker).collect()
    return dict(found)


@pytest.mark.spark
def test_our_daemon_starts_workers_with_all_modules_imported(seen: dict[str, Any], preloaded_hook: str) -> None:
    assert "wheelmq.pipeline.daemon" in seen["daemon"]
    assert {*PRELOADED, "pyspark.worker", preloaded_hook} <= seen["modules"]
    assert seen["frozen"] > 10_000, "what the daemon imported is out of the collector's way"


@pytest.mark.spark
def test_the_daemon_has_one_thread(seen: dict[str, Any]) -> None:
    assert seen["daemon_threads"] == 1, "a lock held by another thread would stay locked in every fork"


@pytest.mark.spark
def test_workers_import_no_pandas(seen: dict[str, Any]) -> None:
    assert "pandas" not in seen["modules"]


@pytest.mark.spark
def test_workers_run_the_installed_pyspark_and_not_its_zip(seen: dict[str, Any]) -> None:
    assert ".zip" not in seen["pyspark"]


def run_preload(hook: str) -> subprocess.CompletedProcess[str]:
    code = "from wheelmq.pipeline.daemon import preload; preload('pyspark.worker'); print('warm')"
    environment = os.environ | {PRELOAD_VARIABLE: hook}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True)


def test_a_failing_hook_does_not_end_the_daemon() -> None:
    done = run_preload("no_such_module_of_ours,wheelmq.formats.units")
    assert done.stdout == "warm\n"
    assert "could not preload no_such_module_of_ours" in done.stderr
    assert "units" not in done.stderr


def test_a_hook_that_starts_a_thread_is_reported(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import threading, time\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    (tmp_path / "starts_a_thread.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = run_preload("starts_a_thread")
    assert "starts_a_thread started a thread" in done.stderr
