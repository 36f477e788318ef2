"""The example of a stage as a process of its own, killed in the midst of a turn. Another application takes over."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from examples.spread_deliveries import access_key, spread
from tests.live import Live, live
from tests.spark.test_pipeline import running, wait_until
from tests.spark.test_stages import check_delivered, received
from wheelmq.auth.inner_users import PIPELINE_KEY_NAME
from wheelmq.client import SyncProducer

EXAMPLE = Path(__file__).parents[2] / "examples" / "spread_deliveries.py"
IN_A_SESSION = """
import runpy, sys
from wheelmq.pipeline.session import open_session

open_session("pipeline", master="local[4]")
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs a program in a session that exists already, as a notebook does."""
KILLED_TURN = 4
"""The turn at whose end the application is killed. Its rows are uploaded and not committed."""
DELAY_MS = 15_000
SPREAD_S = 3
DEADLINE_S = 300.0
SEND_S = 0.1
"""Pause between two sends."""


def in_a_session() -> tuple[list[str], dict[str, str]]:
    return [sys.executable, "-c", IN_A_SESSION], {}


def by_spark_submit() -> tuple[list[str], dict[str, str]]:
    """Return the command and its variables. `spark-submit` needs a JDK, because it adds a module of Java."""
    home, java = Path(pyspark.__file__).parent, shutil.which("java")
    assert java is not None
    variables = {"SPARK_HOME": str(home), "JAVA_HOME": str(Path(java).resolve().parents[1])}
    variables |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    return [str(home / "bin" / "spark-submit"), "--master", "local[4]", "--conf", "spark.ui.enabled=false"], variables


Launch = Callable[[], tuple[list[str], dict[str, str]]]


@contextmanager
def launched(launch: Launch, servers: Live, key_file: Path, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the example until its driver is killed at the end of a turn."""
    command, variables = launch()
    command += [str(EXAMPLE), servers.namesrv, str(key_file), "Reports", str(SPREAD_S)]
    variables |= {"WHEELMQ_FAILPOINTS": f"driver.collected={KILLED_TURN}"}
    variables |= {"WHEELMQ_FAILPOINT_LOG": str(folder / "failpoints")}
    with (folder / "application.log").open("wb") as log:
        process = subprocess.Popen(
            command, env={**os.environ, **variables}, cwd=folder, stdout=log, stderr=log, start_new_session=True
        )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.skipif(os.environ.get("SPARK") != "whole", reason="make spark runs it")
@pytest.mark.parametrize("launch", [in_a_session, pytest.param(by_spark_submit, marks=pytest.mark.java)])
def test_a_kill_in_a_turn_with_a_random_stage_loses_and_repeats_no_timer(
    spark: SparkSession, tmp_path: Path, launch: Launch
) -> None:
    """The turn is made again, with other shifts. The broker takes one of both."""
    count = 0
    with live(tmp_path) as servers, SyncProducer(servers.namesrv) as producer:
        servers.create_topic("Reports", queues=1)
        parts = servers.brokers["broker-a"].broker.parts
        key_file, shifts = parts.paths.config / PIPELINE_KEY_NAME, parts.timer.shifts

        def send() -> None:
            nonlocal count
            producer.send("Reports", b"%d" % count, delay_ms=DELAY_MS)
            count += 1

        with launched(launch, servers, key_file, tmp_path) as application:
            deadline = time.monotonic() + DEADLINE_S
            while application.poll() is None:
                assert time.monotonic() < deadline
                send()
                time.sleep(SEND_S)
        assert (tmp_path / "failpoints").exists(), (tmp_path / "application.log").read_text()
        shifted = shifts.count
        assert shifted > 0, "the stage of the example delays timers"

        def sends_until_shifted() -> bool:
            send()
            return shifts.count > shifted

        options = {"stage": spread("Reports", SPREAD_S), "access_key": access_key(str(key_file))}
        with running(spark, servers, **options) as ran:
            wait_until(sends_until_shifted, ran)
            messages = received(servers, "Reports", count)
    check_delivered(messages, count)
