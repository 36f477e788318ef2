"""Reports to a service manager: by a socket of its own, and by real parts."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.running import STOP_DEADLINE_S, wheelmq
from wheelmq.cli.service_manager import STATUS_BYTES_MAX, ServiceManager

DEADLINE_S = 30


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(DEADLINE_S)
        yield listener


def test_each_state_is_one_datagram(manager: socket.socket) -> None:
    reporter = ServiceManager(manager.getsockname())
    reporter.ready("listens on\n1")
    reporter.status("x" * 2 * STATUS_BYTES_MAX)
    reporter.stopping()
    assert manager.recv(4096) == b"READY=1\nSTATUS=listens on 1"
    assert manager.recv(4096) == b"STATUS=" + b"x" * STATUS_BYTES_MAX
    assert manager.recv(4096) == b"STOPPING=1\nSTATUS=stopping"


def test_an_abstract_name_is_accepted() -> None:
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as listener:
        name = f"wheelmq-test-{os.getpid()}"
        listener.bind(f"\0{name}")
        listener.settimeout(DEADLINE_S)
        ServiceManager(f"@{name}").status("here")
        assert listener.recv(4096) == b"STATUS=here"


@pytest.mark.parametrize("path", [None, "", "/no/such/socket"])
def test_without_a_manager_nothing_happens(path: str | None) -> None:
    ServiceManager(path).ready("ready")


def test_child_processes_do_not_inherit_the_socket() -> None:
    environment = {"NOTIFY_SOCKET": "/run/notify", "HOME": "/"}
    ServiceManager.of(environment)
    assert environment == {"HOME": "/"}


def test_a_name_server_reports_its_start_and_its_stop(manager: socket.socket, tmp_path: Path) -> None:
    environment = {**os.environ, "NOTIFY_SOCKET": manager.getsockname()}
    command = wheelmq("nameserver", "--home", str(tmp_path), "--port", "0")
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment) as process:
        try:
            first = manager.recv(4096).decode().splitlines()
            assert first[0] == "READY=1" and first[1].startswith("STATUS=The name server listens on 127.0.0.1:")
            process.send_signal(signal.SIGTERM)
            assert manager.recv(4096).decode().startswith("STOPPING=1")
            assert process.wait(STOP_DEADLINE_S) == 0
        finally:
            process.kill()


def test_a_part_that_cannot_start_reports_the_reason(manager: socket.socket, tmp_path: Path) -> None:
    environment = {**os.environ, "NOTIFY_SOCKET": manager.getsockname()}
    command = wheelmq("nameserver", "--home", str(tmp_path), "--set", "listen_prt=1")
    done = subprocess.run(command, capture_output=True, env=environment, timeout=DEADLINE_S)
    assert done.returncode == 78
    assert manager.recv(4096).startswith(b"STATUS=cannot start: --set listen_prt: there is no setting 'listen_prt'")
