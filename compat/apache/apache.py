"""The name server and the broker of Apache RocketMQ as context managers.

All their files are in one `home` folder. Both listen on loopback only. `start` returns once a client can use them.
After `stop` or `kill` the same object can start again, on the same ports and files.

The end of a `with` block kills the server. A clean stop of the broker takes 11 to 18 s, so only tests that need the
files of a clean stop call `stop`.
"""

from __future__ import annotations

import atexit
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import ClassVar, Final, Self

from compat.apache.maven import MavenProject
from compat.apache.remoting import (
    CONTROLLER_GET_METADATA_INFO,
    GET_BROKER_CLUSTER_INFO,
    RefusedError,
    ask,
    ask_fields,
)

HOST = "127.0.0.1"
HOST_V6 = "::1"
VERSIONS: Final = ("5.3.3", "5.5.0")
"""Versions of Apache RocketMQ; the first is the default."""
PROJECT = MavenProject(Path(__file__).parent)

START_DEADLINE_S = 150.0
STOP_DEADLINE_S = 60.0
_POLL_S = 0.05
_LOG_TAIL_LINES = 30


class StartError(Exception):
    """A server did not start. The message ends with the tail of its log."""


class _JavaServer:
    """One JVM of Apache: its folder, its process, and its readiness check."""

    version: str = VERSIONS[0]

    name: ClassVar[str]
    main_class: ClassVar[str]

    def __init__(
        self,
        home: Path,
        port: int,
        heap: str,
        java_options: Sequence[str],
        host: str = HOST,
        version: str = VERSIONS[0],
    ) -> None:
        self.home = home.resolve()
        self.version = version
        self.host = host
        self.port = port
        self.heap = heap
        self.java_options = tuple(java_options)
        self.log_file = self.home / f"{self.name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        assert self._process is None, f"{self.name} runs already"
        self.home.mkdir(parents=True, exist_ok=True)
        config_file = self.home / f"{self.name}.conf"
        config_file.write_text("".join(f"{key}={value}\n" for key, value in self._settings().items()))
        java = _java(self.home, self.heap, self.name, self.java_options, self.version)
        command = [*java, self.main_class, "-c", str(config_file)]
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.home,
                env=_environment(self.home),
                # a Ctrl-C in the terminal goes to this process, which stops the servers cleanly
                start_new_session=True,
            )
        atexit.register(self._kill_if_running)
        try:
            self._wait_until_ready()
        except BaseException:
            self.kill()
            raise

    def stop(self, deadline_s: float = STOP_DEADLINE_S) -> bool:
        """Ask the server to end, and kill it after the deadline. Returns True if it ended by itself."""
        process = self._running()
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return False
        self._forget()
        return True

    def kill(self) -> None:
        """Kill the server as a crash would: SIGKILL, no shutdown hook."""
        process = self._running()
        process.kill()
        process.wait()
        self._forget()

    def wait(self) -> int:
        """Wait until the server ends by itself. Returns its exit code."""
        return self._running().wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._kill_if_running()

    def _settings(self) -> dict[str, object]:
        raise NotImplementedError

    def _ready(self) -> bool:
        """Return whether clients can use the server. A connection error counts as no."""
        raise NotImplementedError

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, f"{self.name} does not run"
        return self._process

    def _forget(self) -> None:
        self._process = None
        atexit.unregister(self._kill_if_running)

    def _kill_if_running(self) -> None:
        if self._process is not None:
            self.kill()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_DEADLINE_S
        while not self._answers():
            try:
                code = self._running().wait(_POLL_S)
            except subprocess.TimeoutExpired:
                if time.monotonic() > deadline:
                    raise StartError(self._failure(f"not ready after {START_DEADLINE_S:.0f} s")) from None
            else:
                raise StartError(self._failure(f"ended with code {code}"))

    def _answers(self) -> bool:
        try:
            return self._ready()
        except (OSError, RefusedError):
            return False

    def _failure(self, what: str) -> str:
        lines = self.log_file.read_text(errors="replace").splitlines()
        told = [line for line in lines if "|-" not in line]  # leave out the long output about the logging setup
        tail = "\n".join(told[-_LOG_TAIL_LINES:])
        return f"{self.name} on {self.address}: {what}; its log {self.log_file} ends:\n{tail}"


class ApacheNameServer(_JavaServer):
    """`with ApacheNameServer(home) as namesrv: namesrv.address`"""

    name = "namesrv"
    main_class = "org.apache.rocketmq.namesrv.NamesrvStartup"

    def __init__(self, home: Path, *, port: int = 0, heap: str = "128m", java_options: Sequence[str] = ()) -> None:
        super().__init__(home, port or free_port(), heap, java_options)

    def _settings(self) -> dict[str, object]:
        return {"listenPort": self.port, "bindAddress": HOST}

    def _ready(self) -> bool:
        return bool(ask(self.address, GET_BROKER_CLUSTER_INFO))


class ApacheController(_JavaServer):
    """One controller of a group, which elects masters: number `number` of those with the ports `peers`.

    It is ready once the group has a leader. So the first of several does not become ready alone.
    """

    name = "controller"
    main_class = "org.apache.rocketmq.controller.ControllerStartup"

    def __init__(
        self,
        home: Path,
        number: int = 0,
        peers: Sequence[int] = (),
        *,
        config: Mapping[str, object] | None = None,
        heap: str = "128m",
        java_options: Sequence[str] = (),
    ) -> None:
        peers = tuple(peers) or (free_port(),)
        super().__init__(home, peers[number], heap, java_options)
        self._number, self._peers = number, peers
        self.config = dict(config or {})

    def _settings(self) -> dict[str, object]:
        return {
            "controllerDLegerGroup": "group1",
            "controllerDLegerPeers": ";".join(f"n{i}-{HOST}:{port}" for i, port in enumerate(self._peers)),
            "controllerDLegerSelfId": f"n{self._number}",
            "controllerStorePath": self.home / "controller",
            "mappedFileSize": 1 << 20,
            "bindAddress": HOST,
            **self.config,
        }

    def _ready(self) -> bool:
        """Return whether the controllers have a leader."""
        return bool(ask_fields(self.address, CONTROLLER_GET_METADATA_INFO).get("controllerLeaderAddress"))


class ApacheBroker(_JavaServer):
    """A master that registers at `namesrv`; `config` overrides lines of broker.conf.

    With the host `HOST_V6` it listens on IPv6 alone, and every address in its records is an IPv6 address.

    It uses three ports: `port`, `port - 2` (the fast port, for the same service) and `port + 1` (replication).
    """

    name = "broker"
    main_class = "org.apache.rocketmq.broker.BrokerStartup"

    def __init__(
        self,
        home: Path,
        namesrv: str,
        *,
        port: int = 0,
        config: Mapping[str, object] | None = None,
        heap: str = "512m",
        java_options: Sequence[str] = (),
        host: str = HOST,
        version: str = VERSIONS[0],
    ) -> None:
        if host == HOST_V6:
            java_options = ("-Djava.net.preferIPv4Stack=false", *java_options)
        super().__init__(home, port or free_port(beside=(-2, 1)), heap, java_options, host, version)
        self.namesrv = namesrv
        self.config = dict(config or {})

    @property
    def store_dir(self) -> Path:
        return Path(str(self._settings()["storePathRootDir"]))

    def _settings(self) -> dict[str, object]:
        return {
            "brokerName": "broker-a",
            "brokerClusterName": "DefaultCluster",
            "brokerId": 0,
            "brokerIP1": self.host,
            "brokerIP2": self.host,
            "bindAddress": self.host,
            "listenPort": self.port,
            "namesrvAddr": self.namesrv,
            "storePathRootDir": self.home / "store",
            "autoCreateTopicEnable": "true",
            "mappedFileSizeCommitLog": 1 << 30,
            **self.config,
        }

    def _ready(self) -> bool:
        """Return whether the broker listens and is registered.

        The answer is searched as text, because Apache's JSON has bare numbers as keys.
        """
        socket.create_connection((self.host, self.port), timeout=2.0).close()
        return f'"{self.address}"'.encode() in ask(self.namesrv, GET_BROKER_CLUSTER_INFO)


def mqadmin(
    args: Sequence[str],
    namesrv: str,
    *,
    home: Path | None = None,
    timeout_s: float = 60.0,
    java_options: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """Run one command of Apache's admin tool, as in `mqadmin(["clusterList"], namesrv)`.

    The exit code is 0 even if the command failed, so the caller must check the output.
    """
    home = home or PROJECT.target / "mqadmin"
    home.mkdir(parents=True, exist_ok=True)
    options = (f"-Drocketmq.namesrv.addr={namesrv}", "-XX:TieredStopAtLevel=1", *java_options)
    command = [
        *_java(home, "128m", "tools", options),
        "org.apache.rocketmq.tools.command.MQAdminStartup",
        *args,
    ]
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=home,
        env=_environment(home),
        timeout=timeout_s,
    )


def dump_store(store: Path, index_slots: int, *, home: Path, timeout_s: float = 60.0) -> str:
    """Return the content of a store as Apache's own classes read it: lines of JSON (StoreDump.java).

    They may change it.
    """
    done = subprocess.run(
        [*_java(home, "256m", "tools", ()), "wheelmq.compat.StoreDump", str(store), str(index_slots)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=home,
        env=_environment(home),
        timeout=timeout_s,
        check=True,
    )
    return "".join(line + "\n" for line in done.stdout.splitlines() if line.startswith("{"))


def filter_table(asked: bytes, *, home: Path, timeout_s: float = 120.0) -> str:
    """Return the results of Apache's own filters for the expressions in `asked`: lines of JSON (FilterTable.java)."""
    done = subprocess.run(
        [
            *_java(home, "256m", "tools", ("-Dfile.encoding=UTF-8", "-Dstdout.encoding=UTF-8")),
            "wheelmq.compat.FilterTable",
        ],
        input=asked,
        capture_output=True,
        cwd=home,
        env=_environment(home),
        timeout=timeout_s,
        check=True,
    )
    return "".join(line + "\n" for line in done.stdout.decode().splitlines() if line.startswith("{"))


def free_port(beside: Sequence[int] = ()) -> int:
    """Return a port that is free now, with free neighbours at the distances of `beside`.

    The port is below the kernel's range for outgoing connections, so that no client's connection takes it meanwhile.
    """
    for _ in range(100):
        port = random.randrange(15_000, 30_000)
        with ExitStack() as bound:
            try:
                for distance in (0, *beside):
                    bound.enter_context(socket.create_server((HOST, port + distance)))
            except OSError:
                continue
            return port
    raise OSError("found no free port in 100 attempts")


def java_command(home: Path, heap: str, role: str, options: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the command up to the main class, and its environment, for other classes of these jars."""
    return _java(home, heap, role, options), _environment(home)


def project_of(version: str) -> MavenProject:
    """Return the class path of a version of Apache RocketMQ, with a target folder of its own."""
    if version == VERSIONS[0]:
        return PROJECT
    target = f"target/{version}"
    return MavenProject(PROJECT.folder, target, (("rocketmq.version", version), ("suite.target", target)))


def _java(home: Path, heap: str, role: str, options: Sequence[str], version: str = VERSIONS[0]) -> list[str]:
    """Return the command up to the main class.

    `role` names the logging settings among those in Apache's jars.
    """
    return [
        "java",
        f"-Xms{heap}",
        f"-Xmx{heap}",
        "-Djava.net.preferIPv4Stack=true",
        f"-Duser.home={home}",  # RocketMQ writes its logs to ${user.home}/logs
        f"-Drmq.logback.configurationFile=rmq.{role}.logback.xml",
        *options,
        "-cp",
        project_of(version).class_path(),
    ]


def _environment(home: Path) -> dict[str, str]:
    """Return this process's environment without the variables that would direct RocketMQ elsewhere."""
    inherited = {key: value for key, value in os.environ.items() if key != "NAMESRV_ADDR"}
    return {**inherited, "ROCKETMQ_HOME": str(home)}
