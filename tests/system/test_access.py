"""`wheelmq up` with users and access lists: all parts, the pipeline on Spark, and the commands."""

from __future__ import annotations

import base64
import json
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.running import COMMAND_DEADLINE_S, Up, lines, up, wheelmq
from wheelmq.formats.wire import frame
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.signature import AccessKey

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

ROOT, BOB = "the secret of root", "the secret of bob"
DELAY_S = 30
"""Delay of a message. Even on a busy machine, its consumer starts before the message is due."""
LATENESS_MS_MAX = 2000
SECURED = ("--set", "authenticationEnabled=true", "--set", "authorizationEnabled=true")


def offline(home: Path, *words: str, secret: str = "") -> None:
    command = wheelmq(*words, "--store", str(home / "store"))
    done = subprocess.run(command, input=f"{secret}\n", capture_output=True, text=True, timeout=COMMAND_DEADLINE_S)
    assert done.returncode == 0, done.stderr


def act_as(monkeypatch: pytest.MonkeyPatch, name: str | None, secret: str = "") -> None:
    for variable, value in (("WHEELMQ_ACCESS_KEY", name), ("WHEELMQ_SECRET_KEY", secret)):
        if name is None:
            monkeypatch.delenv(variable, raising=False)
        else:
            monkeypatch.setenv(variable, value or "")


def raw_ask(address: str, command: Command) -> Command:
    """Send a request from a socket of its own, as a stranger would."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(frame.encode(command))
        raw = b""
        while (end := frame.frame_end(raw, 0, len(raw))) is None:
            chunk = connection.recv(65_536)
            assert chunk
            raw += chunk
        return frame.decode(raw, 0, end)


def secret_of_the_parts(running: Up) -> str:
    """Return the secret that `up` gave to its parts."""
    return psutil.Process(running.found["pids"]["broker"]).environ()["WHEELMQ_SECRET_KEY"]


def test_all_parts_work_with_users_and_strangers_get_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    offline(home, "users", "add", "root", "--super", secret=ROOT)
    offline(home, "users", "add", "bob", secret=BOB)
    offline(home, "acl", "grant", "bob", "Topic:Orders", "Pub", "Sub", "Get")
    offline(home, "acl", "grant", "bob", "Group:billing", "Sub")
    with up(home, *SECURED) as running:
        namesrv, broker = running.found["namesrv"], running.found["broker"]
        for address, code in (
            (broker, RequestCode.WMQ_METRICS),
            (broker, RequestCode.WMQ_PIPELINE_OPEN),
            (broker, RequestCode.WMQ_PIPELINE_RENEW),
            (namesrv, RequestCode.GET_NAMESRV_CONFIG),
        ):
            ext = {"name": "p", "holderId": "1", "epoch": "1"}
            answer = raw_ask(address, Command(code=code, ext=ext))
            assert answer.code in (ResponseCode.NO_PERMISSION, ResponseCode.INVALID_PARAMETER) and not answer.body

        act_as(monkeypatch, None)
        assert "username cannot be null" in running.failing_command("send", "Orders", "x")
        act_as(monkeypatch, "bob", BOB)
        assert "has no permission" in running.failing_command("send", "Other", "x")
        running.command("send", "Orders", "at once")
        running.command("send", "Orders", "later", "--delay", f"{DELAY_S}s")
        (pending,) = json.loads(running.command("timers", "--topic", "Orders", "--json"))
        assert pending["topic"] == "Orders"
        assert "has no permission" in running.failing_command("timers")
        received = lines(running.command("consume", "Orders", "--group", "billing", "--count", "2", "--json"))
        assert [one["body"] for one in received] == ["at once", "later"]
        assert 0 <= received[1]["lateness_ms"] < LATENESS_MS_MAX

        act_as(monkeypatch, "root", ROOT)
        listed = json.loads(running.command("users", "list", "--json"))
        assert {user["username"] for user in listed} == {"bob", "root"}
        running.command("acl", "revoke", "bob", "Topic:Orders")
        act_as(monkeypatch, "bob", BOB)
        assert "has no permission" in running.failing_command("send", "Orders", "x")
        check_secrets(running, home)
        assert figures_of(running)["pipeline"]["is_turning"]
        check_metrics(running)
        audit = [json.loads(line) for line in (home / "logs" / "audit-broker.log").read_text().splitlines()]
        assert [(one["request"], one["user"], one["outcome"]) for one in audit] == [
            ("AUTH_LIST_USER", "root", "done"),
            ("AUTH_DELETE_ACL", "root", "done"),
        ]
        assert running.stop() == 0


def figures_of(running: Up) -> dict[str, Any]:
    """Return the figures of the dashboard after a login as root. Without a login there are none."""
    dashboard = running.found["dashboard"].rstrip("/")
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"{dashboard}/figures.json", timeout=10)
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    form = urllib.parse.urlencode({"name": "root", "secret": ROOT}).encode()
    login = urllib.request.Request(f"{dashboard}/login", form, {"Origin": dashboard})
    with browser.open(login, timeout=10) as page:
        assert "root, role operate" in page.read().decode()
    with browser.open(f"{dashboard}/figures.json", timeout=10) as answered:
        return dict(json.load(answered)["figures"])


def check_metrics(running: Up) -> None:
    """Fetch the metrics as Prometheus does. Bob has no right to read the cluster."""

    def status(name: str, secret: str) -> int:
        credentials = base64.b64encode(f"{name}:{secret}".encode()).decode()
        request = urllib.request.Request(running.found["metrics"], headers={"Authorization": f"Basic {credentials}"})
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                assert b"rocketmq_messages_in_total" in answer.read()
                return int(answer.status)
        except urllib.error.HTTPError as error:
            assert b"rocketmq_" not in error.read()
            return error.code

    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(running.found["metrics"], timeout=10)
    assert (status("bob", BOB), status("root", BOB), status("root", ROOT)) == (401, 401, 200)
    for path in ("healthz", "readyz"):
        with urllib.request.urlopen(running.found["dashboard"] + path, timeout=10) as answer:
            assert answer.status == 200


def test_a_pipeline_of_its_own_process_finds_the_key_in_the_home(tmp_path: Path) -> None:
    home = tmp_path / "home"
    offline(home, "users", "add", "root", "--super", secret=ROOT)
    with up(home, "--no-pipeline", *SECURED) as running:
        broker = running.found["broker"]
        words = ("pipeline", "--broker", broker, "--log-dir", str(tmp_path / "logs"))
        with run_beside(*words, "--home", str(tmp_path / "another home")) as stranger:
            wait_until(lambda: "has no permission" in text_of(stranger) or "cannot be null" in text_of(stranger))
        with run_beside(*words, "--home", str(home)):
            wait_until(lambda: holder_of(broker) != "")
        assert running.stop() == 0


@contextmanager
def run_beside(*words: str) -> Iterator[Path]:
    """Run a command until the end of the block. Yields the file with its output."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "output"
        with output.open("wb") as file:
            process = subprocess.Popen(wheelmq(*words), stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        try:
            yield output
        finally:
            process.terminate()
            process.wait(60)


def text_of(output: Path) -> str:
    return output.read_text(errors="replace")


def wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


def holder_of(broker: str) -> str:
    """Return the holder of the lease, as a super user sees it."""
    command = Command(code=RequestCode.WMQ_METRICS)
    AccessKey("root", ROOT).sign(command)
    return str(json.loads(bytes(raw_ask(broker, command).body))["pipeline"]["holder"] or "")


def check_secrets(running: Up, home: Path) -> None:
    """Check that no command line, no child of the pipeline and no log has a secret."""
    secret = secret_of_the_parts(running)
    assert len(secret) >= 40
    family = psutil.Process(running.process.pid).children(recursive=True)
    for process in family:
        words = " ".join(process.cmdline())
        assert all(one not in words for one in (secret, ROOT, BOB)), process
    driver = running.found["pids"]["pipeline"]
    workers = [one for one in psutil.Process(driver).children(recursive=True) if one.pid != driver]
    assert workers, "Spark's JVM and its workers"
    for process in workers:
        assert secret not in process.environ().values(), process.cmdline()
    for log in (home / "logs").iterdir():
        text = log.read_bytes()
        assert all(one.encode() not in text for one in (secret, ROOT, BOB)), log


@pytest.mark.parametrize(
    "options", [("--namesrv-host", "0.0.0.0"), ("--set", "listen_host=0.0.0.0"), ("--network=10.0.0.7",)]
)
def test_a_server_that_other_machines_reach_does_not_start_without_users(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    command = wheelmq("up", "--home", str(tmp_path / "home"), "--no-pipeline", "--no-dashboard")
    command += ["--namesrv-port=0", "--broker-port=0", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150)
    assert done.returncode == 1
    for remedy in ("wheelmq users add", "allow_unauthenticated=true", "listen_host=127.0.0.1"):
        assert remedy in done.stderr, done.stderr
