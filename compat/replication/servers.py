"""Name servers and brokers of both kinds, with one interface: start, stop, kill, and start again in another role."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from compat.apache.apache import VERSIONS, ApacheBroker, StartError, free_port
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.errors import CallError, Refused
from wheelmq.net.sync_connection import SyncConnection

STOP_DEADLINE_S: Final = 120.0
DEADLINE_S: Final = 120.0
POLL_S: Final = 0.02
LOG_FILE_BYTES: Final = 1 << 20
MASTER: Final = {"brokerRole": "ASYNC_MASTER", "brokerId": 0}
SYNC_MASTER: Final = {"brokerRole": "SYNC_MASTER", "brokerId": 0}
SLAVE: Final = {"brokerRole": "SLAVE", "brokerId": 1}
COMMON: Final = {
    "mappedFileSizeCommitLog": LOG_FILE_BYTES,
    "registerNameServerPeriod": 10_000,
    "slaveReadEnable": "true",
    "transactionCheckInterval": 2000,
    "transactionTimeOut": 2000,
    "waitTimeMillsInSendQueue": 20_000,
}
"""Settings of every broker, by Apache's names.

The period of registrations is the shortest that Apache accepts. On a busy machine, a request may wait for more than the
200 ms after which a broker rejects it by default.
"""


class OurServer:
    """A process of WheelMQ that prints a JSON line when it listens."""

    def __init__(self, home: Path, port: int, *arguments: str) -> None:
        self.home, self.port = home, port
        self._arguments = arguments
        self._process: subprocess.Popen[str] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return (self.home / "server.log").read_text(errors="replace")

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _options(self) -> list[str]:
        return list(self._arguments)

    def start(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-P", "-m", "wheelmq", *self._options()]
        command += ["--home", str(self.home), "--port", str(self.port), "--json"]
        with (self.home / "server.log").open("a") as errors:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise StartError(f"the server in {self.home} did not start; its log ends:\n{self.log[-2000:]}")

    def stop(self) -> None:
        self._end(kill=False)

    def kill(self) -> None:
        self._end(kill=True)

    def _end(self, *, kill: bool) -> None:
        process, self._process = self._process, None
        if process is not None:
            (process.kill if kill else process.terminate)()
            process.communicate(timeout=STOP_DEADLINE_S)


class OurBroker(OurServer):
    """A broker of WheelMQ, with Apache's names for its settings."""

    def __init__(self, home: Path, namesrv: str, config: Mapping[str, object]) -> None:
        super().__init__(home, free_port(beside=(-2, 1)))
        self.config: dict[str, object] = {"timer_slots": 3600, "timer_roll_window_slots": 1800, **COMMON, **config}
        self.namesrv = namesrv

    @property
    def store_dir(self) -> Path:
        return self.home / "store"

    def _options(self) -> list[str]:
        pairs = [part for key, value in self.config.items() for part in ("--set", f"{key}={value}")]
        return ["broker", "--namesrv", self.namesrv, *pairs]

    def start(self) -> None:
        super().start()
        until("the broker is registered", self._is_registered)

    def _is_registered(self) -> bool:
        return f'"{self.address}"'.encode() in ask(self.namesrv, RequestCode.GET_BROKER_CLUSTER_INFO)


class TheirBroker(ApacheBroker):
    """A broker of Apache RocketMQ."""

    def __init__(self, home: Path, namesrv: str, config: Mapping[str, object], version: str = VERSIONS[0]) -> None:
        super().__init__(home, namesrv, config={**COMMON, **config}, heap="384m", version=version)
        self.config["haListenPort"] = self.port + 1


Broker = OurBroker | TheirBroker


def until(what: str, condition: Callable[[], object], deadline_s: float = DEADLINE_S) -> None:
    """Wait until a condition holds. Raises TimeoutError, which names it."""
    deadline = time.monotonic() + deadline_s
    while not _holds(condition):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {deadline_s:.0f} s: {what}")
        time.sleep(POLL_S)


def _holds(condition: Callable[[], object]) -> bool:
    """Return whether the condition holds. A server that does not answer yet does not fulfil it."""
    try:
        return bool(condition())
    except (CallError, Refused, OSError):
        return False


def ask(address: str, code: RequestCode, **ext: object) -> bytes:
    """Send one request. Returns the body of the answer. Raises CallError, Refused."""
    link = SyncConnection(address)
    try:
        return bytes(link.ask(Command(code=code, ext={key: str(value) for key, value in ext.items()})).body)
    finally:
        link.close()


def log_end(broker: Broker) -> int:
    """Return the end of a broker's log. Raises CallError, Refused."""
    return int(runtime_info(broker.address)["commitLogMaxOffset"])


def runtime_info(address: str) -> dict[str, str]:
    """Return the table of GET_BROKER_RUNTIME_INFO. Raises CallError, Refused."""
    found: dict[str, str] = json.loads(ask(address, RequestCode.GET_BROKER_RUNTIME_INFO))["table"]
    return found
