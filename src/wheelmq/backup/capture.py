"""Capture the changes of a store since the last point.

The order of the reads makes a point consistent:

1. the list of blocks: a block that is gone by then was settled by records that step 3 finds;
2. offsets and other files: they name no record after those that step 3 finds;
3. the commit log, up to its end;
4. the logs of the blocks;
5. the flags of settled messages of the blocks;
6. with such flags, the commit log up to its end again: a flag is set after its record is in the log;
7. the tables of topics and groups: they have the topic of each record.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec
import numpy as np

from wheelmq.backup.history import History, without
from wheelmq.backup.index import COMMIT_LOG, BlockFacts, Chunk, FileSizes, Floor
from wheelmq.backup.reader import Piece, queue_ends, settled_in_blocks
from wheelmq.backup.source import FOLLOWING, FileVersion, Source, SourceBlock
from wheelmq.formats.kernels import scan as col
from wheelmq.formats.units import Millis
from wheelmq.store.recovery import LogDamaged, Rows


@dataclass
class Capture:
    """The changes of a store since a point."""

    made_ms: Millis
    is_complete: bool = False
    """Whether the end of each stream was reached."""
    pieces: list[tuple[str, Piece]] = field(default_factory=list)
    """Each with the name of its stream."""
    blocks: dict[str, BlockFacts] = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)
    files: list[FileVersion] = field(default_factory=list)
    log_start: int = -1
    sizes: FileSizes | None = None
    floor: Floor | None = None
    problems: list[str] = field(default_factory=list)
    """Damaged logs, of which only the records before the damage are captured."""

    @property
    def is_empty(self) -> bool:
        """Whether a point would say nothing new."""
        has_files = any(version.name not in FOLLOWING for version in self.files)
        changes = (self.pieces, self.blocks, self.gone, self.log_start >= 0, self.floor, self.sizes, has_files)
        return not any(changes)


class Capturer:
    """Captures the changes of a store since `history`."""

    def __init__(self, source: Source, history: History, bytes_max: int) -> None:
        self._source = source
        self._history = history
        self._bytes_max = self._bytes_left = bytes_max
        self._splits_ms: dict[str, int] = {}
        self._sizes = history.sizes
        self._settled: dict[int, bytes] = {}
        """Flagged messages among those that the capture adds, by block number."""

    def capture(self, now_ms: Millis, splits_ms: dict[str, int]) -> Capture:
        """Capture at most about `bytes_max` bytes, or twice as many with flags. Raises OSError.

        A stream in `splits_ms` was cut. A piece of it ends before its first record that is stored after that time.
        """
        made = Capture(now_ms)
        self._splits_ms = splits_ms
        made.is_complete = self._read(made)
        if not (self._sizes.log and self._sizes.queue):
            log_bytes, queue_bytes = self._source.log.file_bytes, self._source.queue_bytes()
            self._sizes = msgspec.structs.replace(self._sizes, log=log_bytes, queue=queue_bytes)
        made.sizes = self._sizes if self._sizes != self._history.sizes else None
        return made

    def _read(self, made: Capture) -> bool:
        """Add all changes. Returns whether the end of each stream was reached."""
        source, history = self._source, self._history
        source.log.refresh()
        if history.lacks_before(source.log.start):
            return False  # the broker deleted records that were not shipped, and the next step begins again
        source.list_blocks()
        present = {stream_of(name, block.facts) for name, block in source.blocks.items()}
        files = source.changed_files(tables=False)
        log_start = source.log.start
        if not self._read_log(made):
            return False
        are_read = [self._read_block(made, name) for name in list(source.blocks)]
        if not (self._read_floor(made, log_start, are_read=all(are_read)) and all(are_read)):
            return False
        made.gone = [name for name in history.blocks if name not in present]
        made.files = [*files, *source.changed_files(tables=True)]
        if log_start != history.log_start or history.floor is None:
            made.log_start = log_start
        return True

    def _read_floor(self, made: Capture, log_start: int, *, are_read: bool) -> bool:
        """Add a floor. It may have messages that records of the capture settle.

        `are_read` says whether all blocks were read. Returns False if the end of the log was not reached again.
        """
        history = self._history
        if history.floor is not None:
            floor = Floor(history.log_start, settled=self._settled)
            if not self._settled:
                return True
        elif are_read:
            floor = self._source.floor(history.log[0].start if history.log else log_start)
        else:
            return True  # the first complete capture reads the flags of all blocks
        if any(floor.settled.values()):
            self._bytes_left = max(self._bytes_left, self._bytes_max)  # the blocks may have used up all bytes
            if not self._read_log(made):
                made.pieces = [(stream, piece) for stream, piece in made.pieces if stream == COMMIT_LOG]
                made.blocks.clear()  # the next capture reads them again, with their flags
                return False
        made.floor = floor
        return True

    def _read_log(self, made: Capture) -> bool:
        """Add the new pieces of the commit log. Returns whether its end was reached."""
        position, last_ms = self._history.end(COMMIT_LOG)
        pieces = [piece for stream, piece in made.pieces if stream == COMMIT_LOG]
        if pieces:
            position = pieces[-1].end
            rows = next((piece.rows for piece in reversed(pieces) if len(piece.rows)), None)
            last_ms = last_ms if rows is None else int(rows[-1, col.STORE_MS])
        start = max(position, self._source.log.start)
        return self._take(made, COMMIT_LOG, self._source.log_pieces(start, last_ms))

    def _read_block(self, made: Capture, name: str) -> bool:
        """Add the new pieces of a block. Returns whether its end was reached."""
        block = self._source.blocks[name]
        facts = block.facts
        stream = stream_of(name, facts)
        position, last_ms = self._history.end(stream) if stream in self._history.facts else (0, 0)
        before, settled = len(made.pieces), b""
        try:
            is_read = self._take(made, stream, self._source.block_pieces(name, position, last_ms))
            settled = self._settled_in(block, [piece.rows for _, piece in made.pieces[before:] if len(piece.rows)])
        except FileNotFoundError:  # the broker is deleting it: only the next capture has all that settles its messages
            is_read = False
            self._source.forget_block(name)
        if any((piece.rows[:, col.QUEUE_ID] != facts.number).any() for _, piece in made.pieces[before:]):
            del made.pieces[before:]  # the folder belongs to another block by now
            self._source.forget_block(name)
            return is_read
        if settled:
            self._settled[facts.number] = settled
        if (len(made.pieces) > before or position) and self._history.facts.get(stream) != facts:
            made.blocks[stream] = facts
        if len(made.pieces) > before and not self._sizes.block_log:
            self._sizes = msgspec.structs.replace(self._sizes, **self._source.block_sizes(name))
        return is_read

    def _settled_in(self, block: SourceBlock, rows: list[Rows]) -> bytes:
        """Return the flagged messages among new ones of a block. Raises OSError.

        A target that has the log from position 0 has the record that settles each of them.
        """
        if self._history.floor is None or not self._history.log_start or not rows:
            return b""
        first, last = int(rows[0][0, col.QUEUE_OFFSET]), int(rows[-1][-1, col.QUEUE_OFFSET])
        return self._source.settled(block, first, last + 1)

    def _take(self, made: Capture, stream: str, pieces: Iterator[Piece]) -> bool:
        """Add pieces until there are enough bytes. Returns whether all were added.

        Of a damaged log, it adds the pieces before the damage.
        """
        try:
            for piece in pieces:
                if self._bytes_left <= 0:
                    return False
                made.pieces += ((stream, part) for part in _split_at(piece, self._splits_ms.get(stream)))
                self._bytes_left -= len(piece.raw)
        except LogDamaged as error:
            made.problems.append(str(error))
            return False
        return True


def stream_of(name: str, facts: BlockFacts) -> str:
    """Return the name of the stream of the block in folder `name`."""
    return f"{name}-{facts.number}"


def folder_of(stream: str) -> str:
    """Return the name of the folder of a block's stream."""
    return stream.partition("-")[0]


def _split_at(piece: Piece, last_ms: int | None) -> Iterator[Piece]:
    """Yield the part of a piece with records stored up to `last_ms`, and the rest."""
    count = len(piece.rows) if last_ms is None else int(np.searchsorted(piece.rows[:, col.STORE_MS], last_ms, "right"))
    if not 0 < count < len(piece.rows):
        yield piece
        return
    border = int(piece.rows[count, col.POSITION])
    at = border - piece.start
    yield piece._replace(end=border, raw=piece.raw[:at], rows=piece.rows[:count])
    yield piece._replace(start=border, raw=piece.raw[at:], rows=piece.rows[count:])


def chunk_of(stream: str, piece: Piece) -> Chunk:
    """Return the chunk of a piece, without its place."""
    rows = piece.rows
    chunk = Chunk(stream=stream, start=piece.start, end=piece.end, records=len(rows))
    if len(rows):
        chunk.first_ms, chunk.last_ms = int(rows[0, col.STORE_MS]), int(rows[-1, col.STORE_MS])
    if stream == COMMIT_LOG:
        chunk.ends, chunk.settled = queue_ends(rows, piece.names), settled_in_blocks(rows)
    return chunk


def final_floor(capture: Capture, history: History, chunks: list[Chunk]) -> Floor | None:
    """Return the floor of a capture without the messages that records settle. Returns None if nothing is left.

    Chunks before the start of the log do not count, because an expiry removes them. It keeps the settled messages of
    the blocks that it knows, and these messages may be of a later block.
    """
    if capture.floor is None:
        return None
    kept = [chunk for chunk in history.log if chunk.start >= history.log_start]
    left = without(capture.floor, [*kept, *chunks])
    return left if left.settled or history.floor is None else None
