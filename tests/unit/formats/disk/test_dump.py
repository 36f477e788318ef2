"""Every file of a store can be printed, with positions."""

from __future__ import annotations

from pathlib import Path

import pytest

from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.dump import Row, UnknownFile, dump
from wheelmq.formats.disk.paths import StorePaths
from wheelmq.testing.clock import START_MS
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> StorePaths:
    """A store with three plain messages and one indexed timer. Each log file holds about two messages."""
    with BrokerHarness(tmp_path_factory.mktemp("dump"), log_file_bytes=4096) as harness:
        for i in range(3):
            harness.send("T", b"%d" % i + bytes(1200), queue_id=1, properties={props.KEYS: f"k{i}"})
        harness.send("T", b"timer", delay_ms=15_000)
        harness.advance(4000, PipelineModel(harness).work)
        return harness.broker.parts.paths


def rows(path: Path) -> list[Row]:
    return list(dump(path, memoryview(path.read_bytes())))


def test_records_and_blanks_of_the_log_are_printed(paths: StorePaths) -> None:
    first, second = (rows(path) for path in sorted(paths.commit_log.iterdir())[:2])
    assert [row.get("queue_offset") for row in first] == [0, 1, None]
    assert first[0]["topic"] == "T" and first[0]["queue_id"] == 1 and first[0]["body"].startswith("0\0")
    assert first[0]["at"] == 0
    assert first[0]["properties"][props.KEYS] == "k0" and first[0]["body_is_intact"]
    assert first[0]["store_host"] == "127.0.0.1:10911"
    assert first[2]["at"] + first[2]["blank_bytes"] == second[0]["at"] == 4096


def test_a_damaged_record_is_printed_as_a_problem(paths: StorePaths) -> None:
    path = sorted(paths.commit_log.iterdir())[0]
    raw = bytearray(path.read_bytes())
    size = rows(path)[0]["size"]
    raw[size + 7] ^= 1
    found = list(dump(path, memoryview(raw)))
    assert len(found) == 2 and found[1]["at"] == size and "magic" in found[1]["problem"]
    raw = bytearray(path.read_bytes())
    raw[35] ^= 1
    assert "names log position 1" in list(dump(path, memoryview(raw)))[1]["problem"]


def test_queue_units_are_printed_with_their_offsets(paths: StorePaths) -> None:
    [path] = paths.consume_queue("T", 1).iterdir()
    found = rows(path)
    assert [row["queue_offset"] for row in found] == [0, 1, 2] and found[1]["at"] == 20 and found[1]["position"] > 1200


def test_units_and_damage_of_the_index_are_printed(paths: StorePaths) -> None:
    [path] = paths.index.iterdir()
    header, *units = rows(path)
    assert header["count"] == len(units) + 1 and [unit["number"] for unit in units] == list(range(1, 8))
    raw = bytearray(path.read_bytes())
    raw[40:44] = b"\x7f\xff\xff\xff"
    assert "damaged" in list(dump(path, memoryview(raw)))[1]["problem"]


def test_the_files_of_the_timer_are_printed(paths: StorePaths) -> None:
    [log_file] = paths.timer_log.iterdir()
    [unit] = rows(log_file)
    assert (unit["at"], unit["size"], unit["previous_position"]) == (0, 52, -1)
    assert (unit["queue_offset"], unit["due_ms"], unit["is_long"]) == (0, START_MS + 15_000, True)
    raw = log_file.read_bytes()
    changed = raw[:44] + bytes([raw[44] ^ 1]) + raw[45:]
    [unknown] = dump(log_file, memoryview(changed))
    assert "due_ms" not in unknown and unknown["record_position"] == unit["record_position"]
    [slot] = rows(paths.timer_wheel)
    assert slot["count"] == 1 and slot["first_position"] == slot["last_position"] == 0
    assert max(mark["queue_offset"] for mark in rows(paths.timer_mark)) == 1
    assert rows(paths.config_file("timercheck"))[0]["queue_offset"] == 1
    assert set(rows(paths.checkpoint)[0]) >= {"log_ms", "queues_ms", "index_ms"}


@pytest.mark.parametrize("name", ["config/topics.json", "lock", "commitlog/x", "00000000000000000000"])
def test_an_unknown_file_is_rejected(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnknownFile, match="give one below commitlog"):
        dump(tmp_path / name, memoryview(b"x"))


def test_a_topic_with_the_name_of_a_folder_is_printed(tmp_path: Path) -> None:
    with BrokerHarness(tmp_path) as harness:
        harness.send("commitlog")
        [path] = harness.broker.parts.paths.consume_queue("commitlog", 0).iterdir()
    assert [row["queue_offset"] for row in rows(path)] == [0]
