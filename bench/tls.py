"""The cost of TLS, and the speed of plain connections with and without it, of WheelMQ's broker alone.

Four columns, in another order in each round: the plain path of another checkout (`--before FOLDER`), the plain path
of a broker without a certificate and of one that accepts both kinds, and TLS. The loads are raw frames as in
`sends_raw` and `backlog`. One connection that waits for each answer shows the round trip. New connections show the
processor time of handshakes, and idle connections the memory of each.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import psutil

from bench.generator import generate
from bench.machine import memory_mib
from bench.rawload import Load, dial, receive, template
from bench.rawpull import pull_all, shares
from bench.report import Figures, Metric, Report, parse, parser, tell
from bench.targets import QUEUES, Part, flags, prepare
from compat.certificates import Authority, Pair

CASES: Final = {
    "256": Load(body_bytes=256),
    "1024": Load(body_bytes=1024),
    "4096": Load(body_bytes=4096),
    "256x32": Load(body_bytes=256, batch=32, window=8),
}
PULLERS: Final = 8
ONE_BY_ONE: Final = 2000
HANDSHAKES: Final = 500
WARM_S: Final = 3.0
IDLE_CONNECTIONS: Final = 2000
RSA_BITS: Final = 2048


@dataclass(frozen=True)
class Variant:
    """One column: the code of the broker, its settings, and the kind of connections."""

    name: str
    source: Path
    certificate: Pair | None = None
    tls: bool = False

    def words(self) -> list[str]:
        if self.certificate is None:
            return []
        files = {"tls_certificate_file": self.certificate.certificate, "tls_key_file": self.certificate.key}
        return flags(files)


class BrokerAlone:
    """A broker in a folder that is deleted with it."""

    def __init__(self, variant: Variant, home: Path | None) -> None:
        self._stack = ExitStack()
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-tls-", dir=home)))
        environment = {"PYTHONPATH": os.pathsep.join([str(variant.source), os.environ.get("PYTHONPATH", "")])}
        words = ["broker", "--port", "0", *flags({"fast_port_enable": "false"}), *variant.words()]
        part = Part(words, folder, environment)
        self._stack.callback(part.end)
        self.address = str(part.until("listening")["address"])
        self.process = psutil.Process(part.process.pid)

    def processor_s(self) -> float:
        return float(sum(self.process.cpu_times()[:2]))

    def close(self) -> None:
        self._stack.close()


def main(argv: Sequence[str] | None = None) -> int:
    made = parser("tls", __doc__)
    made.add_argument("--seconds", type=float, help="for each load (8; 2 with --short)")
    made.add_argument("--before", type=Path, metavar="FOLDER", help="another checkout, whose plain path is measured")
    options = parse(made, argv)
    seconds = options.seconds or (2.0 if options.short else 8.0)
    report = Report(f"TLS, raw frames, 16 x 64 in flight, {seconds:g} s each", _metrics())
    prepare()
    with tempfile.TemporaryDirectory(prefix="bench-certificates-") as folder:
        authority = Authority(Path(folder))
        variants = _variants(options, authority.issue("p256"))
        slow = replace(variants[-1], certificate=authority.issue("rsa", rsa_bits=RSA_BITS))
        report.figures = {variant.name: [] for variant in variants}
        for i in range(options.rounds):
            for variant in variants[i % len(variants) :] + variants[: i % len(variants)]:
                tell(f"{report.title}: {variant.name}, round {i + 1} of {options.rounds}")
                with closing(BrokerAlone(variant, options.home)) as broker:
                    generate(broker.address, "Warm", replace(CASES["256"], seconds=WARM_S, tls=variant.tls))
                    figures = _idle_memory(broker, variant) | _loads(broker, variant, seconds)
                    figures |= _round_trips(broker, variant)
                    figures["handshake_us"] = _handshake_us(broker, variant)
                if variant.tls:
                    with closing(BrokerAlone(slow, options.home)) as broker:
                        figures["handshake_rsa_us"] = _handshake_us(broker, slow)
                report.add(variant.name, figures)
    report.notes += _ratios(report)
    return report.finish(options.json)


def _variants(options: argparse.Namespace, pair: Pair) -> list[Variant]:
    here = Path(__file__).parents[1] / "src"
    found = [] if options.before is None else [Variant("before", options.before.resolve() / "src")]
    return [
        *found,
        Variant("plain", here),
        Variant("plain, TLS possible", here, pair),
        Variant("TLS", here, pair, tls=True),
    ]


def _metrics() -> list[Metric]:
    called = {name: f"{load.body_bytes:,} B" + f" x {load.batch}" * (load.batch > 1) for name, load in CASES.items()}
    return [
        *(Metric(f"us_{name}", f"broker processor us/message, sends of {text}") for name, text in called.items()),
        Metric("us_pull", "broker processor us/message, pulls of 32 x 1,024 B"),
        *(Metric(f"per_s_{name}", f"messages/s, sends of {text}") for name, text in called.items()),
        Metric("per_s_pull", "messages/s, pulls of 32 x 1,024 B"),
        Metric("trip_us", "round trip of one send, us, p50"),
        Metric("handshake_us", "broker processor us/new connection (TLS: key of P-256)"),
        Metric("handshake_rsa_us", f"the same with RSA of {RSA_BITS} bits"),
        Metric("idle_kib", "memory of an idle connection, KiB"),
    ]


def _loads(broker: BrokerAlone, variant: Variant, seconds: float) -> Figures:
    """Return the figures of all sends, and of pulls of the messages of 1,024 B."""
    figures: Figures = {}
    ends: list[int] = []
    for name, load in CASES.items():
        before_s = broker.processor_s()
        result = generate(broker.address, f"Bench{name}", replace(load, seconds=seconds, tls=variant.tls))
        messages = result["good"] * load.batch
        figures[f"us_{name}"] = (broker.processor_s() - before_s) * 1e6 / messages
        figures[f"per_s_{name}"] = messages / result["seconds"]
        if name == "1024":
            ends = [result["good"] // QUEUES] * QUEUES
    before_s = broker.processor_s()
    pulled = pull_all(broker.address, "Bench1024", "bench", shares(ends, PULLERS), tls=variant.tls)
    figures["us_pull"] = (broker.processor_s() - before_s) * 1e6 / pulled.messages
    figures["per_s_pull"] = pulled.messages / pulled.seconds
    return figures


def _round_trips(broker: BrokerAlone, variant: Variant) -> Figures:
    """Return the median time of a send on one connection that waits for each answer."""
    host, _, port = broker.address.rpartition(":")
    frame = template("Trips", 256, timed=False).frame.tobytes()
    room = memoryview(bytearray(1 << 16))
    times = []
    with closing(dial(host, int(port), tls=variant.tls)) as link:
        for _ in range(ONE_BY_ONE):
            began_s = time.perf_counter()
            link.sendall(frame)
            filled = 0
            while filled < 4 or filled < 4 + int.from_bytes(room[:4], "big"):
                filled += receive(link, room[filled:])
            times.append(time.perf_counter() - began_s)
    return {"trip_us": statistics.median(times) * 1e6}


def _idle_memory(broker: BrokerAlone, variant: Variant) -> Figures:
    """Return the memory of an idle connection that has sent a message."""
    host, _, port = broker.address.rpartition(":")
    frame = template("Idle", 256, timed=False).frame.tobytes()
    room = memoryview(bytearray(1 << 16))
    with ExitStack() as stack:
        links = []
        before = memory_mib(broker.process.pid)["anonymous"]
        for _ in range(IDLE_CONNECTIONS):
            link = stack.enter_context(closing(dial(host, int(port), tls=variant.tls)))
            link.sendall(frame)
            receive(link, room)
            links.append(link)
        used = memory_mib(broker.process.pid)["anonymous"] - before
    return {"idle_kib": 1024 * used / len(links)}


def _handshake_us(broker: BrokerAlone, variant: Variant) -> float:
    """Return the broker's processor time for a connection that opens, sends one message and closes."""
    host, _, port = broker.address.rpartition(":")
    frame = template("Shaken", 256, timed=False).frame.tobytes()
    room = memoryview(bytearray(1 << 16))

    def connect_once() -> None:
        with closing(dial(host, int(port), tls=variant.tls)) as link:
            link.sendall(frame)
            receive(link, room)

    _repeat(connect_once, HANDSHAKES // 10)
    before_s = broker.processor_s()
    _repeat(connect_once, HANDSHAKES)
    return (broker.processor_s() - before_s) * 1e6 / HANDSHAKES


def _repeat(work: Callable[[], None], count: int) -> None:
    for _ in range(count):
        work()


def _ratios(report: Report) -> list[str]:
    """Return the processor time per message of each column in relation to the plain path, and the rates reversed."""
    plain = report.medians("plain")
    found = []
    for name in report.figures:
        if name != "plain":
            here = report.medians(name)
            costs = _quotients(here, plain, "us_")
            rates = _quotients(plain, here, "per_s_")
            found.append(f"processor per message, {name} / plain: {costs}; messages/s, plain / {name}: {rates}")
    return found


def _quotients(above: Figures, below: Figures, prefix: str) -> str:
    keys = [key for key in below if key.startswith(prefix)]
    return ", ".join(f"{key.removeprefix(prefix)}: {above[key] / below[key]:.2f}" for key in keys)


if __name__ == "__main__":
    sys.exit(main())
