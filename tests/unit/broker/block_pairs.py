"""A master and a replica of its blocks in one process, for tests."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

from tests.unit.broker.test_blocks import blocks, command
from wheelmq.formats.disk.origin import block_stream
from wheelmq.formats.units import LogPosition
from wheelmq.testing.harness import Ask, BrokerHarness
from wheelmq.testing.replication import SLAVE, BlockCopy, copy_log
from wheelmq.testing.workers import HeldWorker

SYNC: dict[str, Any] = {"broker_role": "SYNC_MASTER", "slave_timeout_ms": 700}


class Pair:
    """A master, and a replica of it."""

    def __init__(self, folder: Path, block_worker: HeldWorker | None = None, **settings: Any) -> None:
        self.master = BrokerHarness(folder / "master", block_worker=block_worker, **settings)
        self.replica = BrokerHarness(folder / "replica", clock=self.master.clock, **{**settings, **SLAVE})
        self.master.send("T", b"first")
        self.copy_log()
        self.copy = BlockCopy(self.master, self.replica)

    def copy_log(self) -> None:
        copy_log(self.master, self.replica, Random(1))

    def copy_all(self) -> None:
        self.copy.run()
        self.copy_log()
        self.copy.run()

    def fail_over(self) -> None:
        """Kill the master, and promote the replica."""
        self.master.crash()
        self.replica.broker.parts.replication.promote("the test")
        self.replica.settle()

    def connect_again(self) -> None:
        """Copy the blocks over another connection."""
        self.copy.close()
        self.copy = BlockCopy(self.master, self.replica)


def content(harness: BrokerHarness) -> dict[int, tuple[object, ...]]:
    """Return the records and units of each block, and which of its messages are settled."""
    found: dict[int, tuple[object, ...]] = {}
    for block in blocks(harness):
        units = [unit for _, chunk in block.queue.chunks() for unit in chunk[["position", "size", "due_ms"]].tolist()]
        records = b"".join(bytes(file.view[at:stop]) for _, file, at, stop in block.log.files.pieces(0, block.log.end))
        done = harness.broker.parts.timer.pending.done.of(block_stream(block.number)).between(0, block.queue.end)
        found[block.number] = (block.paths.folder.name, block.start_ms, block.end_ms, units, records, done.tolist())
    return found


def bodies(harness: BrokerHarness) -> list[bytes]:
    """Return the messages of topic T, which this broker may not have in its table of topics."""
    store = harness.broker.parts.store
    queue = store.queues.find("T", 0)
    assert queue is not None
    units = queue.read(queue.start, queue.end - queue.start)
    records = [store.log.record_at(LogPosition(int(position))) for position in units["position"]]
    return [record.message.body for record in records if record is not None]


def waiting(harness: BrokerHarness) -> int:
    return harness.broker.parts.block_parts.in_blocks.total


def later(harness: BrokerHarness, seconds: int = 30, **properties: str) -> Ask:
    """Send a message, and end the round. The answer may come later."""
    asked = harness.submit(command(harness, seconds, **properties))
    harness.end_round()
    return asked


def code_of(asked: Ask) -> int | None:
    return None if asked.answer is None else asked.answer.code
