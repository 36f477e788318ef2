"""A master and a slave as processes: the master is killed, the slave promoted, and no message in a block is lost."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.running import COMMAND_DEADLINE_S, START_DEADLINE_S, STOP_DEADLINE_S, wheelmq
from wheelmq.cli.switch import state_at
from wheelmq.client import SendStatus, SyncProducer
from wheelmq.formats.disk.message import Record
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.headers import PULL_SUBSCRIPTION
from wheelmq.net.errors import CallError, Refused
from wheelmq.net.sync_connection import SyncConnection
from wheelmq.testing.harness import records_in

SIZES = ("log_file_bytes=4194304", "timer_slots=3600", "timer_roll_window_slots=1800", "block_log_file_bytes=1048576")
DEADLINE_S = 60.0
LATE_MS = 1000
"""Lateness that a busy machine may cause."""
MESSAGES = 120


@contextmanager
def running(folder: Path, name: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """Run a server with --json. Yields its process and its first line."""
    errors = folder / f"{name}.err"
    with (
        errors.open("a") as file,
        subprocess.Popen(wheelmq(*arguments, "--json"), stdout=subprocess.PIPE, stderr=file, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, errors.read_text()
            yield process, json.loads(line)
        finally:
            process.terminate()
            process.wait(STOP_DEADLINE_S)


class Brokers:
    """A name server, and brokers of one name."""

    def __init__(self, folder: Path, namesrv: str, processes: ExitStack) -> None:
        self.namesrv = namesrv
        self._folder = folder
        self._processes = processes

    def start(self, name: str, port: int, *settings: str) -> tuple[subprocess.Popen[str], SyncConnection]:
        options = [word for one in (*SIZES, *settings) for word in ("--set", one)]
        home = ("--home", str(self._folder / name), "--port", str(port), "--namesrv", self.namesrv)
        process, said = self._processes.enter_context(running(self._folder, name, "broker", *home, *options))
        return process, SyncConnection(said["address"])


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    with ExitStack() as processes:
        home = ("--home", str(tmp_path / "names"), "--port", "0")
        _, said = processes.enter_context(running(tmp_path, "names", "nameserver", *home))
        yield Brokers(tmp_path, said["address"], processes)


def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition. A server that does not answer yet does not fulfil it."""
    deadline_s = time.monotonic() + DEADLINE_S
    while True:
        try:
            if condition():
                return
        except (CallError, Refused) as error:
            assert time.monotonic() < deadline_s, error
        assert time.monotonic() < deadline_s, "the deadline has passed"
        time.sleep(0.02)


def read(broker: SyncConnection, topic: str) -> list[Record]:
    """Return all records of queue 0."""
    found: list[Record] = []
    while True:
        ext = headers.texts(
            consumerGroup="g",
            topic=topic,
            queueId=0,
            queueOffset=len(found),
            maxMsgNums=32,
            sysFlag=PULL_SUBSCRIPTION,
            commitOffset=0,
            suspendTimeoutMillis=0,
            subscription="*",
            subVersion=0,
        )
        answer = broker.call(Command(code=RequestCode.PULL_MESSAGE, ext=ext))
        if answer.code != ResponseCode.SUCCESS:
            return found
        found += records_in(bytes(answer.body))


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.mark.timeout(3 * START_DEADLINE_S)
def test_each_message_in_a_block_leaves_once_and_on_time_when_its_master_is_killed(brokers: Brokers) -> None:
    killed, master = brokers.start("a", 0, "broker_role=SYNC_MASTER", "block_length_seconds=60")
    _, slave = brokers.start("b", 0, "broker_role=SLAVE", "broker_id=1", "block_length_seconds=60")
    until(lambda: "1" in state_at(master).lacking)
    due_ms: dict[bytes, tuple[int, int]] = {}
    with SyncProducer(brokers.namesrv) as producer:
        producer.send("T", b"first", queue_id=0)
        until(lambda: state_at(slave).log_end == state_at(master).log_end)
        for i in range(MESSAGES):
            seconds, before_ms = 2 + i % 9, now_ms()
            result = producer.send("T", b"%d" % i, queue_id=0, delay_in_seconds=seconds)
            assert result.status is SendStatus.OK
            due_ms[b"%d" % i] = before_ms + 1000 * seconds, now_ms() + 1000 * seconds
    until(lambda: len(read(master, "T")) > MESSAGES // 3)
    killed.send_signal(signal.SIGKILL)
    killed.wait(STOP_DEADLINE_S)
    command = wheelmq("promote", slave.address, "--namesrv", brokers.namesrv, "--force", "--json")
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_DEADLINE_S)
    assert done.returncode == 0, done.stderr
    promoted_ms = now_ms()
    assert MESSAGES // 3 < len(read(slave, "T")) < MESSAGES, "some messages left before the failover"
    port = int(master.address.rpartition(":")[2])  # consumers of a SYNC_MASTER see what a replica has
    _, former = brokers.start("a", port, "broker_role=SYNC_MASTER", "block_length_seconds=60")
    until(lambda: len(read(slave, "T")) > MESSAGES)
    with SyncProducer(brokers.namesrv) as producer:
        producer.send("T", b"last", queue_id=0, delay_in_seconds=1)
    until(lambda: read(slave, "T")[-1].message.body == b"last")
    found = read(slave, "T")[1:-1]
    assert sorted(int(one.message.body) for one in found) == list(range(MESSAGES)), "each of them once"
    for one in found:
        least_ms, most_ms = due_ms[one.message.body]
        assert least_ms <= one.store_ms <= max(most_ms, promoted_ms) + LATE_MS
    until(lambda: not state_at(former).is_master and state_at(former).log_end == state_at(slave).log_end)
    assert [one.message.body for one in read(former, "T")] == [one.message.body for one in read(slave, "T")]
    until(lambda: state_at(slave).lacking == {"1": 0})
