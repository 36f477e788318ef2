"""`wheelmq ship`, `backup` and `restore` as commands."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from wheelmq.cli import main
from wheelmq.cli.times import parse_past_time, time_text
from wheelmq.formats.disk.paths import StorePaths
from wheelmq.formats.units import Millis
from wheelmq.net.managed_process import CANNOT_START
from wheelmq.store.ship_status import ShipStatusFile, read_statuses
from wheelmq.system.clock import SystemClock
from wheelmq.system.disk import Disk, ReadOnlyDisk
from wheelmq.testing.clock import ManualClock
from wheelmq.testing.harness import BrokerHarness


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Put the signal handlers back that `ship` replaces."""
    known = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in known.items():
        signal.signal(number, handler)


@pytest.fixture
def clock() -> ManualClock:
    """The time of the machine, because the commands have no other."""
    return ManualClock(SystemClock().now_ms() - 10_000)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(one) for one in arguments])


def events(result: Result) -> dict[str, dict[str, Any]]:
    found = [json.loads(line) for line in result.output.splitlines() if line.startswith("{")]
    return {event["event"]: event for event in found}


def fill(harness: BrokerHarness) -> None:
    harness.send("T", b"now")
    harness.send("T", b"later", delay_ms=3_600_000)
    harness.send("T", b"in a block", properties={"delayInSeconds": "3600"})


def test_ship_once_and_restore(harness: BrokerHarness, tmp_path: Path) -> None:
    fill(harness)
    target, home = tmp_path / "copies", tmp_path / "new"
    shipped = events(run("ship", target, "--home", tmp_path, "--once", "--json"))
    assert list(shipped) == ["shipping", "complete", "stopped"] and shipped["stopped"]["records"] == 3
    checked = events(run("restore", target, "--check", "--json"))["checked"]
    assert (checked["records"], checked["timers"], checked["in_blocks"]) == (2, 1, 1)
    result = run("restore", target, "--home", home)
    assert result.exit_code == 0, result.output
    assert f"restored {home}/store" in result.output and "1 in the timer, 0 in levels, 1 in blocks" in result.output
    assert "--set log_file_bytes=1048576" in result.output
    with BrokerHarness(home / "store", clock=harness.clock) as restored:
        assert restored.bodies("T") == [b"now"]


def test_backups_add_up_and_each_can_be_restored(harness: BrokerHarness, tmp_path: Path) -> None:
    fill(harness)
    first = events(run("backup", tmp_path / "copies", "--store", tmp_path / "store", "--json"))
    assert first["verified"]["records"] == 2 and first["stopped"]["records"] == 3
    first_ms = SystemClock().now_ms()
    harness.clock.step(first_ms + 1000 - harness.now_ms)
    harness.send("T", b"more")
    second = events(run("backup", tmp_path / "copies", "--store", tmp_path / "store", "--json"))
    assert second["verified"]["records"] == 3 and second["stopped"]["records"] == 1
    at = time_text(first_ms)
    for options, records in ((("--at", at), 2), ((), 3)):
        assert (
            events(run("restore", tmp_path / "copies", "--check", "--json", *options))["checked"]["records"] == records
        )


def test_the_age_of_a_single_copy_is_no_lag(harness: BrokerHarness, tmp_path: Path) -> None:
    fill(harness)
    disk, paths = ReadOnlyDisk(), StorePaths(tmp_path / "store")
    run("backup", tmp_path / "copies", "--home", tmp_path)
    run("ship", tmp_path / "more", "--home", tmp_path, "--once")
    assert read_statuses(disk, paths) == []
    file = ShipStatusFile(Disk(), paths, str(tmp_path / "more"))
    status = file.read()
    assert status is not None
    file.write(msgspec.structs.replace(status, is_continuous=True))  # as `ship` without --once does
    run("ship", tmp_path / "more", "--home", tmp_path, "--once")
    assert [one.target for one in read_statuses(disk, paths)] == [str(tmp_path / "more")]


def test_a_backup_says_that_it_is_verified(harness: BrokerHarness, tmp_path: Path) -> None:
    fill(harness)
    result = run("backup", tmp_path / "copies", "--store", tmp_path / "store")
    assert result.exit_code == 0
    assert (
        "verified: 2 records" in result.output
        and "pending are 1 in the timer, 0 in levels, 1 in blocks" in result.output
    )
    assert " in 1 capture, " in result.output and ", 1 in 1 block;" in result.output


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("ship", "copies", "--store", "nothing"), CANNOT_START, "is no store, and has none"),
        (("ship", "copies", "--store", "store", "--interval", "10ms"), CANNOT_START, "between 50ms and 60s"),
        (("ship", "copies", "--store", "store", "--storage", "a=b"), CANNOT_START, "the target is a folder"),
        (("ship", "s3://b/x", "--store", "store", "--storage", "a"), CANNOT_START, "write KEY=VALUE"),
        (("ship", "nosuch://b/x", "--store", "store"), CANNOT_START, "Install the package for nosuch"),
        (("ship", "config", "--store", "store"), CANNOT_START, "other files"),
        (("backup", "copies", "--store", "nothing"), 1, "is no store, and has none"),
        (("restore", "nothing"), 1, "holds no shipped store"),
        (("restore", "copies", "--at", "yesterday"), 1, "no time"),
        (("restore", "copies", "--at", "+5m"), 1, "in the future"),
    ],
)
def test_errors_name_the_remedy(
    harness: BrokerHarness,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    code: int,
    text: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "mine").write_text("x")
    result = run(*arguments)
    assert result.exit_code == code and text in result.stderr and not result.stdout


@pytest.mark.parametrize("command", ["ship", "backup", "restore"])
@pytest.mark.parametrize("place", ["core.url_to_fs", "implementations.memory.MemoryFileSystem.find"])
def test_an_unreachable_target_can_be_tried_again(
    harness: BrokerHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, place: str
) -> None:
    """A service manager does not start a command again after exit code 78."""

    def fail(*_: object, **__: object) -> None:
        raise ConnectionRefusedError("planted")

    for name in {place, place.replace("find", "cat_file")}:
        monkeypatch.setattr(f"fsspec.{name}", fail)
    options = ("--check",) if command == "restore" else ("--store", tmp_path / "store")
    result = run(command, "memory://host/copies", *options)
    assert result.exit_code == 1 and "planted" in result.stderr and "host/copies" in result.stderr


def test_an_option_that_the_target_does_not_have_is_no_lack_of_contact(
    harness: BrokerHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise TypeError("unexpected keyword argument 'a'")

    monkeypatch.setattr("fsspec.core.url_to_fs", fail)
    result = run("ship", "memory://host/copies", "--store", tmp_path / "store", "--storage", "a=b")
    assert result.exit_code == CANNOT_START and "Check the options of --storage" in result.stderr


@pytest.mark.parametrize("command", ["ship", "backup", "restore"])
def test_a_password_with_a_slash_is_rejected_and_not_printed(
    harness: BrokerHarness, tmp_path: Path, command: str
) -> None:
    options = ("--check",) if command == "restore" else ("--store", tmp_path / "store", "--json")
    result = run(command, "sftp://bob:hid/den@127.0.0.1/copies", *options)
    assert result.exit_code == (CANNOT_START if command == "ship" else 1)
    assert "percent-encode / as %2F in the password" in result.stderr
    assert "hid" not in result.output and "den" not in result.output


@pytest.mark.parametrize("command", ["ship", "backup", "restore"])
@pytest.mark.parametrize("scheme", ["nosuch", "http", "memory"])
def test_an_error_hides_the_password_of_the_target(
    harness: BrokerHarness, tmp_path: Path, command: str, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client of HTTP names whole URLs in its errors."""

    def find(self: object, path: str, *arguments: object, **options: object) -> list[str]:
        raise ValueError(f"cannot list {path} with the password hid/den")

    for files in ("http.HTTPFileSystem", "memory.MemoryFileSystem"):
        monkeypatch.setattr(f"fsspec.implementations.{files}.find", find)
        monkeypatch.setattr(f"fsspec.implementations.{files}.cat_file", find)
    options = ("--check",) if command == "restore" else ("--store", tmp_path / "store")
    result = run(command, f"{scheme}://bob:hid%2Fden@127.0.0.1/copies", *options)
    assert result.exit_code and "Error: " in result.stderr and not result.stdout
    assert "127.0.0.1/copies" in result.stderr
    assert "hid" not in result.output and "den" not in result.output


def test_an_event_has_no_password(harness: BrokerHarness, tmp_path: Path) -> None:
    fill(harness)
    result = run("ship", "memory://bob:hidden@host/copies", "--store", tmp_path / "store", "--once", "--json")
    assert events(result)["stopped"]["records"] == 3 and "hidden" not in result.output


def test_an_error_is_also_an_event(harness: BrokerHarness, tmp_path: Path) -> None:
    result = run("ship", "nosuch://bob:hidden@b/x", "--store", tmp_path / "store", "--json")
    assert json.loads(result.stdout)["why"] in result.stderr and "hidden" not in result.output


def test_a_time_outside_the_window_is_refused_with_the_window(harness: BrokerHarness, tmp_path: Path) -> None:
    fill(harness)
    run("backup", tmp_path / "copies", "--store", tmp_path / "store")
    result = run("restore", tmp_path / "copies", "--at", "-1h", "--to", tmp_path / "x")
    assert result.exit_code == 1 and "the target begins at" in result.output
    assert not (tmp_path / "x").exists()


def test_a_damaged_target_is_named(harness: BrokerHarness, tmp_path: Path) -> None:
    fill(harness)
    run("backup", tmp_path / "copies", "--store", tmp_path / "store")
    (path,) = (tmp_path / "copies" / "new").iterdir()
    raw = bytearray(path.read_bytes())
    raw[60] ^= 1
    path.write_bytes(raw)
    result = run("restore", tmp_path / "copies", "--check")
    assert result.exit_code == 1 and "new/0000000000000001" in result.output


def test_a_single_copy_gives_up_when_the_target_fails(
    harness: BrokerHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(harness)
    monkeypatch.setattr("wheelmq.cli.ship_run.RETRY_S_MAX", 0.05)
    run("ship", tmp_path / "copies", "--store", tmp_path / "store", "--once")
    harness.send("T", b"more")
    (tmp_path / "copies" / "new").rename(tmp_path / "copies" / "old")
    (tmp_path / "copies" / "new").write_text("no folder")
    result = run("ship", tmp_path / "copies", "--store", tmp_path / "store", "--once", "--interval", "50ms", "--json")
    assert result.exit_code == 1 and "failed" in events(result)


def test_a_past_time_is_relative_or_absolute_and_not_in_the_future() -> None:
    now_ms = Millis(1_800_000_000_000)
    assert parse_past_time("-10m", now_ms) == now_ms - 600_000
    assert parse_past_time("2026-11-25T13:30:00Z", now_ms) == 1_795_613_400_000
    with pytest.raises(ValueError, match="in the future"):
        parse_past_time("+10m", now_ms)
