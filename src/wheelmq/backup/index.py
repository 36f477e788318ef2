"""The index of a target: points, and the chunks and files that each point adds (docs/formats/ship.md).

A log is a stream of records: the commit log, or the log of one block. A point adds chunks to streams, and versions of
small files. The state of the store at a point is the result of all points up to it.
"""

from __future__ import annotations

from typing import Final

import msgspec

COMMIT_LOG: Final = "log"
"""The name of the commit log as a stream. A block's name is that of its folder, `-` and its number."""

QueueEnds = dict[str, dict[int, int]]
"""The queue offset after the last record, by topic and queue id."""


class Stored(msgspec.Struct, omit_defaults=True, kw_only=True):
    """The place of compressed bytes at the target."""

    object: str = ""
    """The name of the object; empty for the object that holds the index."""
    at: int = 0
    size: int = 0
    """Number of compressed bytes."""
    crc: int = 0
    """crc32 of the bytes before their compression."""


class Chunk(Stored, kw_only=True):
    """Consecutive bytes of a stream. They begin and end at a border of a record, and lie in one log file."""

    stream: str
    start: int
    end: int
    first_ms: int = 0
    """Store time of the first record; 0 without one."""
    last_ms: int = 0
    records: int = 0
    ends: QueueEnds = {}
    """The ends of queues after these records. Empty for a block."""
    settled: bytes = b""
    """Origins of messages of blocks that these records settle, 8 bytes each, big-endian."""


class StateFile(Stored, kw_only=True):
    """A version of a file in the store's folder `config`."""

    name: str
    is_gone: bool = False


class BlockFacts(msgspec.Struct, array_like=True, frozen=True):
    """The number and the period of a block. `end_ms` is 0 in a block without a checkpoint: its records give the end."""

    number: int
    start_ms: int
    end_ms: int


class FileSizes(msgspec.Struct, array_like=True, frozen=True):
    """The sizes of the files of a store; 0 while the store has no such file."""

    log: int = 0
    queue: int = 0
    block_log: int = 0
    block_queue: int = 0


class Floor(msgspec.Struct, omit_defaults=True):
    """Facts that only records before a log position prove. The store, or the target, has deleted these records."""

    position: int
    queue_ends: QueueEnds = {}
    settled: dict[int, bytes] = {}
    """Indexes of settled messages by block number, 8 bytes each, big-endian."""


class Point(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A point in time. It follows the point whose `last` is one less than its `first`."""

    first: int
    last: int
    """Numbers of the first and last capture in it. Captures are counted from 1."""
    since_ms: int
    """Time at which the first capture began."""
    made_ms: int
    """Time at which the last capture began: all records stored before it are in the target."""
    is_complete: bool = True
    """Whether the captures reached the end of each stream. Without it, the point only adds chunks."""
    is_restart: bool = False
    """Whether the earlier points have a gap to this one: the broker had deleted records before they were shipped."""
    log_start: int = -1
    """Position of the first record in the store; -1 if unchanged."""
    cuts: dict[str, int] = {}
    """Positions at which streams were cut before this point added its chunks: the store had lost these records."""
    chunks: list[Chunk] = []
    blocks: dict[str, BlockFacts] = {}
    """New blocks."""
    gone: list[str] = []
    """Blocks that the broker has deleted."""
    files: list[StateFile] = []
    sizes: FileSizes | None = None
    floor: Floor | None = None
    """That of the first complete point, or more settled messages: a slave copied those in `chunks` late."""


class Index(msgspec.Struct, omit_defaults=True):
    """The index of one object. An object of chunks alone has no points."""

    points: list[Point] = []
    chunks: list[Chunk] = []


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(Index)


def encode_index(index: Index) -> bytes:
    return _encoder.encode(index)


def decode_index(raw: bytes) -> Index:
    """Return the index in `raw`. Raises msgspec.DecodeError."""
    return _decoder.decode(raw)
