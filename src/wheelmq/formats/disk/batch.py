"""The batches of a sink on disk: uploaded chunks, the decision of a commit, and marks in the log.

docs/formats/batches.md describes the files and their life.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from wheelmq.formats.disk.message import Host
from wheelmq.formats.units import Millis

CHUNK_BYTES_MAX: Final = 5 << 20
"""The longest chunk that a broker saves."""
CHUNK_ROWS_MAX: Final = 512
"""Maximum rows of a chunk. The plain check of a row takes some 40 µs, and no request may take long."""
JOB_CHARS_MAX: Final = 255
"""The longest name of a job."""
ROW: Final = struct.Struct(">iiH")
"""The head of a row: queue id, bytes of the body, bytes of the properties. Body and properties follow."""
_CHUNK_HEAD: Final = struct.Struct(">qiB")
"""The head of a chunk's file: born time, and the port and address length of the sender. The address follows."""


class RowsWrong(ValueError):
    """The bytes of a chunk are not whole rows."""


class BatchId(NamedTuple):
    """A batch of a job: in Spark, a micro-batch of a query."""

    job: str
    number: int

    @property
    def key(self) -> str:
        """The name of its folder, and the tag of its marks."""
        return hashlib.blake2b(f"{self.number}/{self.job}".encode(), digest_size=12).hexdigest()

    def __str__(self) -> str:
        return f"{self.job}/{self.number}"


def job_key(job: str) -> str:
    """Return the name of the file of a job."""
    return hashlib.blake2b(job.encode(), digest_size=12).hexdigest()


class UploadedRow(NamedTuple):
    queue_id: int
    body: bytes
    properties: bytes


class UploadedChunk(NamedTuple):
    """One upload: rows of one topic, and their sender."""

    born_ms: Millis
    born_host: Host
    rows: bytes


class BatchPart(msgspec.Struct, frozen=True, kw_only=True):
    """The upload of one task attempt to one topic."""

    part: int
    attempt: int
    topic: str
    chunks: int
    rows: int
    crc: int
    """The crc32 of the rows of all chunks, one after the other."""


class BatchDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The commit of a batch: the uploads whose rows belong to it, in their order."""

    job: str
    batch: int
    parts: tuple[BatchPart, ...]

    @property
    def id(self) -> BatchId:
        return BatchId(self.job, self.batch)

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)


class BatchLayout(msgspec.Struct, frozen=True, kw_only=True):
    """The queues over which a sink distributes the rows of a batch. A repeated batch has the same layout.

    Otherwise a row whose first broker has committed it could go to another broker, too.
    """

    job: str
    batch: int
    topics: dict[str, dict[str, int]]
    """The number of queues at each broker, by topic and name of the broker."""


class BatchMark(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a record before rows of a batch. The records directly after it are these rows, by their keys.

    Fewer of them follow if the broker died meanwhile. A later mark continues after the last one that follows.
    """

    job: str
    batch: int
    rows: int
    """The number of rows of the whole batch."""
    first: int
    """The index of the first row after the mark."""
    keys: tuple[int, ...]
    """The hash of the unique key of each row after the mark."""


def encode_row(row: UploadedRow) -> bytes:
    return ROW.pack(row.queue_id, len(row.body), len(row.properties)) + row.body + row.properties


def row_ends(raw: bytes) -> list[int]:
    """Return the end of each row in `raw`, in bytes. Raises RowsWrong."""
    found, at = [], 0
    while at < len(raw):
        if at + ROW.size > len(raw):
            raise RowsWrong(f"{len(raw) - at} bytes remain at byte {at}, too few for a row")
        _, body_bytes, properties_bytes = ROW.unpack_from(raw, at)
        end = at + ROW.size + body_bytes + properties_bytes
        if body_bytes < 0 or end > len(raw):
            raise RowsWrong(f"the row at byte {at} has {body_bytes} and {properties_bytes} bytes")
        found.append(end)
        at = end
    return found


def row_at(raw: bytes, at: int, end: int) -> UploadedRow:
    """Return the row in raw[at:end], which `row_ends` has found."""
    queue_id, body_bytes, _ = ROW.unpack_from(raw, at)
    properties_at = at + ROW.size + body_bytes
    return UploadedRow(queue_id, raw[at + ROW.size : properties_at], raw[properties_at:end])


def rows_of(raw: bytes) -> list[UploadedRow]:
    """Return the rows in `raw`. Raises RowsWrong."""
    ends = row_ends(raw)
    return [row_at(raw, at, end) for at, end in zip([0, *ends], ends, strict=False)]


def encode_chunk(chunk: UploadedChunk) -> bytes:
    host = chunk.born_host
    return _CHUNK_HEAD.pack(chunk.born_ms, host.port, len(host.address)) + host.address + chunk.rows


def decode_chunk(raw: bytes) -> UploadedChunk:
    """Return the chunk in a file. Raises RowsWrong."""
    if len(raw) < _CHUNK_HEAD.size:
        raise RowsWrong(f"the file has only {len(raw)} bytes")
    born_ms, port, address_bytes = _CHUNK_HEAD.unpack_from(raw)
    rows_at = _CHUNK_HEAD.size + address_bytes
    return UploadedChunk(Millis(born_ms), Host(raw[_CHUNK_HEAD.size : rows_at], port), raw[rows_at:])


def key_hashes(unique_keys: Sequence[bytes]) -> tuple[int, ...]:
    """Return the hashes by which a mark knows its rows. The keys are UTF-8."""
    blake2b, integer = hashlib.blake2b, int.from_bytes
    return tuple([integer(blake2b(key, digest_size=6).digest(), "big") for key in unique_keys])


def encode_key(unique_key: str) -> bytes:
    return unique_key.encode("utf-8", "replace")
