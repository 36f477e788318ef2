"""A view of a store over the wire. It fetches the bytes that staging needs from the broker.

A file of the view is memory of the size of the broker's file, of which only fetched bytes are occupied. So staging and
its kernels run as over a mapped file. Bytes that were not fetched are zeros, which are neither a unit nor a record. A
read of them fails, and returns no wrong row.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from wheelmq.delay.timer.view import Positions, StoreSizes, StoreUnreadable
from wheelmq.formats.disk.timer import TIMER_SLOT, TIMER_UNIT
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.codes import ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.headers import PortionHeader
from wheelmq.formats.wire.portions import (
    CHAIN_HEAD,
    CHAINED,
    HOLE,
    PORTION_BYTES_MAX,
    RANGES_MAX,
    FileKind,
    Ranges,
    ranges_of,
)
from wheelmq.system.sparse import SparseFile

WHOLE_BYTES_MAX: Final = 256 << 10
"""A range of plain bytes is requested in pieces of this size, so that an answer holds several."""
assert WHOLE_BYTES_MAX <= PORTION_BYTES_MAX


class Segment(NamedTuple):
    body: bytes
    covered: int
    """Number of answered ranges, from the front."""
    crc: int
    log_start: int
    log_end: int
    """End of the last file of the broker's log."""


Ask = Callable[[FileKind, str, Ranges], Segment]
"""Requests ranges from the broker.

Raises FileNotFoundError for expired records, and StoreUnreadable. Also raises errors that mean that the broker was not
reached or has ended this turn.
"""


UNREADABLE: Final = (ResponseCode.PULL_OFFSET_MOVED, ResponseCode.ILLEGAL_OPERATION)
"""Answers that reject one portion. Other errors mean that the lease is over, or that the broker is overloaded."""


def segment_of(answer: Command) -> Segment:
    """Return the contents of an answer of success or of UNREADABLE. Raises FileNotFoundError, StoreUnreadable."""
    match answer.code:
        case ResponseCode.SUCCESS:
            try:
                said = headers.read(answer.ext, PortionHeader)
            except headers.HeaderError as error:
                raise StoreUnreadable(f"the header of an answer is invalid: {error}") from None
            return Segment(bytes(answer.body), said.count, said.crc, said.log_start, said.log_end)
        case ResponseCode.PULL_OFFSET_MOVED:
            raise FileNotFoundError(answer.remark)
    raise StoreUnreadable(answer.remark)


class FetchedFiles:
    """A sequence of files with the bytes that were fetched."""

    def __init__(self, file_bytes: int) -> None:
        self.file_bytes = file_bytes
        self.start = 0
        self.end = 1 << 62
        self._files: dict[int, SparseFile] = {}

    def file_at(self, position: int) -> SparseFile:
        start = position - position % self.file_bytes
        if start not in self._files:
            self._files[start] = SparseFile(self.file_bytes)
        return self._files[start]

    def read(self, position: int, size: int) -> memoryview:
        at = position % self.file_bytes
        assert at + size <= self.file_bytes, (position, size)
        return self.file_at(position).view[at : at + size]

    def put(self, position: int, data: memoryview) -> None:
        at = position % self.file_bytes
        self.file_at(position).view[at : at + len(data)] = data

    def forget(self) -> None:
        for file in self._files.values():
            file.forget()
        self._files.clear()


class WireView:
    """A view of a store that requests each range from the broker."""

    def __init__(self, ask: Ask, sizes: StoreSizes) -> None:
        self._ask = ask
        self._sizes = sizes
        self._queues: dict[str, FetchedFiles] = {}
        self._block_queues: dict[str, FetchedFiles] = {}
        self.log = FetchedFiles(sizes.log_file_bytes)
        self.timer_log = FetchedFiles(sizes.timer_log_file_bytes)
        self._wheel = FetchedFiles(sizes.timer_slots * 2 * TIMER_SLOT.size)
        self.slots: npt.NDArray[Any] = self._wheel.file_at(0).array.view(TIMER_SLOT.dtype)
        self.refresh()

    def queue(self, name: str) -> FetchedFiles:
        return self._queues.setdefault(name, FetchedFiles(self._sizes.queue_file_bytes))

    def block_queue(self, name: str) -> FetchedFiles:
        return self._block_queues.setdefault(name, FetchedFiles(self._sizes.block_queue_file_bytes))

    def refresh(self) -> None:
        segment = self._ask(FileKind.RECORD, "", ranges_of(np.empty(0, np.int64), np.empty(0, np.int64)))
        self.log.start, self.log.end = segment.log_start, segment.log_end

    def need(self, kind: FileKind, positions: Positions, sizes: Positions, name: str = "") -> None:
        """Fetch these ranges. Records that were fetched before are dropped when new ones are fetched.

        Raises FileNotFoundError for expired records, StoreUnreadable, and the errors of `ask`.
        """
        match kind:
            case FileKind.QUEUE:
                self._fetch_bytes(kind, name, self.queue(name), positions, sizes)
            case FileKind.BLOCK:
                self._fetch_bytes(kind, name, self.block_queue(name), positions, sizes)
            case FileKind.WHEEL:
                self._fetch_bytes(kind, name, self._wheel, positions, sizes)
            case FileKind.CHAIN:
                self._fetch_chains(positions)
            case FileKind.RECORD:
                self.log.forget()
                self._fetch_records(positions, sizes)

    def _fetch_bytes(
        self, kind: FileKind, name: str, files: FetchedFiles, positions: Positions, sizes: Positions
    ) -> None:
        wanted = ranges_of(*_pieces(positions, sizes, files.file_bytes))
        while len(wanted):
            segment = self._fetch(kind, name, wanted[:RANGES_MAX])
            body, at = memoryview(segment.body), 0
            _must_be_long(int(wanted["size"][: segment.covered].sum()), body)
            for position, size in wanted[: segment.covered].tolist():
                files.put(position, body[at : at + size])
                at += size
            wanted = wanted[segment.covered :]

    def _fetch_records(self, positions: Positions, sizes: Positions) -> None:
        at = positions % self.log.file_bytes
        if len(sizes) and (sizes.min() <= 0 or (at + sizes).max() > self.log.file_bytes):
            raise StoreUnreadable(
                "a unit of the timer queue points beyond the end of a log file, so it is not a record"
            )
        wanted = ranges_of(positions, sizes)
        while len(wanted):
            segment = self._fetch(FileKind.RECORD, "", wanted[:RANGES_MAX])
            self._put_records(wanted[: segment.covered], segment)
            wanted = wanted[segment.covered :]

    def _put_records(self, wanted: Ranges, segment: Segment) -> None:
        body = memoryview(segment.body)
        if len(body) < len(wanted) * HOLE.itemsize:
            raise StoreUnreadable(f"an answer of {len(body)} bytes is too short for {len(wanted)} records")
        holes = np.frombuffer(segment.body, HOLE, len(wanted))
        left = wanted["size"] - holes["size"]
        if ((holes["at"] < 0) | (holes["size"] < 0) | (holes["at"] > left)).any():
            raise StoreUnreadable("an answer omits more bytes of a record than it has")
        _must_be_long(int(left.sum()) + len(wanted) * HOLE.itemsize, body)
        at = len(wanted) * HOLE.itemsize
        for (position, size), (head, hole) in zip(wanted.tolist(), holes.tolist(), strict=True):
            head = head if hole else size
            self.log.put(position, body[at : at + head])
            if hole:
                self.log.put(position + head + hole, body[at + head : at + size - hole])
            at += size - hole

    def _fetch_chains(self, newest: Positions) -> None:
        wanted = ranges_of(newest, np.zeros(len(newest), np.int64))
        while len(wanted):
            segment = self._fetch(FileKind.CHAIN, "", wanted[:RANGES_MAX], least=0)
            body = segment.body
            if len(body) < CHAIN_HEAD.itemsize or (len(body) - CHAIN_HEAD.itemsize) % CHAINED.itemsize:
                raise StoreUnreadable(f"an answer of {len(body)} bytes is not a chain")
            head = np.frombuffer(body, CHAIN_HEAD, 1)
            whole, next_position = int(head["whole"][0]), int(head["next"][0])
            if whole != segment.covered or (whole == 0 and next_position < 0):
                raise StoreUnreadable(f"an answer has {whole} chains, but its header says {segment.covered}")
            for position, unit in np.frombuffer(body, CHAINED, offset=CHAIN_HEAD.itemsize).tolist():
                if position % self.timer_log.file_bytes + TIMER_UNIT.size > self.timer_log.file_bytes:
                    raise StoreUnreadable(f"a timer log unit at {position} crosses the end of a file")
                self.timer_log.put(position, memoryview(unit))
            wanted = wanted[whole:].copy()
            if next_position >= 0:
                wanted["position"][0] = next_position

    def _fetch(self, kind: FileKind, name: str, wanted: Ranges, least: int = 1) -> Segment:
        """Return the broker's checked answer. Raises StoreUnreadable, and the errors of `ask`."""
        segment = self._ask(kind, name, wanted)
        if zlib.crc32(segment.body) != segment.crc:
            raise StoreUnreadable(f"{len(segment.body)} bytes of {kind} do not have the crc of their header")
        if not least <= segment.covered <= len(wanted):
            raise StoreUnreadable(f"{segment.covered} of {len(wanted)} ranges of {kind} arrived")
        return segment


def _pieces(positions: Positions, sizes: Positions, file_bytes: int) -> tuple[Positions, Positions]:
    """Split ranges at file ends and to at most WHOLE_BYTES_MAX bytes each. Joins neighbouring ranges first."""
    starts: list[int] = []
    stops: list[int] = []
    for start, size in zip(positions.tolist(), sizes.tolist(), strict=True):
        if stops and stops[-1] == start and start % file_bytes:
            stops[-1] += size
        elif size:
            starts.append(start)
            stops.append(start + size)
    found: list[tuple[int, int]] = []
    for start, stop in zip(starts, stops, strict=True):
        while start < stop:
            size = min(stop - start, file_bytes - start % file_bytes, WHOLE_BYTES_MAX)
            found.append((start, size))
            start += size
    array = np.array(found, np.int64).reshape(-1, 2)
    return array[:, 0], array[:, 1]


def _must_be_long(expected_bytes: int, body: memoryview) -> None:
    if len(body) != expected_bytes:
        raise StoreUnreadable(f"received {len(body)} bytes instead of {expected_bytes}")
