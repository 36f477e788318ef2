"""The last shipped bytes of each log. They show that a store has cut the log, also if other records followed."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Final, NamedTuple

from wheelmq.backup.capture import Capture, folder_of
from wheelmq.backup.history import History
from wheelmq.backup.index import COMMIT_LOG
from wheelmq.backup.reader import LogReader
from wheelmq.backup.source import Source
from wheelmq.formats.kernels import scan as col

TAIL_BYTES: Final = 4096
"""Bytes at the end of a chunk that a start compares from then on."""


class Tail(NamedTuple):
    """Consecutive bytes in one file of a log."""

    start: int
    end: int
    crc: int
    """crc32 of the bytes."""


def captured_tails(capture: Capture) -> dict[str, Tail]:
    """Return the last record of each stream in a capture."""
    found = {}
    for stream, piece in capture.pieces:
        if len(piece.rows):
            start, size = int(piece.rows[-1, col.POSITION]), int(piece.rows[-1, col.SIZE])
            at = start - piece.start
            found[stream] = Tail(start, start + size, zlib.crc32(piece.raw[at : at + size]))
    return found


def shipped_tails(source: Source, history: History) -> dict[str, Tail]:
    """Return the end of each shipped stream, as the store has it now. Call it after a comparison of the two."""
    found = {}
    for stream, chunks in {COMMIT_LOG: history.log, **history.blocks}.items():
        reader, last = _reader_of(source, stream), chunks[-1] if chunks else None
        if reader is not None and last is not None and reader.has_bytes(last.start, last.end):
            start = max(last.start, last.end - TAIL_BYTES)
            found[stream] = Tail(start, last.end, reader.crc(start, last.end))
    return found


def has_lost_tails(source: Source, tails: Mapping[str, Tail]) -> bool:
    """Return whether a log of the store has other bytes now, or none, where one of `tails` was. Raises OSError."""
    return any(_has_lost(source, stream, tail) for stream, tail in tails.items())


def _has_lost(source: Source, stream: str, tail: Tail) -> bool:
    reader = _reader_of(source, stream)
    if reader is None:
        return False
    if stream != COMMIT_LOG:
        reader.refresh()
        if not reader.end:
            return False  # the broker removes the block, as the next complete capture says
    return tail.start >= reader.start and not (tail.end <= reader.end and reader.crc(tail.start, tail.end) == tail.crc)


def _reader_of(source: Source, stream: str) -> LogReader | None:
    if stream == COMMIT_LOG:
        return source.log
    block = source.blocks.get(folder_of(stream))
    return None if block is None else block.reader
