"""Create the parts of delayed delivery and join them."""

from __future__ import annotations

from wheelmq.delay.armed import Armed
from wheelmq.delay.blocks.blocks import Blocks
from wheelmq.delay.blocks.scheduler import BlockScheduler
from wheelmq.delay.notes import Notes
from wheelmq.delay.pending import PendingTable
from wheelmq.delay.settings import BlockSettings, TimerSettings
from wheelmq.delay.timer.timer import Timer
from wheelmq.formats.disk.origin import TIMER_STREAM, timer_origin
from wheelmq.store.store import Store


def open_delay(
    store: Store, timer_settings: TimerSettings, block_settings: BlockSettings
) -> tuple[Timer, BlockScheduler]:
    """Create the timer and the scheduler of blocks, with the table of pending messages that they share.

    The messages of the store are in them after recovery. By the settings, messages of the timer queue are held back.
    """
    armed = Armed(held_from=timer_origin(0) if timer_settings.holds_dequeue else None)
    notes = Notes(timer_settings.lead_ms, held=TIMER_STREAM if timer_settings.stop_enqueue else None)
    pending = PendingTable(store, armed, notes)
    timer = Timer(store, timer_settings, pending)
    blocks = Blocks(store, block_settings)
    return timer, BlockScheduler(store, blocks, pending, timer.turns, timer_settings.lead_ms)
