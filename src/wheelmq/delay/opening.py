"""Create the parts of delayed delivery and join them."""

from __future__ import annotations

from wheelmq.delay.api import Generation, Generations
from wheelmq.delay.armed import Armed
from wheelmq.delay.blocks.blocks import Blocks
from wheelmq.delay.blocks.checkpoints import BlockCheckpoints
from wheelmq.delay.blocks.expiry import BlockExpiry
from wheelmq.delay.blocks.generation import BlockGeneration
from wheelmq.delay.blocks.intake import BlockIntake
from wheelmq.delay.blocks.parts import BlockParts
from wheelmq.delay.blocks.pending import PendingInBlocks
from wheelmq.delay.blocks.role import BlockRole
from wheelmq.delay.blocks.settlement import BlockSettlement
from wheelmq.delay.blocks.turns import BlockTurns
from wheelmq.delay.blocks.walk import BlockWalk
from wheelmq.delay.blocks.walked import WalkedBuffer
from wheelmq.delay.blocks.wheel import BlockWheel
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
) -> tuple[Timer, BlockParts, Generations]:
    """Create the timer, the parts of blocks and the table of the generations. They share the pending messages.

    The messages of the store are in them after recovery. By the settings, messages of the timer queue are held back.
    """
    armed = Armed(held_from=timer_origin(0) if timer_settings.holds_dequeue else None)
    notes = Notes(timer_settings.lead_ms, held=TIMER_STREAM if timer_settings.stop_enqueue else None)
    pending = PendingTable(store, armed, notes)
    timer = Timer(store, timer_settings, pending)
    block_parts = _open_blocks(store, block_settings, timer)
    by_kind: dict[int, Generation] = {
        KIND_LEVEL: LevelGeneration(store, pending),
        KIND_BLOCK: BlockGeneration(block_parts.blocks, block_parts.checkpoints, pending.done, store.clock),
        KIND_TIMER: TimerGeneration(timer),
    }
    return timer, block_parts, Generations(armed, pending.done, store.clock, by_kind)


def _open_blocks(store: Store, settings: BlockSettings, timer: Timer) -> BlockParts:
    """Create the parts of blocks, before any block is loaded. `timer` has the pending messages, turns and lead."""
    pending, turns, lead_ms = timer.pending, timer.turns, timer.settings.lead_ms
    blocks, in_blocks = Blocks(store, settings), PendingInBlocks(pending)
    wheel, walked = BlockWheel(), WalkedBuffer()
    walk = BlockWalk(blocks, wheel, walked, pending, turns, lead_ms)
    settlement = BlockSettlement(blocks, in_blocks)
    role = BlockRole(store, blocks, settlement, pending.done)
    return BlockParts(
        blocks=blocks,
        in_blocks=in_blocks,
        wheel=wheel,
        walked=walked,
        walk=walk,
        turns=BlockTurns(blocks, wheel, walk, walked, pending),
        intake=BlockIntake(store, blocks, pending, in_blocks, walk),
        settlement=settlement,
        checkpoints=BlockCheckpoints(store, blocks, settlement),
        role=role,
        expiry=BlockExpiry(store, blocks, wheel, settlement, role, pending),
    )
