"""`wheelmq up` with a JVM that hangs: the real JVM, stopped by SIGSTOP. `make hang` runs it, in two minutes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.running import COMMAND_DEADLINE_S, START_DEADLINE_S, Up, lines, up, wheelmq
from wheelmq.client import SyncProducer
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.sync_connection import SyncConnection
from wheelmq.pipeline.progress import LAPSED_S

LEAD_S = 10
DELAYS_S = range(15, 76, 2)
LATE_MS_MAX = 2000
"""A new driver needs many seconds until its first turn.

So a smaller lateness proves that the broker released alone.
"""
REPLACED_DEADLINE_S = 90


@pytest.mark.spark
@pytest.mark.timeout(START_DEADLINE_S + 3 * COMMAND_DEADLINE_S + 2 * REPLACED_DEADLINE_S)
def test_a_hanging_jvm_is_replaced(tmp_path: Path) -> None:
    with up(tmp_path / "home", "--set", f"timer_lead_ms={1000 * LEAD_S}") as running:
        old, log = running.found["pids"], tmp_path / "home" / "logs" / "pipeline.log"
        running.command("send", "Later", "its turn is the first, which is slow", "--delay", "30m")
        wait_for(COMMAND_DEADLINE_S, lambda: "parked" not in states(running), running)
        with SyncProducer(running.found["namesrv"]) as producer:
            for delay_s in DELAYS_S:
                producer.send("T", str(delay_s).encode(), delay_ms=1000 * delay_s)
        wait_for(DELAYS_S[0] + 30, lambda: "parked" not in states(running), running)
        os.kill(old["jvm"], signal.SIGSTOP)
        stopped_ms = time.time() * 1000

        got = consume(running, len(DELAYS_S))
        assert {int(row["body"]) for row in got} == set(DELAYS_S)
        lateness = [row["lateness_ms"] for row in got]
        print(f"{len(got)} messages: {min(lateness)} to {max(lateness)} ms late")
        assert min(lateness) >= 0 and max(lateness) < LATE_MS_MAX
        # The pipeline armed no message beyond its lead, and no new driver ran before the limit.
        alone = [row for row in got if 1000 * (LEAD_S + 1) < row["due_ms"] - stopped_ms < 1000 * LAPSED_S]
        armed_by = metrics(running)["timers"]["armed_by"]
        print(f"armed by: {armed_by}; {len(alone)} of them while the JVM was stopped")
        assert armed_by["wheel_lane"] >= len(alone) > 0

        wait_for(REPLACED_DEADLINE_S, lambda: running.errors.read_text().count("has the lease") == 2, running)
        assert not any(map(psutil.pid_exists, (old["jvm"], old["pipeline"])))
        [warning] = [line for line in running.errors.read_text().splitlines() if "WARNING" in line]
        print(warning)
        assert warning.startswith("pipeline: WARNING: it hangs (no pipeline has renewed the lease of")
        assert warning.endswith("killed, it is started again at once")
        [logged] = [line for line in log.read_text().splitlines() if "WARNING the pipeline hangs" in line]
        assert f"driver {old['pipeline']}, JVM {old['jvm']} and workers are killed" in logged
        assert running.stop(signal.SIGINT) == 0


def consume(running: Up, count: int) -> list[dict[str, Any]]:
    command = wheelmq("consume", "T", "--group", "g", "--count", str(count), "--json")
    command += ["--namesrv", running.found["namesrv"]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DELAYS_S[-1] + COMMAND_DEADLINE_S)
    assert done.returncode == 0, (done.stderr, running.errors.read_text())
    return lines(done.stdout)


def states(running: Up) -> list[str]:
    return [row["state"] for row in json.loads(running.command("timers", "--json"))]


def metrics(running: Up) -> dict[str, Any]:
    link = SyncConnection(running.found["broker"])
    try:
        found: dict[str, Any] = json.loads(link.ask(Command(code=RequestCode.WMQ_METRICS)).body)
    finally:
        link.close()
    return found


def wait_for(deadline_s: float, condition: Callable[[], bool], running: Up) -> None:
    """Wait for a condition that another process fulfils."""
    end_s = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end_s, running.errors.read_text()
        time.sleep(0.05)
