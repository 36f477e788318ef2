"""Compare a store with the shipped chunks of it. A power cut may have cut its logs, and other records followed."""

from __future__ import annotations

from collections.abc import Sequence

from wheelmq.backup.capture import folder_of
from wheelmq.backup.history import History
from wheelmq.backup.index import Chunk
from wheelmq.backup.reader import LogReader
from wheelmq.backup.source import Source


def first_foreign(reader: LogReader, chunks: Sequence[Chunk]) -> int:
    """Return the number of chunks at the front that the log still has.

    The last chunk with records suffices: after a cut, other records have later store times, so their bytes differ.
    Chunks before the first file of the log cannot be compared.
    """
    for count in range(len(chunks), 0, -1):
        chunk = chunks[count - 1]
        if chunk.start < reader.start:
            return 0
        if chunk.records and chunk.end <= reader.end and reader.crc(chunk.start, chunk.end) == chunk.crc:
            return _skip_blanks(reader, chunks, count)
    return 0


def _skip_blanks(reader: LogReader, chunks: Sequence[Chunk], count: int) -> int:
    """Return the number of chunks, with the blanks after chunk `count` that the log has too."""
    while count < len(chunks) and not chunks[count].records:
        chunk = chunks[count]
        if chunk.end > reader.end or reader.crc(chunk.start, chunk.end) != chunk.crc:
            break
        count += 1
    return count


def cut_blocks(source: Source, history: History) -> dict[str, int]:
    """Return the positions from which the shipped chunks of blocks are not in the store any more, by stream."""
    cuts = {}
    for stream, chunks in history.blocks.items():
        block = source.blocks.get(folder_of(stream))
        if block is None or block.facts.number != history.facts[stream].number:
            continue  # the next complete capture says that it is gone
        count = first_foreign(block.reader, chunks)
        if count < len(chunks):
            cuts[stream] = chunks[count].start
    return cuts


def cut_log(source: Source, history: History) -> int | None:
    """Return the position from which the shipped commit log is not in the store any more; None if all of it is.

    Returns -1 if the store continues no part of it.
    """
    chunks = history.log
    if not chunks:
        return None
    count = first_foreign(source.log, chunks)
    if count == len(chunks):
        return None
    return chunks[count].start if count else -1
