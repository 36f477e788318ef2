"""The parts of the second generation of delayed messages, as `delay/opening.py` composes them."""

from __future__ import annotations

from dataclasses import dataclass

from wheelmq.delay.blocks.blocks import Blocks
from wheelmq.delay.blocks.checkpoints import BlockCheckpoints
from wheelmq.delay.blocks.expiry import BlockExpiry
from wheelmq.delay.blocks.intake import BlockIntake
from wheelmq.delay.blocks.pending import PendingInBlocks
from wheelmq.delay.blocks.role import BlockRole
from wheelmq.delay.blocks.settlement import BlockSettlement
from wheelmq.delay.blocks.turns import BlockTurns
from wheelmq.delay.blocks.walk import BlockWalk
from wheelmq.delay.blocks.walked import WalkedBuffer
from wheelmq.delay.blocks.wheel import BlockWheel


@dataclass(frozen=True)
class BlockParts:
    blocks: Blocks
    in_blocks: PendingInBlocks
    wheel: BlockWheel
    walked: WalkedBuffer
    walk: BlockWalk
    turns: BlockTurns
    intake: BlockIntake
    settlement: BlockSettlement
    checkpoints: BlockCheckpoints
    role: BlockRole
    expiry: BlockExpiry
