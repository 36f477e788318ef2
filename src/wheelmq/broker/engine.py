"""The engine of a broker: its store, and the pending messages that follow from it."""

from __future__ import annotations

from dataclasses import dataclass

from wheelmq.delay.api import Generations
from wheelmq.delay.blocks.blocks import Blocks
from wheelmq.delay.blocks.parts import BlockParts
from wheelmq.delay.blocks.search import Searches
from wheelmq.delay.timer.timer import Timer
from wheelmq.formats.disk.message import Host
from wheelmq.store.index import MessageIndex
from wheelmq.store.store import Store


@dataclass(frozen=True)
class Engine:
    """The parts that `opening.open_engine` recovers from the files of a store."""

    store: Store
    timer: Timer
    block_parts: BlockParts
    generations: Generations
    searches: Searches
    index: MessageIndex | None
    """None if `message_index_enable` is off."""
    knows_pending: bool = True
    """Whether timer, levels and blocks know their pending messages. False on a slave of Apache RocketMQ."""

    @property
    def blocks(self) -> Blocks:
        return self.block_parts.blocks

    @property
    def host(self) -> Host:
        """The address in message ids and in the records of the log."""
        return self.store.host
