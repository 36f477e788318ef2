"""Duration of a start on a store of many small records, after a stop and after kill -9 under load.

WheelMQ fills the store and starts on it. Then Apache opens the same store and does the same. A start is complete when
the broker returns the ends of the queues, and they hold all messages that were accepted before.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Protocol

import msgspec

from bench import room
from bench.generator import generate
from bench.rawload import Load
from bench.report import Figures, Metric, Report, parse, parser, tell
from bench.targets import APACHE_HEAP, QUEUES, Apache, Part, flags, prepare, rivals
from compat.apache.apache import ApacheBroker, ApacheNameServer
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.sync_connection import SyncConnection

RECORDS = 10_000_000
RECORDS_SHORT = 200_000
BODY_BYTES = 100
TOPIC = "Bench"
STARTS = 3
"""Starts of each kind per round. Their median counts."""
SENT_BEFORE_KILL_S = 2.0
FILL_DEADLINE_S = 3600.0
START_DEADLINE_S = 600.0

METRICS = [
    Metric("stop_s", "start after a stop, s", ratio_at_most=1),
    Metric("kill_s", "start after kill -9 under load, s", ratio_at_most=1),
    Metric("whole_s", "start without the snapshot: whole log walked, s"),
    Metric("records", "records in the log at the end"),
    Metric("log_gb", "log, GB"),
]


class Broker(Protocol):
    """A broker that can be started and ended repeatedly on a store."""

    address: str

    @property
    def pid(self) -> int:
        """Return the process id while it runs."""

    def start(self) -> None:
        """Start, and return once it listens."""

    def stop(self) -> None:
        """Stop cleanly."""

    def kill(self) -> None:
        """Stop as a crash does."""


class Ours:
    def __init__(self, home: Path, store: Path, settings: Mapping[str, object] | None = None) -> None:
        self._home = home
        self._words = ["broker", "--port", "0", "--store", str(store), *flags(settings or {})]

    @property
    def pid(self) -> int:
        return self._part.process.pid

    def start(self) -> None:
        self._part = Part(self._words, self._home)
        self.address = str(self._part.until("listening", START_DEADLINE_S)["address"])

    def stop(self) -> None:
        self._part.end()

    def kill(self) -> None:
        self._part.process.kill()
        self._part.process.wait()


class Theirs:
    def __init__(self, home: Path, store: Path, namesrv: str, settings: Mapping[str, object] | None = None) -> None:
        config = {**(settings or {}), "storePathRootDir": store}
        self._broker = ApacheBroker(home, namesrv, config=config, heap=APACHE_HEAP)
        self.address = self._broker.address

    @property
    def pid(self) -> int:
        return self._broker.pid

    def start(self) -> None:
        self._broker.start()

    def stop(self) -> None:
        self._broker.stop()

    def kill(self) -> None:
        self._broker.kill()


def main(argv: Sequence[str] | None = None) -> int:
    made = parser("recovery", __doc__, rounds=1)
    made.add_argument("--records", type=int, help=f"in the store ({RECORDS:,}; {RECORDS_SHORT:,} with --short)")
    options = parse(made, argv)
    records = options.records or (RECORDS_SHORT if options.short else RECORDS)
    report = Report(f"starts on a store of {records:,} records of {BODY_BYTES} B", METRICS)
    targets, why = rivals()
    if why is not None:
        report.notes.append(why)
    prepare()
    for i in range(options.rounds):
        tell(f"starts on a store: round {i + 1} of {options.rounds}")
        _round(report, options, records, with_apache=Apache in targets)
    return report.finish(options.json)


def _round(report: Report, options: argparse.Namespace, records: int, *, with_apache: bool) -> None:
    with room.folder("bench-recovery-", options.home) as home:
        store = home / "store"
        ours = Ours(home, store)
        with running(ours):
            tell(f"filling the store with {records:,} records")
            _send(ours, Load(body_bytes=BODY_BYTES, messages=records, seconds=FILL_DEADLINE_S, queues=QUEUES))
            ours.stop()
        if options.only != "Apache":
            tell("WheelMQ starts")
            figures = _starts(ours)
            figures["whole_s"] = _after_kill(ours, lambda: (store / "config" / "snapshot").unlink())
            report.add("WheelMQ", figures)
        if with_apache and options.only != "WheelMQ":
            with ApacheNameServer(home) as names:
                theirs = Theirs(home / "apache", store, names.address)
                tell("Apache adopts the store")
                with running(theirs):
                    theirs.stop()
                tell("Apache starts")
                report.add("Apache", _starts(theirs))


def _starts(broker: Broker) -> Figures:
    """Measure starts after stops, then after kills. The broker is stopped before and after."""
    figures: Figures = {"stop_s": statistics.median(_after_stop(broker) for _ in range(STARTS))}
    figures["kill_s"] = statistics.median(_after_kill(broker) for _ in range(STARTS))
    with running(broker):
        figures["records"] = stored(broker)
        figures["log_gb"] = _log_bytes(broker) / 1e9
        broker.stop()
    return figures


def _after_stop(broker: Broker) -> float:
    with running(broker):
        before = stored(broker)
        broker.stop()
    return _seconds_until_all_is_there(broker, before)


def _after_kill(broker: Broker, meanwhile: Callable[[], object] = lambda: None) -> float:
    with running(broker):
        before = stored(broker)
        good = _send(broker, Load(body_bytes=BODY_BYTES, seconds=SENT_BEFORE_KILL_S, queues=QUEUES))
        broker.kill()
    meanwhile()
    return _seconds_until_all_is_there(broker, before + good)


def _seconds_until_all_is_there(broker: Broker, wanted: int) -> float:
    """Start, and stop again. Returns the time until the queues have `wanted` messages."""
    began_s = time.monotonic()
    with running(broker):
        found = stored(broker)
        elapsed_s = time.monotonic() - began_s
        broker.stop()
    if found != wanted:
        raise RuntimeError(f"{found} messages are in the queues where {wanted} were taken")
    return elapsed_s


def _send(broker: Broker, load: Load) -> int:
    return int(generate(broker.address, TOPIC, load)["good"])


def stored(broker: Broker) -> int:
    """Return the number of messages in the queues of TOPIC."""
    with closing(SyncConnection(broker.address, timeout_s=30.0)) as link:
        ends = [
            Command(code=RequestCode.GET_MAX_OFFSET, ext={"topic": TOPIC, "queueId": str(i)}) for i in range(QUEUES)
        ]
        return sum(int(link.ask(end).ext["offset"]) for end in ends)


def _log_bytes(broker: Broker) -> int:
    with closing(SyncConnection(broker.address, timeout_s=30.0)) as link:
        table = link.ask(Command(code=RequestCode.GET_BROKER_RUNTIME_INFO)).body
        return int(msgspec.json.decode(table)["table"]["commitLogMaxOffset"])


@contextmanager
def running(broker: Broker) -> Iterator[None]:
    """Start the broker for the block, and kill it if the block raises."""
    broker.start()
    try:
        yield
    except BaseException:
        broker.kill()
        raise


if __name__ == "__main__":
    sys.exit(main())
