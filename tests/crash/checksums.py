"""The cost of checking every body's checksum at a pull.

    python -m tests.crash.checksums

It measures the time to gather the records of one pull, without and with a crc32 of each body. The best of many runs
counts.
"""

from __future__ import annotations

import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

from wheelmq.formats.units import LogPosition
from wheelmq.testing.harness import BrokerHarness

PULLED: Final = 32
BODY_BYTES: Final = (64, 256, 1024, 4096)
ROUNDS: Final = 400
BODY_AT: Final = 84
"""Place of the body length in a record with IPv4 hosts; the body comes after it."""


def best_us(call: Callable[[], object]) -> float:
    """Return the shortest of many calls, in microseconds."""
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return min(times) * 1e6


def are_intact(raw: bytes) -> bool:
    """Return whether each body in a pull's answer has its checksum."""
    view, at = memoryview(raw), 0
    while at < len(raw):
        size = int.from_bytes(view[at : at + 4], "big")
        start = at + BODY_AT + 4
        stop = start + int.from_bytes(view[at + BODY_AT : start], "big")
        if zlib.crc32(view[start:stop]) & 0x7FFF_FFFF != int.from_bytes(view[at + 8 : at + 12], "big"):
            return False
        at += size
    return True


def measure(body_bytes: int) -> str:
    with tempfile.TemporaryDirectory() as folder, BrokerHarness(Path(folder)) as harness:
        for i in range(PULLED):
            harness.send("T", bytes([i]) * body_bytes)
        log, queue = harness.broker.parts.store.log, harness.broker.parts.store.queues.find("T", 0)
        assert queue is not None
        units = queue.read(queue.start, PULLED)
        pairs = zip(units["position"].tolist(), units["size"].tolist(), strict=True)
        spans = [(LogPosition(position), size) for position, size in pairs]
        raw = log.gather(spans)
        assert are_intact(raw)
        gathered_us, checked_us = best_us(lambda: log.gather(spans)), best_us(lambda: are_intact(raw))
        whole_us = best_us(lambda: harness.ask(harness.pull_command("T")))
    return (
        f"{PULLED} records with bodies of {body_bytes:5d} B: gathered in {gathered_us:6.1f} us, "
        f"checksums {checked_us:6.1f} us, the whole request {whole_us:6.1f} us"
    )


if __name__ == "__main__":
    for body_bytes in BODY_BYTES:
        print(measure(body_bytes))
