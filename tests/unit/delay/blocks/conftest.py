"""Blocks with a store, which a test can open again at any time, alone and with the other parts of blocks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest

from tests.unit.delay.blocks.parts_bench import PartsBench
from wheelmq.delay.blocks.block import Put
from wheelmq.delay.blocks.blocks import Blocks
from wheelmq.delay.done import Indices
from wheelmq.delay.settings import BlockSettings
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.block import BLOCK_TOPIC, BLOCK_UNIT
from wheelmq.formats.disk.message import Message
from wheelmq.formats.disk.parked import due_text
from wheelmq.formats.disk.paths import StorePaths
from wheelmq.formats.units import LogPosition, Millis
from wheelmq.store.settings import StoreSettings
from wheelmq.store.store import Store
from wheelmq.testing.clock import START_MS, ManualClock
from wheelmq.testing.disk import SimulatedDisk

HOUR_MS = 3_600_000
NEXT_HOUR_MS = Millis(START_MS - START_MS % HOUR_MS + HOUR_MS)
SIZES = {"log_file_bytes": 4096, "queue_file_bytes": 8 * BLOCK_UNIT.size}


class BlockBench:
    """One folder, and the store and blocks that are open on it."""

    def __init__(self, folder: Path, disk: SimulatedDisk, clock: ManualClock) -> None:
        self.paths, self.disk, self.clock = StorePaths(folder), disk, clock
        self.settings = BlockSettings(**SIZES)
        self.settled: dict[int, Indices] = {}
        """The messages that the commit log settles, by block number."""
        self.open()

    def open(self) -> Blocks:
        """Open the store and recover it."""
        settings = StoreSettings(path=self.paths.root, log_file_bytes=1 << 16, queue_file_bytes=10 * 20)
        self.store = Store(settings, self.disk, self.clock)
        self.store.recover(lambda rows, names: None)
        return self.open_blocks()

    def open_blocks(self) -> Blocks:
        """Open the blocks and recover them."""
        self.blocks = Blocks(self.store, self.settings)
        self.blocks.load()
        self.blocks.recover()
        self.blocks.resume(self.settled, {})
        for number, indices in self.settled.items():
            self.blocks.skip_lost(number, int(indices.max(initial=-1)) + 1)
        return self.blocks

    def kill(self) -> Blocks:
        """Stop without closing anything, and open again."""
        self.disk.release_locks()
        return self.open()

    def cut_power(self, seed: int, keep: float = 0.5) -> Blocks:
        self.disk.release_locks()
        self.disk.cut_power(Random(seed), keep)
        return self.open()

    def close(self) -> None:
        self.blocks.close()
        self.store.close()
        self.disk.release_locks()

    def put(self, due_ms: int, body: bytes = b"body", **properties: str) -> Put:
        due_ms = Millis(due_ms)
        block = self.blocks.block_for(due_ms)
        own = {props.REAL_TOPIC: "T", props.REAL_QID: "3", props.WMQ_DUE: due_text(due_ms), **properties}
        return self.blocks.put(block, Message(BLOCK_TOPIC, block.number, body, own), due_ms)

    def flush(self) -> None:
        upto, job = self.blocks.flush_job()
        self.blocks.note_flushed(upto, job())

    def checkpoint(self) -> None:
        job = self.blocks.checkpoint_job()
        if job is not None:
            job()

    def found(self) -> list[tuple[int, int, int, bytes]]:
        """Return number, index, due time and body of every message, in the order of the blocks."""
        rows = []
        for block in self.blocks:
            for first, units in block.queue.chunks():
                for i, unit in enumerate(units):
                    if unit["size"]:
                        record = block.record_at(LogPosition(int(unit["position"])))
                        assert record is not None and record.size == unit["size"]
                        assert (record.message.queue_id, record.queue_offset) == (block.number, first + i)
                        rows.append((block.number, first + i, int(unit["due_ms"]), record.message.body))
        return rows

    def settle(self, number: int, *indices: int) -> None:
        """Make the commit log settle these messages."""
        before = self.settled.get(number, np.empty(0, np.int64))
        self.settled[number] = np.concatenate((before, np.array(indices, np.int64)))


@pytest.fixture
def bench(tmp_path: Path, disk: SimulatedDisk, clock: ManualClock) -> BlockBench:
    return BlockBench(tmp_path / "store", disk, clock)


@pytest.fixture
def make_bench(tmp_path: Path) -> Callable[[str], BlockBench]:
    """Make benches on separate folders and disks."""
    return lambda name: BlockBench(tmp_path / name, SimulatedDisk(), ManualClock())


@pytest.fixture
def parts(tmp_path: Path, disk: SimulatedDisk, clock: ManualClock) -> PartsBench:
    return PartsBench(tmp_path / "store", disk, clock)
