"""Duration of starts: the broker with an empty kernel cache and again, and all parts up to the first turn.

With an empty cache, the broker also listens before its kernels are compiled. The time until they are in use is measured
apart. A new user's start is `wheelmq up` with empty caches and a new store. It ends when a consumer has a message.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from bench import room
from bench.report import Figures, Metric, Report, parse, parser, tell
from bench.targets import Apache, Part, prepare, rivals
from wheelmq.cli.ports import free_port
from wheelmq.client import CallError, NoBroker, NoNameServer, Refused, SyncProducer, SyncPushConsumer, TopicUnknown
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.sync_connection import SyncConnection

TOPIC = "Starts"
AGAIN = 3
"""Number of later starts per round. Their median counts."""
FIRST_DEADLINE_S = 300.0
LOOK_S = 0.1

METRICS = [
    Metric("first_s", "broker listens, empty kernel cache, s"),
    Metric("kernels_s", "its kernels are in use, s"),
    Metric("again_s", "broker listens, second start, s", below=1.5),
    Metric("accepted_s", "`wheelmq up`, empty caches: a send is accepted, s"),
    Metric("delivered_s", "`wheelmq up`, empty caches: the message is consumed, s", at_most=5),
    Metric("turn_s", "`wheelmq up` until the first turn, s"),
    Metric("ready_s", "name server and broker ready, s"),
]


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(parser("startup", __doc__), argv)
    report = Report("starts", METRICS)
    targets, why = rivals()
    if why is not None:
        report.notes.append(why)
    prepare()
    for i in range(options.rounds):
        if Apache in targets and options.only != "WheelMQ":
            tell(f"starts: Apache, round {i + 1} of {options.rounds}")
            began_s = time.monotonic()
            with Apache(options.home):
                report.add("Apache", {"ready_s": time.monotonic() - began_s})
        if options.only != "Apache":
            tell(f"starts: WheelMQ, round {i + 1} of {options.rounds}")
            report.add("WheelMQ", _starts(options.home))
    return report.finish(options.json)


def _starts(parent: Path | None) -> Figures:
    with room.folder("bench-starts-", parent) as home:
        cache = {"XDG_CACHE_HOME": str(home / "cache")}
        words = ["broker", "--port", "0"]
        first_s, kernels_s = _first_start(words, home, cache)
        again_s = sorted(_seconds_until("listening", words, home, cache) for _ in range(AGAIN))[AGAIN // 2]
    with room.folder("bench-starts-", parent) as home:
        accepted_s, delivered_s = _first_message(home)
    with room.folder("bench-starts-", parent) as home:
        turn_s = _seconds_until("ready", ["up", "--namesrv-port", "0", "--broker-port", "0"], home, {})
    return {
        "first_s": first_s,
        "kernels_s": kernels_s,
        "again_s": again_s,
        "accepted_s": accepted_s,
        "delivered_s": delivered_s,
        "turn_s": turn_s,
    }


def _first_message(home: Path) -> tuple[float, float]:
    """Return the seconds until a first `wheelmq up` accepts a send, and until a consumer has the message."""
    namesrv, came = f"127.0.0.1:{free_port()}", threading.Event()
    environment = {"XDG_CACHE_HOME": str(home / "cache"), "WHEELMQ_JAVA_CACHE": "auto"}
    began_s = time.monotonic()
    part = Part(["up", "--namesrv-port", namesrv.partition(":")[2], "--broker-port", "0"], home, environment)
    try:
        _send_first(namesrv, began_s + FIRST_DEADLINE_S)
        accepted_s = time.monotonic() - began_s
        consumer = SyncPushConsumer(namesrv, "starts")
        consumer.subscribe(TOPIC, lambda message: came.set())
        with consumer:
            assert came.wait(FIRST_DEADLINE_S), part.log_path.read_text()
        return accepted_s, time.monotonic() - began_s
    finally:
        part.end()


def _send_first(namesrv: str, end_s: float) -> None:
    """Send a message as soon as a broker accepts it."""
    with SyncProducer(namesrv) as producer:
        while True:
            try:
                producer.send(TOPIC, b"first")
                return
            except (CallError, NoBroker, NoNameServer, Refused, TopicUnknown):
                if time.monotonic() > end_s:
                    raise
            time.sleep(LOOK_S)


def _first_start(words: Sequence[str], home: Path, environment: Mapping[str, str]) -> tuple[float, float]:
    """Return the seconds until a broker listens, and until its kernels are in use."""
    began_s = time.monotonic()
    part = Part(words, home, environment)
    try:
        address = part.until("listening", FIRST_DEADLINE_S)["address"]
        first_s = time.monotonic() - began_s
        with contextlib.closing(SyncConnection(address, timeout_s=10.0)) as link:
            while _kernels(link) == "compiling" and time.monotonic() < began_s + FIRST_DEADLINE_S:
                time.sleep(LOOK_S)
            assert _kernels(link) == "in_use", part.log_path.read_text()
        return first_s, time.monotonic() - began_s
    finally:
        part.end()


def _kernels(link: SyncConnection) -> str:
    """Return the state of a broker's kernels."""
    return str(msgspec.json.decode(link.ask(Command(code=RequestCode.WMQ_METRICS)).body)["kernels"]["state"])


def _seconds_until(event: str, words: Sequence[str], home: Path, environment: Mapping[str, str]) -> float:
    began_s = time.monotonic()
    part = Part(words, home, environment)
    try:
        part.until(event, FIRST_DEADLINE_S)
        return time.monotonic() - began_s
    finally:
        part.end()


if __name__ == "__main__":
    sys.exit(main())
