"""Disk and memory per pending message: timers, levels and blocks, with bodies of 100 B, 1 KiB and 4 KiB.

Each case has a new store with small files, so that unused room in them does not count. A first part of the messages is
sent before the measurement, so that buffers have their size. Disk is the growth of the store's used blocks, memory is
the growth of the broker's anonymous memory. The broker runs without a pipeline, and indexes the timers itself. The
benchmark measures WheelMQ alone: `python -m bench.capacity --count 200000`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from bench.machine import memory_mib
from bench.room import folder
from bench.targets import Part
from wheelmq.client import Admin, Producer
from wheelmq.client.outgoing import MessageOptions
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.sync_connection import SyncConnection

COUNT: Final = 200_000
BODIES: Final = (100, 1024, 4096)
DAY_S: Final = 86_400
IN_FLIGHT: Final = 256
START_S: Final = 150.0
INDEX_S: Final = 120.0
SETTLE_S: Final = 8.0
"""Time in which snapshots are written and freed memory returns to the system."""
MIB: Final = 1 << 20
FILES: Final = {
    "log_file_bytes": 16 * MIB,
    "log_files_ahead": 0,
    "timer_log_file_bytes": 52 * 20_000,
    "block_log_file_bytes": 16 * MIB,
    "queue_file_bytes": 20 * 20_000,
    "max_hash_slot_num": 10_000,
    "max_index_num": 40_000,
}


class Case(NamedTuple):
    kind: str
    body_bytes: int

    def options(self, number: int) -> MessageOptions:
        """Return the options of a message with one key that is due in a day, or at the end of the last level."""
        keys = f"order-{number:010}"
        if self.kind == "timer":
            return {"keys": keys, "delay_ms": (DAY_S + number % DAY_S) * 1000}
        if self.kind == "level":
            return {"keys": keys, "delay_level": 18}
        return {"keys": keys, "delay_in_seconds": 30 * DAY_S + number % DAY_S}


CASES: Final = [Case("timer", size) for size in BODIES] + [Case("level", 100), Case("block", 100), Case("block", 1024)]


def main(argv: Sequence[str] | None = None) -> int:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--count", type=int, default=COUNT, help=f"messages of each case ({COUNT:,})")
    made.add_argument("--home", type=Path, help="folder for the stores")
    options = made.parse_args(argv)
    print("kind   body   disk, B   of them beyond the body   broker's memory, B", flush=True)
    for case in CASES:
        with folder("bench-capacity-", options.home) as home:
            disk, memory = _measure(case, home, options.count)
        print(
            f"{case.kind:6} {case.body_bytes:4} {disk:9,.0f} {disk - case.body_bytes:25,.0f} {memory:20,.0f}",
            flush=True,
        )
    return 0


def _measure(case: Case, home: Path, count: int) -> tuple[float, float]:
    """Return disk and anonymous memory per message, in bytes."""
    words = ["--port", "0"]
    names = Part(["nameserver", *words], home)
    namesrv = str(names.until("listening", START_S)["address"])
    settings = [word for name, value in FILES.items() for word in ("--set", f"{name}={value}")]
    broker = Part(["broker", *words, "--store", str(home / "store"), "--namesrv", namesrv, *settings], home)
    try:
        address = str(broker.until("listening", START_S)["address"])
        first = count // 4
        asyncio.run(_send(case, namesrv, 0, first))
        before = _settled(address, broker.process.pid, home / "store", first)
        asyncio.run(_send(case, namesrv, first, first + count))
        after = _settled(address, broker.process.pid, home / "store", first + count)
    finally:
        broker.end()
        names.end()
    return (after[0] - before[0]) / count, (after[1] - before[1]) / count


async def _send(case: Case, namesrv: str, first: int, end: int) -> None:
    async with Admin(namesrv) as admin:
        async with asyncio.timeout(START_S):
            while not await admin.brokers():
                await asyncio.sleep(0.05)
    async with Producer(namesrv) as producer:
        numbers, body = iter(range(first, end)), bytes(case.body_bytes)

        async def send_next() -> None:
            for number in numbers:
                await producer.send("Orders", body, **case.options(number))

        await asyncio.gather(*(send_next() for _ in range(IN_FLIGHT)))


def _settled(address: str, pid: int, store: Path, pending: int) -> tuple[float, float]:
    """Return the used bytes of the store, and the broker's anonymous memory, once all messages are indexed."""
    end_s = time.monotonic() + INDEX_S
    link = SyncConnection(address, timeout_s=30.0)
    try:
        while time.monotonic() < end_s:
            table = msgspec.json.decode(link.ask(Command(code=RequestCode.GET_BROKER_RUNTIME_INFO)).body)["table"]
            if int(table["timerCongestNum"]) == pending and int(table["timerOffsetBehind"]) == 0:
                break
            time.sleep(0.5)
        else:
            raise RuntimeError(f"not all of {pending:,} messages are indexed after {INDEX_S:.0f} s: {table}")
    finally:
        link.close()
    time.sleep(SETTLE_S)
    used = sum(path.stat().st_blocks * 512 for path in store.rglob("*") if path.is_file())
    return used, memory_mib(pid)["anonymous"] * MIB


if __name__ == "__main__":
    sys.exit(main())
