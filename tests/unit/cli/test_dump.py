"""`wheelmq dump`: lines for people and for programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from wheelmq.cli import main
from wheelmq.formats.disk.snapshot import SNAPSHOT_BLOCK, SNAPSHOT_QUEUE
from wheelmq.testing.harness import BrokerHarness


@pytest.fixture
def log_file(tmp_path: Path) -> Path:
    with BrokerHarness(tmp_path) as harness:
        for body in (b"first", b"second", b"third"):
            harness.send("T", body)
        [path] = harness.broker.parts.paths.commit_log.iterdir()
    return path


def dump(*words: object) -> Result:
    return CliRunner().invoke(main, ["dump", *map(str, words)])


def test_a_log_file_is_printed_as_text(log_file: Path) -> None:
    lines = dump(log_file).output.splitlines()
    assert len(lines) == 3 and lines[0].split()[0] == "0" and "body='first'" in lines[0]


def test_a_part_of_a_log_file_is_printed_as_json(log_file: Path) -> None:
    rows = [json.loads(line) for line in dump(log_file, "--json").output.splitlines()]
    assert [row["body"] for row in rows] == ["first", "second", "third"]
    part = dump(log_file, "--json", "--after", rows[0]["at"], "--limit", 1)
    assert json.loads(part.output) == rows[1]


def test_an_unknown_or_empty_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("x")
    result = dump(tmp_path / "notes")
    assert result.exit_code == 1 and "is not a store file of a known format" in result.output
    (tmp_path / "checkpoint").touch()
    assert "it is empty" in dump(tmp_path / "checkpoint").stderr
    assert dump(tmp_path / "checkpoint").stdout == ""


def test_a_log_file_without_records_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "commitlog" / f"{0:020}"
    path.parent.mkdir()
    path.write_bytes(bytes(4096))
    assert "it is empty" in dump(path).stderr
    assert "no row follows position 7" in dump(path, "--after", 7, "--json").stderr


def test_the_timer_metrics_are_printed(tmp_path: Path) -> None:
    with BrokerHarness(tmp_path) as harness:
        harness.send("T", delay_ms=20_000)
        harness.stop()
    [row] = [json.loads(line) for line in dump(tmp_path / "config" / "timermetrics", "--json").output.splitlines()]
    assert row["timingCount"]["T"]["count"] == 1


@pytest.mark.parametrize(
    "name", ["checkpoint", "config/timermark", "config/timerdone", "config/snapshot", "index/20261121080000250"]
)
def test_a_truncated_file_is_reported(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(b"x" * 10)
    result = dump(tmp_path / name)
    assert result.exit_code == 1 and "is cut short" in result.output


def test_a_snapshot_is_printed(tmp_path: Path) -> None:
    with BrokerHarness(tmp_path, clean_resource_interval_ms=1000) as harness:
        harness.send("T", properties={"delayInSeconds": "1"})
        harness.send("T", delay_ms=500)
        harness.advance(20_000)
        end = harness.broker.parts.store.log.end
        harness.stop()
    path = tmp_path / "config" / "snapshot"
    head, *rows = [json.loads(line) for line in dump(path, "--json").output.splitlines()]
    assert (head["log_position"], head["queues"]) == (end, 2)
    ends = {(row["topic"], row["queue_id"]): row["end_queue_offset"] for row in rows[:-1]}
    assert ends == {("T", 0): 2, ("rmq_sys_wheel_timer", 0): 1}
    raw = path.read_bytes()
    for row in rows[:-1]:
        at = row["at"] + SNAPSHOT_QUEUE.size
        assert raw[at : at + len(row["topic"])].decode() == row["topic"]
    assert rows[-1] == {"at": len(raw) - SNAPSHOT_BLOCK.size, "block_gone": 1, "log_position": end}
    path.write_bytes(path.read_bytes()[:-1])
    assert "checksum is wrong" in dump(path).output
