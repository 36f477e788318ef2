"""The programs of the page about the pipeline in one's own Spark run, in the order of the page."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.live import live
from wheelmq.client import SyncProducer

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "spark.md").read_text()
START, END, STAGE, TEST = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
DEADLINE_S = 120.0
POLL_S = 0.05
SLOTS = 200_000
"""The quiet hours of the page may shift a timer by a night, if the test runs at that time."""

pytestmark = pytest.mark.spark


def execute(program: str, names: dict[str, Any]) -> None:
    exec(compile(program, "docs/how-to/spark.md", "exec"), names)


def test_a_notebook_runs_turns_with_the_stage_of_the_page(spark: SparkSession, tmp_path: Path) -> None:
    names: dict[str, Any] = {"spark": spark}
    execute(STAGE, names)
    with live(tmp_path, timer_slots=SLOTS) as servers, SyncProducer(servers.namesrv) as producer:
        parts = servers.brokers["broker-a"].broker.parts
        key = parts.pipeline_key
        program = START.replace("127.0.0.1:9876", servers.namesrv)
        program = program.replace('"name", "secret"', f"{key.name!r}, {key.secret!r}")
        execute(program.replace('"stop": stop}', '"stop": stop, "stage": stage}'), names)
        turns: threading.Thread = names["turns"]
        deadline = time.monotonic() + DEADLINE_S
        try:
            while not parts.timer.shifts.count:
                assert time.monotonic() < deadline and turns.is_alive(), vars(parts.timer.turns)
                producer.send("Digest", b"news", delay_ms=20_000)
                time.sleep(POLL_S)
        finally:
            execute(END, names)
        assert not turns.is_alive()
    assert spark.range(3).count() == 3, "the session stays open"


def test_the_stage_of_the_page_passes_the_test_of_the_page(spark: SparkSession) -> None:
    names: dict[str, Any] = {"spark": spark}
    execute(STAGE, names)
    execute(TEST, names)
    with pytest.raises(AssertionError):
        execute(TEST, {**names, "at_full_minutes": lambda rows: rows})
