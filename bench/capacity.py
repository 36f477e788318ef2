"""Disk per pending message: timers, levels and blocks, with bodies of 100 B and 1 KiB.

A broker without sockets stores the messages, each with one key and the properties of a client, and a model of the
pipeline indexes them. Its files are small, so that unused room in them does not count. Disk is the growth of the used
blocks of all files, after a first part of the messages. The result does not depend on the speed of the machine:
`python -m bench.capacity --count 2000`. Files of 64 KiB make it accurate to some 30 B per message.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.room import folder
from wheelmq.formats.disk import properties as props
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel

COUNT: Final = 2_000
BODIES: Final = (100, 1024)
DAY_S: Final = 86_400
TURN_EACH: Final = 500
"""Messages from one turn of the pipeline to the next."""
FILES: Final[dict[str, Any]] = {
    "log_file_bytes": 64 << 10,
    "block_log_file_bytes": 64 << 10,
    "block_queue_file_bytes": 24 * 200,
    "block_length_seconds": 3600,
    "queue_file_bytes": 20 * 200,
    "timer_log_file_bytes": 52 * 200,
    "timer_slots": 604_800,
    "timer_roll_window_slots": 172_800,
    "max_hash_slot_num": 500,
    "max_index_num": 2000,
}


class Case(NamedTuple):
    kind: str
    body_bytes: int

    def properties(self, number: int) -> dict[str, str]:
        """Return the properties of a message that is due in one to two days, or in 30 days for a block."""
        found = {"KEYS": f"order-{number:010}", "UNIQ_KEY": f"{number:032X}", "WAIT": "true"}
        if self.kind == "timer":
            return {**found, props.TIMER_DELAY_MS: str((DAY_S + number % DAY_S) * 1000)}
        if self.kind == "level":
            return {**found, "DELAY": "18"}
        return {**found, "delayInSeconds": str(30 * DAY_S + number % DAY_S)}


CASES: Final = [Case(kind, size) for kind in ("timer", "level", "block") for size in BODIES]


def main(argv: Sequence[str] | None = None) -> int:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--count", type=int, default=COUNT, help=f"messages of each case ({COUNT:,})")
    made.add_argument("--home", type=Path, help="folder for the stores")
    options = made.parse_args(argv)
    print("kind   body   disk, B   beyond the body, B")
    for case in CASES:
        with folder("bench-capacity-", options.home) as home:
            disk = disk_bytes(case, home / "store", options.count)
        print(f"{case.kind:6} {case.body_bytes:4} {disk:9,.0f} {disk - case.body_bytes:20,.0f}", flush=True)
    return 0


def disk_bytes(case: Case, store: Path, count: int) -> float:
    """Return the bytes on disk for each of `count` pending messages."""
    with BrokerHarness(store, **FILES) as harness:
        model = PipelineModel(harness)
        _send(case, harness, model, 0, count // 4)
        before = used_bytes(store)
        _send(case, harness, model, count // 4, count // 4 + count)
        return (used_bytes(store) - before) / count


def _send(case: Case, harness: BrokerHarness, model: PipelineModel, first: int, end: int) -> None:
    """Send messages, and let the pipeline index them."""
    body = bytes(case.body_bytes)
    for number in range(first, end):
        answer = harness.send("Orders", body, properties=case.properties(number))
        if answer.code != 0:
            raise RuntimeError(f"message {number} is rejected: {answer.code} {answer.remark}")
        if number % TURN_EACH == 0:
            harness.advance(3000, model.work)
    harness.advance(3000, model.work)


def used_bytes(store: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in store.rglob("*") if path.is_file())


if __name__ == "__main__":
    sys.exit(main())
