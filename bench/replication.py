"""A master with a slave on one machine: rate of sends, replication lag under full load, memory, and a failover.

Each mode has a new pair: ASYNC_MASTER, and SYNC_MASTER, whose answers wait until the slave has the message. Sends are
those of Apache's Java client with 32 threads of 256 B, and raw frames of 256 B with 16 x 64 in flight. The lag is the
distance of the two logs, read 20 times per second. The failover begins with the kill of the master, and ends with the
first send that the slave accepts: `wheelmq promote --force` here, and a new start as the master there.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Final

import msgspec
import psutil

from bench.generator import generate, generating, warm_up
from bench.javaclient import JavaClient
from bench.machine import memory_mib
from bench.rawload import Load
from bench.report import Figures, Metric, Report, parse, parser, tell
from bench.sends_java import USUAL, send, warm
from bench.targets import APACHE_HEAP, Part, Target, flags, prepare, rivals
from compat.apache.apache import ApacheBroker, ApacheNameServer, free_port
from compat.golden.life import Sender
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.errors import CallError, Refused
from wheelmq.net.sync_connection import SyncConnection

MODES: Final = {"async": "ASYNC_MASTER", "sync": "SYNC_MASTER"}
RAW: Final = Load(body_bytes=256)
LOOK_S: Final = 0.05
LAG_SKIP_S: Final = 2.0
"""The start of the generator is not measured."""
DEADLINE_S: Final = 120.0
POLL_S: Final = 0.01


class Pair(Target):
    """A master with a slave that follows it."""

    slave: str

    def caught_up(self) -> bool:
        return _log_end(self.broker) == _log_end(self.slave) > 0

    def fail_over(self) -> None:
        """Kill the master, and make the slave the master."""
        raise NotImplementedError


class ApachePair(Pair):
    """Two brokers of Apache RocketMQ 5.3.3. Its slave becomes a master only by a new start."""

    name = "Apache"

    def _start(self, stack: ExitStack) -> None:
        namesrv = stack.enter_context(ApacheNameServer(self.home))
        self._master = self._broker(namesrv.address, "master", {**self._settings, "brokerId": 0})
        self._slave = self._broker(namesrv.address, "slave", {"brokerRole": "SLAVE", "brokerId": 1})
        stack.enter_context(self._master)
        stack.enter_context(self._slave)
        self.namesrv, self.broker, self.slave = namesrv.address, self._master.address, self._slave.address
        self.store = self._master.store_dir
        self.pids = {"broker": self._master.pid, "slave": self._slave.pid, "namesrv": namesrv.pid}

    def _broker(self, namesrv: str, name: str, config: Mapping[str, object]) -> ApacheBroker:
        broker = ApacheBroker(self.home / name, namesrv, config=config, heap=APACHE_HEAP)
        broker.config["haListenPort"] = broker.port + 1
        return broker

    def fail_over(self) -> None:
        self._master.kill()
        self._slave.kill()
        self._slave.config |= {"brokerRole": "ASYNC_MASTER", "brokerId": 0}
        self._slave.start()

    def end(self) -> None:
        self._master.kill()
        self._slave.kill()


class WheelMQPair(Pair):
    """Two brokers of WheelMQ, without a pipeline."""

    name = "WheelMQ"

    def _start(self, stack: ExitStack) -> None:
        names = self._part(stack, "names", ["nameserver", "--port", "0"])
        self.namesrv = str(names.until("listening")["address"])
        self._master = self._broker(stack, "master", {**self._settings, "broker_id": 0})
        self._slave = self._broker(stack, "slave", {"broker_role": "SLAVE", "broker_id": 1})
        self.broker = str(self._master.until("listening")["address"])
        self.slave = str(self._slave.until("listening")["address"])
        self.store = self.home / "master" / "store"
        self.pids = {
            "broker": self._master.process.pid,
            "slave": self._slave.process.pid,
            "namesrv": names.process.pid,
        }

    def _part(self, stack: ExitStack, name: str, words: Sequence[str]) -> Part:
        home = self.home / name
        home.mkdir()
        part = Part(words, home)
        stack.callback(part.end)
        return part

    def _broker(self, stack: ExitStack, name: str, settings: Mapping[str, object]) -> Part:
        port = str(free_port(beside=(-2, 1)))
        return self._part(stack, name, ["broker", "--port", port, "--namesrv", self.namesrv, *flags(settings)])

    def fail_over(self) -> None:
        self._master.process.kill()
        command = [sys.executable, "-P", "-m", "wheelmq", "promote", self.slave, "--namesrv", self.namesrv, "--force"]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True, timeout=DEADLINE_S)

    def end(self) -> None:
        self._master.end()
        self._slave.end()


def main(argv: Sequence[str] | None = None) -> int:
    made = parser("replication", __doc__, rounds=1)
    made.add_argument("--seconds", type=float, help="for each load (15; 4 with --short)")
    made.add_argument("--no-java", action="store_true", help="only raw frames")
    options = parse(made, argv)
    seconds = options.seconds or (4.0 if options.short else 15.0)
    report = Report(f"a master with a slave, {seconds:g} s each", _metrics())
    kinds: list[type[Pair]] = _kinds(options, report)
    if WheelMQPair in kinds:
        prepare()
    for i in range(options.rounds):
        for mode, role in MODES.items():
            for kind in kinds:
                tell(f"{report.title}: {kind.name}, {role}, round {i + 1} of {options.rounds}")
                settings = {"brokerRole": role, "inSyncReplicas": 2}
                with kind(options.home, settings) as pair:
                    found = _measure(pair, seconds, java=not options.no_java)
                report.add(kind.name, {f"{key}_{mode}": value for key, value in found.items()})
    return report.finish(options.json)


def _kinds(options: argparse.Namespace, report: Report) -> list[type[Pair]]:
    targets, why = rivals()
    if why is not None:
        report.notes.append(why)
    pairs: dict[str, type[Pair]] = {"Apache": ApachePair, "WheelMQ": WheelMQPair}
    return [pairs[target.name] for target in targets if options.only in (None, target.name)]


def _metrics() -> list[Metric]:
    return [
        Metric(f"{key}_{mode}", f"{text}, {role}", ratio_at_least=more, ratio_at_most=less)
        for mode, role in MODES.items()
        for key, text, more, less in (
            ("java", "sends/s, Java client, 32 threads", 0.95, None),
            ("raw", "sends/s, raw frames", 1.0, None),
            ("us_master", "master's processor, us/message, raw", None, 1.0),
            ("us_slave", "slave's processor, us/message, raw", None, 1.0),
            ("refused", "sends not taken", None, None),
            ("lag_p50", "replication lag under raw load, ms, p50", None, None),
            ("lag_max", "replication lag under raw load, ms, max", None, None),
            ("catch_up", "time until the slave has all, after the load, ms", None, None),
            ("failover", "kill of the master to the first send, ms", None, 1.0),
            ("mib_master", "memory of the master, MiB", None, 1.0),
            ("mib_slave", "memory of the slave, MiB", None, 1.0),
        )
    ]


def _measure(pair: Pair, seconds: float, *, java: bool) -> Figures:
    figures: Figures = {}
    _until(lambda: _send(pair.broker) == ResponseCode.SUCCESS)  # with SYNC_MASTER the slave follows by then
    _until(pair.caught_up)
    if java:
        with JavaClient(pair, "Sends", mode="send") as client:
            warm(client)
            said = send(client, round(seconds), USUAL)
            figures["java"] = said["sent"] / said["seconds"]
            figures["refused"] = said["failed"]
    warm_up(pair, "Raw", RAW, is_first=not java)
    before = {name: _processor_s(pid) for name, pid in pair.pids.items()}
    result = generate(pair.broker, "Raw", _for(seconds))
    _until(pair.caught_up)
    messages = max(1, result["good"])
    figures["raw"] = result["per_second"]
    figures["refused"] = figures.get("refused", 0) + result["sent"] - result["good"]
    for part, key in (("broker", "us_master"), ("slave", "us_slave")):
        figures[key] = (_processor_s(pair.pids[part]) - before[part]) * 1e6 / messages
    figures |= _lag(pair, seconds)
    figures["mib_master"] = memory_mib(pair.pids["broker"])["anonymous"]
    figures["mib_slave"] = memory_mib(pair.pids["slave"])["anonymous"]
    began_s = time.monotonic()
    pair.fail_over()
    _until(lambda: _send(pair.slave) in (ResponseCode.SUCCESS, ResponseCode.SLAVE_NOT_AVAILABLE))
    figures["failover"] = (time.monotonic() - began_s) * 1000
    return figures


def _for(seconds: float) -> Load:
    return Load(body_bytes=RAW.body_bytes, seconds=seconds)


def _lag(pair: Pair, seconds: float) -> Figures:
    """Return the lag during a load: the bytes that the slave lacks, at the rate of the load."""
    lacking, ends = [], []
    with (
        generating(pair.broker, "Raw", _for(seconds + LAG_SKIP_S)) as load,
        closing(SyncConnection(pair.broker)) as master,
        closing(SyncConnection(pair.slave)) as slave,
    ):
        first_s = time.monotonic()
        while load.poll() is None:
            at_s, has = time.monotonic(), _log_end_of(slave)  # the slave first: so the lag is never too small
            end = _log_end_of(master)
            if at_s - first_s > LAG_SKIP_S:
                lacking.append(end - has)
                ends.append((at_s, end))
            time.sleep(LOOK_S)
    stopped_s = time.monotonic()
    _until(pair.caught_up)
    catch_up_ms = (time.monotonic() - stopped_s) * 1000
    (first_s, first), (last_s, last) = ends[0], ends[-1]
    per_ms = max(1.0, (last - first) / (last_s - first_s) / 1000)
    p50, most = statistics.median(lacking), max(lacking)
    return {"lag_p50": p50 / per_ms, "lag_max": most / per_ms, "catch_up": catch_up_ms}


def _send(address: str) -> int:
    """Send one message. Returns the code of the answer. Raises CallError."""
    with closing(SyncConnection(address)) as link:
        try:
            Sender(link, 0).send(b"probe")
        except Refused as error:
            return error.code
    return ResponseCode.SUCCESS


def _log_end(address: str) -> int:
    with closing(SyncConnection(address)) as link:
        return _log_end_of(link)


def _log_end_of(link: SyncConnection) -> int:
    command = Command(code=RequestCode.GET_BROKER_RUNTIME_INFO)
    table: dict[str, str] = msgspec.json.decode(link.ask(command).body)["table"]
    return int(table["commitLogMaxOffset"])


def _processor_s(pid: int) -> float:
    return float(sum(psutil.Process(pid).cpu_times()[:2]))


def _until(condition: Callable[[], bool], deadline_s: float = DEADLINE_S) -> None:
    deadline = time.monotonic() + deadline_s
    while True:
        with contextlib.suppress(CallError, Refused):
            if condition():
                return
        if time.monotonic() > deadline:
            raise TimeoutError(f"a condition does not hold within {deadline_s:.0f} s")
        time.sleep(POLL_S)


if __name__ == "__main__":
    sys.exit(main())
