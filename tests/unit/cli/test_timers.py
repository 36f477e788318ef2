"""`wheelmq timers --store`: the list of the broker, read from the files without changing them."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from click.testing import CliRunner, Result

from wheelmq.cli import main
from wheelmq.cli import timers_view as view
from wheelmq.cli.times import time_text
from wheelmq.delay.offline import pending_in
from wheelmq.delay.pending_message import PendingMessage, State
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import Message
from wheelmq.formats.disk.timer import TIMER_TOPIC
from wheelmq.formats.units import Millis
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel


def listed(harness: BrokerHarness) -> list[dict[str, Any]]:
    """Return the pending messages that the running broker lists."""
    answer = harness.ask_code(RequestCode.WMQ_LIST_TIMERS, count=1000)
    assert answer.ext["isLast"] == "true"
    return [msgspec.json.decode(line) for line in bytes(answer.body).split(b"\n") if line]


def read(store: Path) -> list[dict[str, Any]]:
    return [json.loads(msgspec.json.encode(pending)) for pending in pending_in(store)]


def without_state(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "state"} for row in rows]


def fingerprint(folder: Path) -> dict[str, str]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path): f"{path.stat().st_mtime_ns} {hashlib.sha256(path.read_bytes()).hexdigest()}" for path in paths}


def fill(harness: BrokerHarness) -> None:
    """Send messages for every state: released, cancelled, indexed, armed, parked, rolled; and plain ones."""
    model = PipelineModel(harness)
    harness.send("T", b"out", delay_ms=500)
    harness.send("T", b"plain")
    harness.send("T", b"cancelled", delay_ms=9000, properties={props.UNIQ_KEY: "C"})
    harness.send("T", b"long", delay_ms=15_000, queue_id=2, properties={props.KEYS: "k", props.TAGS: "t"})
    harness.send("U", b"rolls", delay_ms=40_000)
    harness.send("T", deliver_ms=harness.now_ms + 9000, properties={props.TIMER_DEL_UNIQKEY: "T+C"})
    harness.advance(4000, model.work)
    harness.send("T", b"fresh", delay_ms=12_000)


def fill_blocks(harness: BrokerHarness) -> None:
    """Send messages to blocks: released, cancelled and pending ones."""
    for i in range(120):
        own = {props.UNIQ_KEY: f"B{i}", props.KEYS: "k"}
        harness.send("TU"[i % 2], b"%d" % i * 30, properties={**own, props.DELAY_IN_SECONDS: str(1 + i % 40)})
    for key in ("T+B90", "T+B38"):
        harness.send("T", deliver_ms=harness.now_ms + 9000, properties={props.TIMER_DEL_UNIQKEY: key})
    harness.advance(5000, PipelineModel(harness).work)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["timers", *arguments])


def count(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["timer-counts", *arguments])


@pytest.mark.parametrize("clean", [True, False])
def test_files_and_broker_list_the_same_timers(harness: BrokerHarness, tmp_path: Path, clean: bool) -> None:
    fill(harness)
    expected = listed(harness)
    assert [row["topic"] for row in expected] == ["T", "U", "T"]
    if clean:
        harness.stop()
    else:
        harness.crash()
    found = read(tmp_path / "store")
    assert without_state(found) == without_state(expected)
    assert [row["state"] for row in found] == ["indexed", "indexed", "parked"]


@pytest.mark.parametrize("how", ["clean", "killed", "damaged", "no checkpoints", "no queues"])
def test_files_and_broker_list_the_same_block_messages(harness: BrokerHarness, tmp_path: Path, how: str) -> None:
    fill(harness)
    fill_blocks(harness)
    harness.stop() if how in ("clean", "damaged") else harness.crash()
    folder = tmp_path / "store" / "scheduledtempdata"
    match how:
        case "damaged":
            for path in folder.glob("*/log/00000000000000000000"):
                raw = bytearray(path.read_bytes())
                raw[1000] ^= 0x55  # a body or a head: the broker and the reader both set its message aside
                path.write_bytes(raw)
        case "no checkpoints":
            for path in folder.glob("*/checkpoint"):
                path.unlink()
        case "no queues":
            for path in folder.glob("*/queue"):
                shutil.rmtree(path)
    offline = read(tmp_path / "store")
    harness.start()
    online = listed(harness)
    assert without_state(offline) == without_state(online)
    in_blocks = [row["unique_key"] for row in offline if row["block"] is not None]
    assert len(in_blocks) >= 100 and not {"B0", "B90", "B38"} & set(in_blocks)
    assert len(set(in_blocks)) == len(in_blocks)


def test_a_listing_changes_no_file(harness: BrokerHarness, tmp_path: Path) -> None:
    fill(harness)
    harness.send("T", properties={props.DELAY_IN_SECONDS: "20"})
    harness.crash()
    before = fingerprint(tmp_path)
    assert len(read(tmp_path / "store")) == 4
    assert fingerprint(tmp_path) == before


def test_a_rolled_message_is_listed_once_with_its_due_time(harness: BrokerHarness, tmp_path: Path) -> None:
    model = PipelineModel(harness)
    due_ms = harness.now_ms + 40_000
    harness.send("T", deliver_ms=due_ms)
    harness.advance(25_000, model.work)
    assert harness.broker.parts.releaser.counts["rolled"] >= 1
    harness.stop()
    assert [row["due_ms"] for row in read(tmp_path / "store")] == [due_ms]


def apache_message(due_ms: int, unique_key: str, deletes: str | None = None) -> Message:
    """Return a record of the timer queue as Apache RocketMQ writes it."""
    properties = {props.UNIQ_KEY: unique_key, props.TIMER_DELIVER_MS: str(due_ms)}
    if deletes is not None:
        properties[props.TIMER_DEL_UNIQKEY] = deletes
    properties |= {
        props.TIMER_OUT_MS: str((due_ms - 1) // 1000 * 1000),
        props.REAL_TOPIC: "T",
        props.REAL_QID: "0",
    }
    return Message(TIMER_TOPIC, 0, b"x", properties, born_ms=Millis(0))


def test_a_store_of_apache_is_listed_without_cancelled_messages(harness: BrokerHarness, tmp_path: Path) -> None:
    due_ms = harness.now_ms + 30_000
    for message in (
        apache_message(due_ms, "kept"),
        apache_message(due_ms, "gone"),
        apache_message(due_ms, "cancel", deletes="T+gone"),
    ):
        harness.broker.parts.store.append(message)
    harness.tick()
    harness.crash()
    assert [(row["unique_key"], row["due_ms"]) for row in read(tmp_path / "store")] == [("kept", due_ms)]


def test_the_command_prints_an_array_of_messages(harness: BrokerHarness, tmp_path: Path) -> None:
    fill(harness)
    expected = without_state(listed(harness))
    harness.stop()
    store = str(tmp_path / "store")
    result = run("--store", store, "--json")
    assert result.exit_code == 0
    found = json.loads(result.output)
    assert {(row.pop("end"), row.pop("ended_ms"), row.pop("end_position")) for row in found} == {(None, None, None)}
    assert without_state(found) == expected
    assert len(result.output.splitlines()) == len(found) + 2, "each row has a line of its own"
    only = run("--store", store, "--json", "--topic", "U")
    assert [row["topic"] for row in json.loads(only.output)] == ["U"]
    assert run("--store", store, "--json", "--topic", "other").output == "[]\n"
    table = run("--store", store, "--limit", "2")
    assert "3 pending, the first 2" in table.output


def test_a_store_without_timers_has_no_pending_messages(harness: BrokerHarness, tmp_path: Path) -> None:
    harness.send("T", b"plain")
    harness.stop()
    assert "Nothing is pending" in run("--store", str(tmp_path / "store")).output


def test_the_option_store_also_accepts_a_home(harness: BrokerHarness, tmp_path: Path) -> None:
    harness.send("T", delay_ms=20_000)
    harness.stop()
    at_home, at_store = run("--store", str(tmp_path), "--json"), run("--store", str(tmp_path / "store"), "--json")
    assert at_home.output == at_store.output != ""


class Terminal(io.StringIO):
    """An output that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("columns", "is_terminal", "gone"),
    [
        (80, False, set()),
        (200, True, set()),
        (100, True, {"keys"}),
        (80, True, {"keys", " in "}),
        (60, True, {"topic"}),
    ],
)
def test_a_narrow_table_drops_only_less_important_columns(
    monkeypatch: pytest.MonkeyPatch, columns: int, is_terminal: bool, gone: set[str]
) -> None:
    pending = PendingMessage(
        unique_key="7F00000102513D3DB9E96C1898490002",
        topic="Orders",
        queue_id=0,
        due_ms=1_800_000_000_250,
        stored_ms=0,
        keys="A-17 and-another-one",
        tags=None,
        state=State.PARKED,
        queue_offset=0,
        body_bytes=1,
        log_position=0,
    )
    out = Terminal() if is_terminal else io.StringIO()
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys, "stdout", out)
    view.show(iter([msgspec.json.encode(pending)]), 1, as_json=False)
    told = click.unstyle(out.getvalue())
    head = next(line for line in told.splitlines() if " due " in line)
    assert not {name for name in gone if name in head}
    assert "…" not in told and " parked " in told and time_text(pending.due_ms)[11:23] in told
    if columns > 60:
        assert " 7F00000102513D3DB9E96C1898490002 " in told and " Orders " in told


def test_a_folder_without_a_store_is_an_error(tmp_path: Path) -> None:
    result = run("--store", str(tmp_path), "--json")
    assert result.exit_code == 1
    assert "no commit log" in result.output
    assert run("--store", str(tmp_path / "absent")).exit_code == 2
    assert run("--store", str(tmp_path), "--broker", "127.0.0.1:1").exit_code == 2


def test_a_store_that_a_broker_has_open_is_rejected(harness: BrokerHarness, tmp_path: Path) -> None:
    """The command runs in another process, because the system's lock is per process."""
    harness.send("T", delay_ms=10_000)
    command = [sys.executable, "-m", "wheelmq", "timers", "--store", str(tmp_path / "store"), "--json"]
    open_still = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert open_still.returncode == 1
    assert "a broker has the store" in open_still.stderr
    assert f"process {os.getpid()}" in open_still.stderr
    assert open_still.stdout == ""


def test_the_command_selects_a_time_span_and_counts_per_minute(harness: BrokerHarness, tmp_path: Path) -> None:
    for i in range(6):
        harness.send("T", delay_ms=20_000 * (i + 1))
    expected = {row["due_ms"]: row["queue_offset"] for row in listed(harness)}
    harness.stop()
    store = str(tmp_path / "store")
    dues = sorted(expected)
    span = ["--from", time_text(dues[1]), "--to", time_text(dues[4])]
    found = [row["queue_offset"] for row in json.loads(run("--store", store, "--json", *span).output)]
    assert found == [expected[due_ms] for due_ms in dues[1:4]]
    rows = json.loads(count("--store", store, "--json").output)
    assert sum(row["count"] for row in rows) == 6
    assert {row["minute_ms"] for row in rows} == {due_ms // 60_000 * 60_000 for due_ms in dues}
    assert "6 pending, in" in count("--store", store).output
    assert "Nothing is pending" in count("--store", store, "--from", "+200d").output
    assert count("--store", store, "--from", "+200d", "--json").output == "[]\n"


@pytest.mark.parametrize("words", [["--from", "noon"], ["--key", "K"], ["--per-minute"]])
def test_invalid_options_are_a_usage_error(tmp_path: Path, words: list[str]) -> None:
    assert run(*words).exit_code == 2
