"""Sends of Apache's Java client, whose threads each wait for their answer; and the broker's cost per message.

256 B, with the numbers of threads in --threads. With --all, 1, 32 and 64 threads, each with 256 B, 1 KiB, 4 KiB and
batches of 32 of 256 B. All figures count messages.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bench.javaclient import JavaClient
from bench.report import Figures, Metric, Report, add_flush, measure_flushing, parse, parser
from bench.targets import Target

TOPIC: Final = "Sends"
THREADS: Final = (1, 32, 64)
SIZES: Final = (256, 1024, 4096)
BATCH: Final = 32
BATCH_SIZE: Final = 256
SETTLE_S: Final = 2
"""Unmeasured seconds before each measured case, with a warm client."""
WARM_S: Final = 60
WARM_LAST_S: Final = 10
"""The last part of it, which gives the rate."""
ANSWER_S: Final = 60


@dataclass(frozen=True)
class Case:
    threads: int = 32
    body_bytes: int = 256
    batch: int = 1

    @property
    def name(self) -> str:
        return f"{self.threads}_{self.body_bytes}" + f"x{self.batch}" * (self.batch > 1)

    @property
    def text(self) -> str:
        return f"{self.threads} x {self.body_bytes:,} B" + f" x {self.batch}" * (self.batch > 1)


USUAL: Final = Case()


def main(argv: Sequence[str] | None = None) -> int:
    made = parser("sends_java", __doc__)
    made.add_argument("--seconds", type=int, help="for each (20; 8, of all 3, with --short)")
    made.add_argument("--all", action="store_true", help="all numbers of threads, sizes, and batches")
    made.add_argument("--threads", type=int, nargs="+", default=[USUAL.threads], help="numbers of threads (32)")
    add_flush(made)
    options = parse(made, argv)
    cases = [Case(threads) for threads in options.threads]
    if options.all:
        cases = [Case(threads, size) for threads in THREADS for size in SIZES]
        cases += [Case(threads, BATCH_SIZE, BATCH) for threads in THREADS]
    seconds = options.seconds or (20 if not options.short else 3 if options.all else 8)
    report = Report(f"sends, Java client, threads x bytes, {seconds} s each", _metrics(cases))
    measure_flushing(report, options, lambda target: _sends(target, cases, seconds))
    return report.finish(options.json)


def _metrics(cases: Sequence[Case]) -> list[Metric]:
    return [
        *(Metric(f"per_s_{case.name}", f"messages/s, {case.text}", ratio_at_least=0.95) for case in cases),
        *(Metric(f"us_{case.name}", f"broker processor us/message, {case.text}", ratio_at_most=1) for case in cases),
        Metric("failed", "sends that failed", at_most=0),
    ]


def _sends(target: Target, cases: Sequence[Case], seconds: int) -> Figures:
    figures: Figures = {"failed": 0}
    with JavaClient(target, TOPIC, mode="send") as client:
        warm(client)
        for case in cases:
            if case != USUAL:
                send(client, SETTLE_S, case)
            processor = target.processor()
            said = send(client, seconds, case)
            used = processor.seconds()["broker"]
            figures[f"per_s_{case.name}"] = said["sent"] / said["seconds"]
            figures[f"us_{case.name}"] = used * 1e6 / max(1, said["sent"])
            figures["failed"] += said["failed"]
    return figures


def send(client: JavaClient, seconds: int, case: Case) -> dict[str, float]:
    """Send for `seconds`. Returns messages `sent`, sends `failed` and `seconds`."""
    return client.command(f"sends {seconds} {case.threads} {case.body_bytes} {case.batch}", seconds + ANSWER_S)


def warm(client: JavaClient) -> float:
    """Send unmeasured for a fixed time. The JIT compilers of the client and of a broker in Java need about a minute.

    Returns the messages per second at the end.
    """
    send(client, WARM_S - WARM_LAST_S, USUAL)
    said = send(client, WARM_LAST_S, USUAL)
    return said["sent"] / said["seconds"]


if __name__ == "__main__":
    sys.exit(main())
