"""A view of a store over the wire. It fetches the bytes that staging needs from the broker.

The view keeps what it fetched in arrays of their own, whatever the size of the broker's files. A read of bytes that
were not fetched raises StoreUnreadable. The part of a record that the broker omits, its body, is zeros. The system
gives no memory to whole pages of them.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from wheelmq.delay.timer.view import NO_RECORDS, LoadedRecords, Positions, StoreSizes, StoreUnreadable
from wheelmq.formats.disk.block import BLOCK_UNIT
from wheelmq.formats.disk.queue_unit import QUEUE_UNIT
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


class FetchedBytes:
    """The fetched ranges of a sequence of files."""

    def __init__(self, file_bytes: int) -> None:
        self.file_bytes = file_bytes
        self.start = 0
        self.end = 1 << 62
        self.replace(np.empty(0, np.int64), np.empty(0, np.int64), b"")

    def replace(self, positions: Positions, sizes: Positions, data: bytes) -> None:
        """Keep the ranges, which are one after another in `data`, in place of earlier ones."""
        self._data = data
        self._bytes: npt.NDArray[np.uint8] = np.frombuffer(data, np.uint8)
        is_first = np.ones(len(positions), bool)  # of neighbours, which are one run
        is_first[1:] = positions[1:] != positions[:-1] + sizes[:-1]
        firsts = np.flatnonzero(is_first)
        lengths = np.add.reduceat(sizes, firsts) if len(firsts) else sizes
        at = (np.cumsum(sizes) - sizes)[firsts]
        order = np.argsort(positions[firsts], kind="stable")
        self._runs = positions[firsts][order], lengths[order], at[order]

    def read(self, position: int, size: int) -> memoryview:
        at = int(self._places(np.array([position]), size)[0])
        return memoryview(self._data)[at : at + size]

    def gather(self, positions: Positions, size: int) -> npt.NDArray[np.uint8]:
        """Return the `size` bytes at each position, as rows. Raises StoreUnreadable."""
        found: npt.NDArray[np.uint8] = self._bytes[self._places(positions, size)[:, None] + np.arange(size)]
        return found

    def _places(self, positions: Positions, size: int) -> Positions:
        """Return where the bytes at `positions` begin in the data. Raises StoreUnreadable."""
        starts, lengths, at = self._runs
        run = np.searchsorted(starts, positions, "right") - 1
        is_there = run >= 0
        is_there[is_there] = (positions + size)[is_there] <= (starts + lengths)[run[is_there]]
        if not is_there.all():
            raise StoreUnreadable(f"{size} bytes at {positions[~is_there][0]} were not fetched")
        places: Positions = at[run] + positions - starts[run]
        return places


class FetchedRecords:
    """The records of the last fetch: the log of a view."""

    def __init__(self, file_bytes: int) -> None:
        self.file_bytes = file_bytes
        self.start = 0
        self.end = 1 << 62
        self.reserve(np.empty(0, np.int64), np.empty(0, np.int64))

    def reserve(self, positions: Positions, sizes: Positions) -> None:
        """Make room for these records, all of them zeros, in place of earlier ones."""
        self._array = np.zeros(int(sizes.sum()), np.uint8)
        self._order = np.argsort(positions, kind="stable")
        self._positions = positions[self._order]
        self.starts: Positions = np.cumsum(sizes) - sizes
        """Where the records begin in `view`, in the order of the reservation."""
        self.view = self._array.data

    def records(self, positions: Positions) -> LoadedRecords:
        """Return the first of these records that were fetched."""
        if not len(self._positions):
            return NO_RECORDS
        found = np.minimum(np.searchsorted(self._positions, positions), len(self._positions) - 1)
        is_missing = np.flatnonzero(self._positions[found] != positions)
        count = int(is_missing[0]) if len(is_missing) else len(positions)
        return LoadedRecords(self._array, self.starts[self._order[found[:count]]])

    def read(self, position: int, size: int) -> memoryview:
        starts = self.records(np.array([position])).starts
        if not len(starts) or int(starts[0]) + size > len(self._array):
            raise StoreUnreadable(f"{size} bytes at log position {position} were not fetched")
        return self.view[int(starts[0]) : int(starts[0]) + size]


class FetchedChains:
    """The timer log units of the last fetch."""

    def __init__(self) -> None:
        self.replace(np.zeros(0, CHAINED))

    def replace(self, rows: npt.NDArray[Any]) -> None:
        """Keep these units, an array of CHAINED, in place of earlier ones."""
        self._places = {position: i for i, position in enumerate(rows["position"].tolist())}
        self._units = np.ascontiguousarray(rows["unit"]).view(TIMER_UNIT.dtype)
        self._links = list(zip(self._units["size"].tolist(), self._units["previous_position"].tolist(), strict=True))

    def chain(self, position: int, log_end: int) -> Positions:
        """Return the positions below `log_end` of a chain, newest first. Raises StoreUnreadable."""
        found = []
        while position >= 0:
            if position not in self._places:
                raise StoreUnreadable(f"the unit of a chain at timer log position {position} was not fetched")
            size, previous = self._links[self._places[position]]
            if size != TIMER_UNIT.size or not -1 <= previous < position:
                raise StoreUnreadable(f"the chain through timer log position {position} is broken")
            if position < log_end:
                found.append(position)
            position = previous
        return np.array(found, np.int64)

    def units(self, positions: Positions) -> npt.NDArray[Any]:
        """Return the units at `positions`, in their order. Raises StoreUnreadable."""
        try:
            chosen = [self._places[position] for position in positions.tolist()]
        except KeyError as error:
            raise StoreUnreadable(f"the unit at timer log position {error} was not fetched") from None
        found: npt.NDArray[Any] = self._units[chosen]
        return found


class WireView:
    """A view of a store that requests each range from the broker."""

    def __init__(self, ask: Ask, sizes: StoreSizes) -> None:
        self._ask = ask
        self._sizes = sizes
        self._queues: dict[str, FetchedBytes] = {}
        self._block_queues: dict[str, FetchedBytes] = {}
        self.log = FetchedRecords(sizes.log_file_bytes)
        self._chains = FetchedChains()
        self.slot_count = 2 * sizes.timer_slots
        self._wheel = FetchedBytes(self.slot_count * TIMER_SLOT.size)
        self.refresh()

    def queue(self, name: str) -> FetchedBytes:
        return self._queues.setdefault(name, FetchedBytes(self._sizes.queue_file_bytes))

    def block_queue(self, name: str) -> FetchedBytes:
        return self._block_queues.setdefault(name, FetchedBytes(self._sizes.block_queue_file_bytes))

    def records(self, positions: Positions) -> LoadedRecords:
        return self.log.records(positions)

    def slots(self, places: Positions) -> npt.NDArray[Any]:
        return self._wheel.gather(places * TIMER_SLOT.size, TIMER_SLOT.size).view(TIMER_SLOT.dtype)[:, 0]

    def chain(self, position: int, log_end: int) -> Positions:
        return self._chains.chain(position, log_end)

    def timer_units(self, positions: Positions) -> npt.NDArray[Any]:
        return self._chains.units(positions)

    def refresh(self) -> None:
        segment = self._ask(FileKind.RECORD, "", ranges_of(np.empty(0, np.int64), np.empty(0, np.int64)))
        self.log.start, self.log.end = segment.log_start, segment.log_end

    def need(self, kind: FileKind, positions: Positions, sizes: Positions, name: str = "") -> None:
        """Fetch these ranges. They replace the earlier ones of this kind and name.

        Raises FileNotFoundError for expired records, StoreUnreadable, and the errors of `ask`.
        """
        match kind:
            case FileKind.QUEUE:
                self._fetch_bytes(kind, name, self.queue(name), positions, sizes, QUEUE_UNIT.size)
            case FileKind.BLOCK:
                self._fetch_bytes(kind, name, self.block_queue(name), positions, sizes, BLOCK_UNIT.size)
            case FileKind.WHEEL:
                self._fetch_bytes(kind, name, self._wheel, positions, sizes, TIMER_SLOT.size)
            case FileKind.CHAIN:
                self._fetch_chains(positions)
            case FileKind.RECORD:
                self._fetch_records(positions, sizes)

    def _fetch_bytes(
        self, kind: FileKind, name: str, files: FetchedBytes, positions: Positions, sizes: Positions, unit_bytes: int
    ) -> None:
        pieces = wanted = ranges_of(*_pieces(positions, sizes, files.file_bytes, unit_bytes))
        bodies = []
        while len(wanted):
            segment = self._fetch(kind, name, wanted[:RANGES_MAX])
            _must_be_long(int(wanted["size"][: segment.covered].sum()), memoryview(segment.body))
            bodies.append(segment.body)
            wanted = wanted[segment.covered :]
        files.replace(pieces["position"].astype(np.int64), pieces["size"].astype(np.int64), b"".join(bodies))

    def _fetch_records(self, positions: Positions, sizes: Positions) -> None:
        at = positions % self.log.file_bytes
        if len(sizes) and (sizes.min() <= 0 or (at + sizes).max() > self.log.file_bytes):
            raise StoreUnreadable(
                "a unit of the timer queue points beyond the end of a log file, so it is not a record"
            )
        wanted = ranges_of(positions, sizes)
        self.log.reserve(positions.astype(np.int64), sizes.astype(np.int64))
        done = 0
        while done < len(wanted):
            segment = self._fetch(FileKind.RECORD, "", wanted[done : done + RANGES_MAX])
            covered = slice(done, done + segment.covered)
            self._put_records(wanted[covered], self.log.starts[covered], segment)
            done = covered.stop

    def _put_records(self, wanted: Ranges, starts: Positions, segment: Segment) -> None:
        body = memoryview(segment.body)
        if len(body) < len(wanted) * HOLE.itemsize:
            raise StoreUnreadable(f"an answer of {len(body)} bytes is too short for {len(wanted)} records")
        holes = np.frombuffer(segment.body, HOLE, len(wanted))
        left = wanted["size"] - holes["size"]
        if ((holes["at"] < 0) | (holes["size"] < 0) | (holes["at"] > left)).any():
            raise StoreUnreadable("an answer omits more bytes of a record than it has")
        _must_be_long(int(left.sum()) + len(wanted) * HOLE.itemsize, body)
        at = len(wanted) * HOLE.itemsize
        for start, size, (head, hole) in zip(starts.tolist(), wanted["size"].tolist(), holes.tolist(), strict=True):
            head = head if hole else size
            self.log.view[start : start + head] = body[at : at + head]
            if hole:
                self.log.view[start + head + hole : start + size] = body[at + head : at + size - hole]
            at += size - hole

    def _fetch_chains(self, newest: Positions) -> None:
        wanted = ranges_of(newest, np.zeros(len(newest), np.int64))
        rows = [np.zeros(0, CHAINED)]
        while len(wanted):
            segment = self._fetch(FileKind.CHAIN, "", wanted[:RANGES_MAX], least=0)
            body = segment.body
            if len(body) < CHAIN_HEAD.itemsize or (len(body) - CHAIN_HEAD.itemsize) % CHAINED.itemsize:
                raise StoreUnreadable(f"an answer of {len(body)} bytes is not a chain")
            head = np.frombuffer(body, CHAIN_HEAD, 1)
            whole, next_position = int(head["whole"][0]), int(head["next"][0])
            if whole != segment.covered or (whole == 0 and next_position < 0):
                raise StoreUnreadable(f"an answer has {whole} chains, but its header says {segment.covered}")
            rows.append(np.frombuffer(body, CHAINED, offset=CHAIN_HEAD.itemsize))
            wanted = wanted[whole:].copy()
            if next_position >= 0:
                wanted["position"][0] = next_position
        self._chains.replace(np.concatenate(rows))

    def _fetch(self, kind: FileKind, name: str, wanted: Ranges, least: int = 1) -> Segment:
        """Return the broker's checked answer. Raises StoreUnreadable, and the errors of `ask`."""
        segment = self._ask(kind, name, wanted)
        if zlib.crc32(segment.body) != segment.crc:
            raise StoreUnreadable(f"{len(segment.body)} bytes of {kind} do not have the crc of their header")
        if not least <= segment.covered <= len(wanted):
            raise StoreUnreadable(f"{segment.covered} of {len(wanted)} ranges of {kind} arrived")
        return segment


def _pieces(positions: Positions, sizes: Positions, file_bytes: int, unit_bytes: int) -> tuple[Positions, Positions]:
    """Split ranges at file ends, and into whole units of at most WHOLE_BYTES_MAX bytes. Joins neighbours first."""
    piece_bytes = WHOLE_BYTES_MAX // unit_bytes * unit_bytes
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
            size = min(stop - start, file_bytes - start % file_bytes, piece_bytes)
            found.append((start, size))
            start += size
    array = np.array(found, np.int64).reshape(-1, 2)
    return array[:, 0], array[:, 1]


def _must_be_long(expected_bytes: int, body: memoryview) -> None:
    if len(body) != expected_bytes:
        raise StoreUnreadable(f"received {len(body)} bytes instead of {expected_bytes}")
