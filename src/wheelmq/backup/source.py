"""The store that is shipped: its commit log, its blocks, the files of `config`, and facts about deleted records.

A broker may run on the store. The source changes nothing and takes no lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from wheelmq.backup.index import BlockFacts, Floor, QueueEnds
from wheelmq.backup.reader import LogReader, Piece
from wheelmq.backup.target import files_below
from wheelmq.delay.blocks.block import read_checkpoint
from wheelmq.delay.blocks.queue import BlockQueue
from wheelmq.formats.disk.block import BLOCK_UNIT, FLAG_DONE, REMOVED, block_start_ms
from wheelmq.formats.disk.paths import BlockPaths, StorePaths, file_start
from wheelmq.formats.kernels import scan as col
from wheelmq.formats.units import LogPosition
from wheelmq.store.consume_queue import ConsumeQueue
from wheelmq.store.mapped import MappedSequence
from wheelmq.store.recovery import load_checkpoint
from wheelmq.system.disk import Disk

DERIVED: Final = frozenset({"snapshot", "timermetrics", "transactionMetrics"})
"""Files of `config` that a start derives from the log."""
OF_BROKER: Final = frozenset({"replicationRole.json", "hiddenTail"})
"""Files of `config` about one broker among its replicas. A restored store takes its role from the settings."""
SECRETS: Final = frozenset({"pipelineKey.json"})
"""Files of `config` with a readable secret. The start of a restored store creates another one."""
FOLLOWING: Final = frozenset({"timermark", "timercheck", "delayOffset.json"})
"""Files of `config` that change with the log alone. A change of them makes no point."""
TABLES: Final = frozenset({"topics.json", "subscriptionGroup.json"})
"""Files that must be as new as the log, because a record may need an entry of them. The other files must not be newer
than the log: an offset in them would name a record that the log does not have."""
LEFT_OUT: Final = (".bak", ".tmp", ".new")


class FileVersion(NamedTuple):
    """A version of a file in `config`."""

    name: str
    identity: str
    content: bytes | None
    """None if the file is gone."""


class SourceBlock:
    """A block of the store."""

    def __init__(self, paths: BlockPaths, reader: LogReader, facts: BlockFacts, units: int) -> None:
        self.paths = paths
        self.reader = reader
        self.facts = facts
        self.units = units
        """Number of units that the checkpoint says are on disk."""


class Source:
    """The files of a store, as they are now."""

    def __init__(self, disk: Disk, paths: StorePaths, piece_bytes: int) -> None:
        self.disk = disk
        self.paths = paths
        self._piece_bytes = piece_bytes
        self.log = LogReader(disk, paths.commit_log, piece_bytes)
        self.blocks: dict[str, SourceBlock] = {}
        """The blocks by the names of their folders."""
        self._identities: dict[str, str] = {}
        """Identities of the versions of files that are shipped, by name."""

    def is_store(self) -> bool:
        """Return whether the folder has a commit log."""
        self.log.refresh()
        return self.log.file_bytes > 0

    def log_pieces(self, position: int, last_ms: int) -> Iterator[Piece]:
        """Yield the pieces of the commit log from `position` on. Raises LogDamaged."""
        whole_before_ms = load_checkpoint(self.disk, self.paths).log_ms
        return self.log.pieces(position, whole_before_ms=whole_before_ms, last_ms=last_ms)

    # Blocks --------------------------------------------------------------------------------------------------------

    def list_blocks(self) -> None:
        """Find the blocks. Blocks whose removal has begun do not count."""
        names = self.disk.list(self.paths.blocks)
        for name in self.blocks.keys() - set(names):
            del self.blocks[name]
        for name in names:
            known = self.blocks.get(name)
            if known is None or not known.facts.end_ms:  # the broker may have written the checkpoint by now
                block = self._open_block(name)
                if block is not None:
                    self.blocks[name] = block

    def forget_block(self, name: str) -> None:
        """Read the checkpoint of a block again at the next listing."""
        self.blocks.pop(name, None)

    def _open_block(self, name: str) -> SourceBlock | None:
        """Return the block in a folder. Returns None for a block that is being removed, or has no record yet."""
        start_ms = block_start_ms(name)
        if start_ms is None:
            return None
        paths = BlockPaths(self.paths.blocks / name)
        found = read_checkpoint(self.disk, paths.checkpoint)
        reader = LogReader(self.disk, paths.log, self._piece_bytes)
        reader.refresh()
        if found is not None:
            known = found[1]
            facts = BlockFacts(known.number, known.start_ms, known.end_ms)
            return None if known.log_position == REMOVED else SourceBlock(paths, reader, facts, known.units)
        first = reader.record_at(0)  # without a checkpoint, the first record has the number
        return None if first is None else SourceBlock(paths, reader, BlockFacts(first.message.queue_id, start_ms, 0), 0)

    def block_pieces(self, name: str, position: int, last_ms: int) -> Iterator[Piece]:
        """Yield the pieces of a block's log from `position` on. Raises LogDamaged, OSError."""
        block = self.blocks[name]
        reader = block.reader
        while True:
            if position >= reader.end:  # only then there may be another file
                reader.refresh()
            if not reader.has_more(position):
                return
            whole_before_ms = self._whole_before_ms(block) if position == 0 else 0
            before = position
            for piece in reader.pieces(position, whole_before_ms=whole_before_ms, last_ms=last_ms):
                position = piece.end
                last_ms = int(piece.rows[-1, col.STORE_MS]) if len(piece.rows) else last_ms
                yield piece
            if position == before or position < reader.end:
                return

    def _whole_before_ms(self, block: SourceBlock) -> int:
        """Return the store time of the last record before the checkpoint: the records before it were on disk."""
        queue = self._units_of(block)
        if queue is None or not 0 < block.units <= queue.end:
            return 0
        unit = queue.read(block.units - 1, 1)[0]
        record = block.reader.record_at(int(unit["position"])) if unit["size"] else None
        return 0 if record is None else record.store_ms

    def _units_of(self, block: SourceBlock) -> BlockQueue | None:
        """Return the queue of a block, with all places for units that its files have."""
        files = sequence(self.disk, block.paths.queue)
        if files is None or files.start:
            return None
        queue = BlockQueue(files)
        queue.end = files.end // BLOCK_UNIT.size
        return queue

    # Deleted records -----------------------------------------------------------------------------------------------

    def floor(self, log_start: int) -> Floor:
        """Return the facts that the records before `log_start` prove, and no later ones.

        They may contain messages of blocks that a later record settles: the caller leaves out those.
        """
        if not log_start:
            return Floor(0)
        settled = {block.facts.number: self.settled(block, 0) for block in self.blocks.values()}
        return Floor(log_start, self._queue_ends(log_start), settled)

    def settled(self, block: SourceBlock, first: int, stop: int | None = None) -> bytes:
        """Return the flagged indexes from `first` to `stop` or the end, as a floor stores them. Raises OSError.

        A blank is not one of them: after a failover, another master can have a message with its index.
        """
        queue = self._units_of(block)
        if queue is None:
            return b""
        chunks = queue.chunks(first, queue.end if stop is None else min(stop, queue.end))
        found = [at + np.flatnonzero(units["flags"] & FLAG_DONE) for at, units in chunks]
        return np.concatenate([np.empty(0, np.int64), *found]).astype(">i8").tobytes()

    def _queue_ends(self, log_start: int) -> QueueEnds:
        ends: QueueEnds = {}
        for folder in self._queue_folders():
            files = sequence(self.disk, folder)
            end = 0 if files is None else ConsumeQueue(files).first_at(LogPosition(log_start))
            if end:
                ends.setdefault(folder.parent.name, {})[int(folder.name)] = end
        return ends

    # Small files ---------------------------------------------------------------------------------------------------

    def changed_files(self, *, tables: bool) -> list[FileVersion]:
        """Return the files of `config` that have changed since `note_files`: the tables, or all others.

        Raises OSError.
        """
        names = {name for name in files_below(self.disk, self.paths.config) if _is_shipped(name)}
        found = []
        for name in sorted(names | self._identities.keys()):
            path = self.paths.config / name
            identity = self.disk.identity(path)
            if (name in TABLES) == tables and identity != self._identities.get(name, ""):
                found.append(FileVersion(name, identity, self.disk.read(path)))
        return found

    def note_files(self, versions: Iterable[FileVersion]) -> None:
        """Note that these versions of files are shipped."""
        for version in versions:
            if version.content is None:
                self._identities.pop(version.name, None)
            else:
                self._identities[version.name] = version.identity

    def expect_files(self, names: Iterable[str]) -> None:
        """Note files of the target. The next reading compares them, and notices those that are gone."""
        self._identities = dict.fromkeys(names, "unknown")

    def forget_files(self) -> None:
        """Read all files again for the next point."""
        self._identities.clear()

    def queue_bytes(self) -> int:
        """Return the size of a file of a consume queue; 0 without one."""
        found = (sequence(self.disk, folder) for folder in self._queue_folders())
        return next((files.file_bytes for files in found if files is not None), 0)

    def block_sizes(self, name: str) -> dict[str, int]:
        """Return the sizes of the files of a block, by the names of FileSizes."""
        block = self.blocks.get(name)
        units = None if block is None else sequence(self.disk, block.paths.queue)
        if block is None or units is None:
            return {}
        return {"block_log": block.reader.file_bytes, "block_queue": units.file_bytes}

    def _queue_folders(self) -> Iterator[Path]:
        for topic in self.disk.list(self.paths.consume_queues):
            for queue_id in self.disk.list(self.paths.consume_queues / topic):
                if queue_id.isdigit():
                    yield self.paths.consume_queue(topic, int(queue_id))


def sequence(disk: Disk, folder: Path) -> MappedSequence | None:
    """Return the files of a folder, or None without one. The first file gives the size of all. Raises OSError."""
    names = [name for name in disk.list(folder) if file_start(name) is not None]
    return MappedSequence(disk, folder, (folder / names[0]).stat().st_size) if names else None


def _is_shipped(name: str) -> bool:
    return name not in DERIVED | OF_BROKER | SECRETS and not name.endswith(LEFT_OUT)
