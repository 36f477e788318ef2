"""Settings, scratch folders and helpers of the session."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from wheelmq.pipeline import session as pipeline
from wheelmq.pipeline import training
from wheelmq.pipeline.gateway import startup_cache
from wheelmq.pipeline.java import find_java
from wheelmq.pipeline.session import CACHE_VARIABLE, open_session
from wheelmq.spark import scratch
from wheelmq.spark.queries import POOL, map_in_arrow, scratch_checkpoint, start_turns

TURNS_DEADLINE_S = 150.0


@pytest.mark.spark
def test_the_session_has_the_settings_of_the_pipeline(spark: SparkSession) -> None:
    context = spark.sparkContext
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert context.getConf().get("spark.scheduler.mode") == "FAIR"
    assert context.getConf().get("spark.driver.bindAddress") == "127.0.0.1"
    assert context.uiWebUrl is None
    own = (signal.default_int_handler, signal.SIG_IGN)  # a test run in the background ignores it
    assert signal.getsignal(signal.SIGINT) in own, "SIGINT stays the program's own"


@pytest.mark.spark
def test_a_query_runs_turns_in_its_pool(spark: SparkSession) -> None:
    counted: list[list[int]] = []

    def turn(rows: DataFrame, turn_id: int) -> None:
        parts = map_in_arrow(rows.sortWithinPartitions("due_ms"), training.count_rows, "rows long").collect()
        counted.append([row.rows for row in parts])

    spark.dataSource.register(training.TrainingSource)
    rows = spark.readStream.format(training.TrainingSource.name()).load()
    checkpoint = scratch_checkpoint()
    query = start_turns(rows, turn, checkpoint, name="turns")
    deadline = time.monotonic() + TURNS_DEADLINE_S
    while len(counted) < 5:
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    files = [path for path in (checkpoint / "commits").rglob("*") if path.is_file() and path.suffix != ".crc"]
    query.stop()
    assert counted[:5] == [[100, 100]] * 5
    assert query.name == "turns"
    pools = spark.sparkContext._jsc.sc().getAllPools()
    assert "turns" in {pools.apply(place).name() for place in range(pools.size())}
    assert spark.sparkContext.getLocalProperty(POOL) is None, "only the query is in the pool"
    assert len(files) <= 2, "progress is not written turn by turn"


@pytest.mark.spark
def test_a_failed_turn_reports_its_long_error(spark: SparkSession) -> None:
    def turn(rows: DataFrame, turn_id: int) -> None:
        # In errors with this prefix Spark searches for an interruption, and that search needs a deep stack.
        lead = "py4j.protocol.Py4JJavaError: An error occurred while calling"
        raise ValueError(f"the turn failed: {lead}" + "very long\n" * 2_000 + "the end")

    spark.dataSource.register(training.TrainingSource)
    rows = spark.readStream.format(training.TrainingSource.name()).load()
    query = start_turns(rows, turn, scratch_checkpoint())
    deadline = time.monotonic() + TURNS_DEADLINE_S
    while query.isActive:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert "the turn failed" in str(query.exception())


def test_each_checkpoint_is_a_new_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(scratch, "SHARED_MEMORY", tmp_path)
    monkeypatch.setattr(scratch, "_held", {})
    first, second = scratch_checkpoint(), scratch_checkpoint()
    assert first != second
    assert not list(first.iterdir()) and not list(second.iterdir())
    assert first.is_relative_to(tmp_path)
    scratch.drop()
    assert [path.name for path in (tmp_path / f"wheelmq-{os.getuid()}").iterdir()] == [".lock"]


@pytest.mark.parametrize("reason", ["missing", "full"])
def test_scratch_uses_the_temp_folder_without_shared_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, reason: str
) -> None:
    monkeypatch.setattr(scratch, "SHARED_MEMORY", tmp_path / "none" if reason == "missing" else tmp_path)
    if reason == "full":
        monkeypatch.setattr(scratch, "SHARED_MEMORY_FREE_MIN", 1 << 60)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temp"))
    (tmp_path / "temp").mkdir()
    monkeypatch.setattr(scratch, "_held", {})
    assert scratch_checkpoint().is_relative_to(tmp_path / "temp")
    scratch.drop()


def test_the_scratch_of_a_killed_process_is_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from wheelmq.spark import scratch\n"
        "scratch.SHARED_MEMORY = Path(sys.argv[1])\n"
        "print(scratch.folder('checkpoint', scratch.memory()), flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    others = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(2)]
    try:
        killed, living = (Path(other.stdout.readline().decode().strip()) for other in others if other.stdout)
        others[0].kill()
        others[0].wait()
        assert killed.exists() and living.exists()
        monkeypatch.setattr(scratch, "SHARED_MEMORY", tmp_path)
        monkeypatch.setattr(scratch, "_held", {})
        scratch_checkpoint()
        assert not killed.exists(), "its process is dead"
        assert living.exists(), "its process lives"
        scratch.drop()
    finally:
        for other in others:
            other.kill()
            other.communicate()


def test_a_scratch_root_that_is_a_link_is_rejected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"wheelmq-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    monkeypatch.setattr(scratch, "SHARED_MEMORY", tmp_path)
    monkeypatch.setattr(scratch, "_held", {})
    with pytest.raises(PermissionError, match="belongs to another user"):
        scratch_checkpoint()


def test_a_trainer_ends_when_its_parent_closes_stdin() -> None:
    command = [sys.executable, "-m", "wheelmq.pipeline.training"]
    trainer = subprocess.Popen(command, stdin=subprocess.PIPE)
    assert trainer.stdin is not None
    trainer.stdin.close()
    assert trainer.wait(TURNS_DEADLINE_S) == 0


@pytest.mark.parametrize("limit", ["TRAINING_MEMORY_FREE_MIN", "TRAINING_DISK_FREE_MIN"])
def test_no_start_up_cache_is_made_without_enough_room(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, limit: str
) -> None:
    monkeypatch.setattr(pipeline, limit, 1 << 60)
    cache = startup_cache(find_java(), {"XDG_CACHE_HOME": str(tmp_path)})
    assert cache is not None
    assert pipeline._train_beside(cache) is None


def test_an_unknown_cache_mode_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, "sometimes")
    with pytest.raises(ValueError, match="auto, use or off"):
        open_session("never")
