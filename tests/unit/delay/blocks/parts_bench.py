"""The parts of blocks with a store and a timer, but without a broker. A test calls each part itself."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from random import Random

import msgspec
import numpy as np

from wheelmq.delay.blocks.block import Block, Put
from wheelmq.delay.blocks.park import park_in_block
from wheelmq.delay.blocks.staging import read_blocks
from wheelmq.delay.opening import open_delay
from wheelmq.delay.settings import BlockSettings, TimerSettings
from wheelmq.delay.timer.planning import apply_turn, make_plan
from wheelmq.delay.timer.recover import TimerRecovery
from wheelmq.delay.timer.rows import TurnRows
from wheelmq.delay.timer.staging import decide
from wheelmq.delay.timer.turns import Proposal, TurnPlan
from wheelmq.delay.timer.view import StoreSizes, StoreView
from wheelmq.formats.disk.block import BLOCK_UNIT
from wheelmq.formats.disk.index import IndexSize
from wheelmq.formats.disk.message import Message
from wheelmq.formats.disk.origin import Origin, block_stream, origin_of
from wheelmq.formats.disk.paths import StorePaths
from wheelmq.formats.units import LogPosition, Millis
from wheelmq.store.index import MessageIndex
from wheelmq.store.settings import StoreSettings
from wheelmq.store.store import Appended, Store
from wheelmq.system.workers import InlineWorker
from wheelmq.testing.clock import START_MS, ManualClock
from wheelmq.testing.disk import SimulatedDisk

T0 = Millis(START_MS - START_MS % 10_000)
"""Start of the block of the present time. The clock of a bench begins 250 ms later."""
BLOCK_MS = 10_000
LEAD_MS = 5000
EPOCH = 7


class PartsBench:
    """One folder, and the parts that are open on it. Blocks have 10 s, the lead is 5 s."""

    def __init__(self, folder: Path, disk: SimulatedDisk, clock: ManualClock, lead_ms: int = LEAD_MS) -> None:
        self.paths, self.disk, self.clock = StorePaths(folder), disk, clock
        self._store_settings = StoreSettings(path=folder, log_file_bytes=1 << 16, queue_file_bytes=10 * 20)
        self._timer_settings = TimerSettings(
            slots=60, roll_window_slots=20, log_file_bytes=52 * 100 + 16, lead_ms=lead_ms
        )
        self._block_settings = BlockSettings(
            length_seconds=BLOCK_MS // 1000, log_file_bytes=4096, queue_file_bytes=8 * BLOCK_UNIT.size
        )
        self.open()

    def open(self) -> None:
        """Open the store, recover it, and become the master of EPOCH."""
        gone = self.scan()
        self.intake.recover(gone)
        self.role.take_over(EPOCH)

    def scan(self) -> dict[int, LogPosition]:
        """Open the store and scan its log, but do not look for pending messages of blocks. Returns the gone blocks."""
        self.store = Store(self._store_settings, self.disk, self.clock)
        self.timer, found, self.generations = open_delay(self.store, self._timer_settings, self._block_settings)
        self.pending = self.timer.pending
        self.blocks, self.in_blocks, self.wheel, self.walked = found.blocks, found.in_blocks, found.wheel, found.walked
        self.intake, self.walk, self.turns, self.settlement = found.intake, found.walk, found.turns, found.settlement
        self.checkpoints, self.role, self.expiry = found.checkpoints, found.role, found.expiry
        self.blocks.load()
        self.blocks.recover()
        recovery = TimerRecovery(self.timer)
        self.store.recover(recovery.on_rows, recovery.resume)
        recovery.finish(MessageIndex(self.store, InlineWorker(), IndexSize(100, 400)))
        return recovery.blocks_gone

    def kill(self) -> None:
        """Stop without closing anything, and open again."""
        self.disk.release_locks()
        self.open()

    def cut_power(self) -> None:
        """Lose all bytes that were not synced, and open again."""
        self.disk.release_locks()
        self.disk.cut_power(Random(1), keep=0.0)
        self.open()

    # Messages ------------------------------------------------------------------------------------------------------

    def parked(self, due_ms: int, body: bytes = b"body", **properties: str) -> Message:
        """Return a message for queue 3 of topic T, parked for a block."""
        message = Message("T", 3, body, properties)
        park_in_block(message, Millis(due_ms))
        return message

    def put(self, due_ms: int, body: bytes = b"body", **properties: str) -> Put:
        """Put a message for queue 3 of topic T."""
        return self.intake.put(self.parked(due_ms, body, **properties), Millis(due_ms))

    def put_on_disk(self, due_ms: int, body: bytes = b"body", **properties: str) -> Put:
        put = self.put(due_ms, body, **properties)
        self.blocks.flush()
        return put

    def settle(self, *puts: Put) -> list[Appended]:
        """Append the records that release messages. The journal has them until `dispatch`."""
        appended = []
        for put in puts:
            origin = origin_at(put)
            generation = self.generations.of(origin)
            record = generation.record_of(origin)
            assert record is not None
            message = generation.rebuild(record, enqueue_ms=0, now_ms=self.clock.now_ms(), rolls=False)
            row = self.store.real_queue(record.message.properties)
            appended.append(self.store.append(message, settles=origin, real_queue=row))
            self.pending.settle(origin)
        return appended

    def dispatch(self) -> None:
        """End the tick: the records leave the journal."""
        rows, _ = self.store.dispatch()
        if self.pending.take_journal(rows):
            self.settlement.note(rows, self.store.dispatched_to)

    def settle_on_disk(self, *puts: Put) -> None:
        """Release messages in one tick, and sync the log."""
        self.settle(*puts)
        self.dispatch()
        self.store.flush()

    # State ---------------------------------------------------------------------------------------------------------

    def block_of(self, put: Put) -> Block:
        block = self.blocks.get(put.number)
        assert block is not None
        return block

    def remove(self, put: Put) -> None:
        """Remove the block of a message, whose messages are all settled."""
        removed = self.block_of(put)
        (removal,) = self.blocks.expire(lambda block: block is removed, lambda block: True)
        removal.job()
        assert removal.take_result(None)

    def is_done(self, put: Put) -> bool:
        return origin_at(put) in self.pending.done

    def is_armed(self, put: Put) -> bool:
        return bool(self.pending.armed.was_armed(np.array([origin_at(put)]))[0])

    def are_armed(self, puts: Collection[Put]) -> list[bool]:
        return [self.is_armed(put) for put in puts]

    def flagged(self, put: Put) -> list[int]:
        """Return the indices of the flagged messages of the block of a message."""
        return self.block_of(put).queue.done().tolist()

    # Turns ---------------------------------------------------------------------------------------------------------

    def next_plan(self) -> TurnPlan | None:
        """Plan the next turn over the synced log, and set it under way."""
        self.store.flush()
        now_ms = self.clock.now_ms()
        return make_plan(self.timer, "broker", now_ms, self.store.log.synced, self.turns.window(now_ms))

    def read(self, plan: TurnPlan) -> TurnRows:
        """Return the rows of blocks that a task of the turn reads from the files of the store."""
        timer = self._timer_settings
        sizes = StoreSizes(
            self._store_settings.log_file_bytes,
            self._store_settings.queue_file_bytes,
            timer.log_file_bytes,
            timer.slots,
            self._block_settings.queue_file_bytes,
        )
        view, window = StoreView(self.paths.root, sizes), msgspec.to_builtins(plan.blocks)
        staged = read_blocks(view, window, write_ms=plan.write_ms, turn=plan.turn)
        return decide(staged, timer.roll_window_slots * timer.precision_ms, timer.precision_ms)

    def commit(self, plan: TurnPlan, *block_parts: TurnRows) -> None:
        """Check the rows of a turn and commit it."""
        self.turns.check(plan.blocks, list(block_parts))
        apply_turn(self.timer, Proposal(plan, [], [], list(block_parts)))
        self.turns.commit(plan.blocks, list(block_parts), plan.write_ms)


def origin_at(put: Put) -> Origin:
    return origin_of(block_stream(put.number), put.index)
