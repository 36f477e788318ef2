"""Two name servers and two brokers, of Apache or WheelMQ, each as a process that a case may kill."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from compat.apache.apache import ApacheBroker, ApacheNameServer, free_port

LOG_FILE_BYTES = 1 << 24
START_DEADLINE_S = 150.0
BROKERS = ("broker-a", "broker-b")
CONFIG = {
    "enablePropertyFilter": "true",
    "recallMessageEnable": "true",
    "transactionCheckInterval": "2000",
    "transactionTimeOut": "2000",
    "transactionOpBatchInterval": "100",
    "mappedFileSizeCommitLog": str(LOG_FILE_BYTES),
}
"""The settings of both brokers of either kind; all others are defaults."""


class Part(NamedTuple):
    address: str
    kill: Callable[[], None]
    start: Callable[[], None]


class Cluster(NamedTuple):
    """The running servers; `brokers` by name."""

    is_ours: bool
    namesrvs: list[Part]
    brokers: dict[str, Part]

    @property
    def namesrv(self) -> str:
        """The name servers as a client's setting."""
        return ";".join(part.address for part in self.namesrvs)


@contextmanager
def apache(folder: Path) -> Iterator[Cluster]:
    """Run Apache's servers. The second broker lets clients reset their own offsets (useServerSideResetOffset)."""
    with ExitStack() as stack:
        names = [stack.enter_context(ApacheNameServer(folder / f"names-{i}")) for i in range(2)]
        joined = ";".join(server.address for server in names)
        brokers = {}
        for name in BROKERS:
            config = {
                **CONFIG,
                "brokerName": name,
                "namesrvAddr": joined,
                "useServerSideResetOffset": str(name == BROKERS[0]).lower(),
            }
            brokers[name] = stack.enter_context(ApacheBroker(folder / name, names[0].address, config=config))
        yield Cluster(
            False,
            [Part(server.address, server.kill, server.start) for server in names],
            {name: Part(server.address, server.kill, server.start) for name, server in brokers.items()},
        )


class _Ours:
    """A process of WheelMQ that prints a JSON line when it listens."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.port = free_port()
        self._log = folder / "server.log"
        self._command = [sys.executable, "-P", "-m", "wheelmq", *arguments]
        self._command += ["--home", str(folder), "--port", str(self.port), "--json"]
        self._process: subprocess.Popen[str] | None = None
        folder.mkdir(parents=True)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        with self._log.open("a") as errors:
            self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line and json.loads(line), self._log.read_text()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate(timeout=START_DEADLINE_S)
            self._process = None

    def part(self) -> Part:
        return Part(self.address, self.kill, self.start)


@contextmanager
def ours(folder: Path, names: Sequence[str] = BROKERS) -> Iterator[Cluster]:
    """Run WheelMQ's servers without a pipeline, which messages that are due soon do not need."""
    namesrvs = [_Ours(folder / f"names-{i}", "nameserver") for i in range(2)]
    joined = ";".join(server.address for server in namesrvs)
    settings = [part for name, value in CONFIG.items() for part in ("--set", f"{name}={value}")]
    brokers = {name: _Ours(folder / name, "broker", "--name", name, "--namesrv", joined, *settings) for name in names}
    parts = [*namesrvs, *brokers.values()]
    try:
        for part in parts:
            part.start()
        cluster = Cluster(True, [one.part() for one in namesrvs], {name: one.part() for name, one in brokers.items()})
        asyncio.run(registered(cluster))
        yield cluster
    finally:
        for part in parts:
            part.kill()


async def registered(cluster: Cluster) -> None:
    """Wait until every name server knows every broker."""
    from wheelmq.client import Admin

    async with asyncio.timeout(START_DEADLINE_S):
        for part in cluster.namesrvs:
            async with Admin(part.address) as admin:
                while set(await admin.brokers()) != set(cluster.brokers):
                    await asyncio.sleep(0.02)


KINDS = {"apache": apache, "wheelmq": ours}
