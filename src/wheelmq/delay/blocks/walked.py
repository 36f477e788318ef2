"""The records of messages that scans of blocks armed, until the prefetcher takes them."""

from __future__ import annotations

from typing import NamedTuple

from wheelmq.delay.blocks.block import Block
from wheelmq.delay.intake import Integers
from wheelmq.store.mapped import HeldFiles


class WalkedRecords(NamedTuple):
    """Positions and sizes of records in the log of a block. They may be read off the event loop."""

    files: HeldFiles
    positions: Integers
    sizes: Integers


class WalkedBuffer:
    """Records by the scan that armed their messages."""

    def __init__(self) -> None:
        self._walked: list[WalkedRecords] = []

    def __len__(self) -> int:
        return len(self._walked)

    def add(self, block: Block, positions: Integers, sizes: Integers) -> None:
        """Add records of one block. Holds the files that have them."""
        if len(positions):
            files = HeldFiles(block.log.files, int(positions.min()), int(positions.max()))
            self._walked.append(WalkedRecords(files, positions, sizes))

    def take(self) -> list[WalkedRecords]:
        taken, self._walked = self._walked, []
        return taken
