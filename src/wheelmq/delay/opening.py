"""Create the parts of delayed delivery and join them."""

from __future__ import annotations

from wheelmq.delay.api import Generation, Generations
from wheelmq.delay.armed import Armed
from wheelmq.delay.blocks.blocks import Blocks
from wheelmq.delay.blocks.generation import BlockGeneration
from wheelmq.delay.blocks.scheduler import BlockScheduler
from wheelmq.delay.levels.generation import LevelGeneration
from wheelmq.delay.notes import Notes
from wheelmq.delay.pending import PendingTable
from wheelmq.delay.settings import BlockSettings, TimerSettings
from wheelmq.delay.timer.generation import TimerGeneration
from wheelmq.delay.timer.timer import Timer
from wheelmq.formats.disk.origin import KIND_BLOCK, KIND_LEVEL, KIND_TIMER, TIMER_STREAM, timer_origin
from wheelmq.store.store import Store


def open_delay(
    store: Store, timer_settings: TimerSettings, block_settings: BlockSettings
) -> tuple[Timer, BlockScheduler, Generations]:
    """Create the timer, the scheduler of blocks and the table of the generations. They share the pending messages.

    The messages of the store are in them after recovery. By the settings, messages of the timer queue are held back.
    """
    armed = Armed(held_from=timer_origin(0) if timer_settings.holds_dequeue else None)
    notes = Notes(timer_settings.lead_ms, held=TIMER_STREAM if timer_settings.stop_enqueue else None)
    pending = PendingTable(store, armed, notes)
    timer = Timer(store, timer_settings, pending)
    blocks = Blocks(store, block_settings)
    scheduler = BlockScheduler(store, blocks, pending, timer.turns, timer_settings.lead_ms)
    by_kind: dict[int, Generation] = {
        KIND_LEVEL: LevelGeneration(store, pending),
        KIND_BLOCK: BlockGeneration(blocks, scheduler.checkpoints, pending.done, store.clock),
        KIND_TIMER: TimerGeneration(timer),
    }
    return timer, scheduler, Generations(armed, pending.done, store.clock, by_kind)
