"""Bits by origin. They show which parked messages are settled (done), and which are armed.

Each stream has segments of 65,536 bits. A segment is freed when all its bits and all bits below are 1.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from wheelmq.formats.disk.done_bits import StreamBits
from wheelmq.formats.disk.origin import (
    INDEX_BITS,
    INDEX_MASK,
    NO_ORIGIN,
    Origin,
    Stream,
    by_stream,
    origin_index,
    origin_stream,
)
from wheelmq.formats.kernels import bits as kernel
from wheelmq.formats.kernels import jit

SEGMENT_BITS: Final = 1 << 16

FEW: Final = 16
"""At most this number of bits are set one by one: an operation on arrays costs as much as about twenty on numbers."""

Indices = npt.NDArray[np.int64]
Origins = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_ZEROS: Final = np.zeros(SEGMENT_BITS >> 3, np.uint8)


class IndexBits:
    """One bit for each index. Every index below `floor` is 1."""

    def __init__(self) -> None:
        self._segments: dict[int, npt.NDArray[np.uint8]] = {}
        self._ones: dict[int, int] = {}
        self.floor = 0

    def __contains__(self, index: int) -> bool:
        if index < self.floor:
            return True
        segment = self._segments.get(index // SEGMENT_BITS)
        at = index % SEGMENT_BITS
        return segment is not None and bool(segment[at >> 3] >> (at & 7) & 1)

    def add(self, index: int) -> bool:
        """Set one bit. Returns whether it was 0."""
        if index in self:
            return False
        number, at = divmod(index, SEGMENT_BITS)
        self._segment(number)[at >> 3] |= 1 << (at & 7)
        self._ones[number] += 1
        self._give_back()
        return True

    def get(self, indices: Indices) -> Flags:
        quick = self.get_quick(indices, 0)
        if quick is not None:
            return quick
        found = indices < self.floor
        for number, chosen in _by_segment(indices):
            segment = self._segments.get(number)
            if segment is not None:
                at = indices[chosen] % SEGMENT_BITS
                found[chosen] |= (segment[at >> 3] >> (at & 7).astype(np.uint8) & 1).astype(np.bool_)
        return found

    def get_quick(self, indices: Indices, first: int) -> Flags | None:
        """Return the bits of `indices`, counted from `first`, if one segment has them and kernels are on; else None."""
        if not jit.available():
            return None
        found: Flags = np.empty(len(indices), np.bool_)
        number = (int(indices[-1]) - first) // SEGMENT_BITS if len(indices) else 0
        segment = self._segments.get(number, _ZEROS)
        indices = np.ascontiguousarray(indices)
        is_one = kernel.get(segment, number * SEGMENT_BITS, self.floor, first, indices, found)
        return found if is_one else None

    def between(self, start: int, stop: int) -> Flags:
        found: Flags = np.zeros(max(0, stop - start), np.bool_)
        index = start
        while index < stop:
            number, at = divmod(index, SEGMENT_BITS)
            count = min(SEGMENT_BITS - at, stop - index)
            segment = self._segments.get(number)
            if segment is not None:
                bits = np.unpackbits(segment[at >> 3 : (at + count + 7) >> 3], bitorder="little")
                found[index - start : index - start + count] = bits[at & 7 : (at & 7) + count]
            index += count
        found[: max(0, self.floor - start)] = True
        return found

    def ones(self) -> Indices:
        found = [np.arange(self.floor)]
        for number, segment in sorted(self._segments.items()):
            at = number * SEGMENT_BITS + np.flatnonzero(np.unpackbits(segment, bitorder="little"))
            found.append(at[at >= self.floor])
        return np.concatenate(found)

    def end(self) -> int:
        """Return the index after the last bit that is 1."""
        for number in sorted(self._segments, reverse=True):
            found = np.flatnonzero(self._segments[number])
            if len(found):
                byte = int(found[-1])
                return max(
                    self.floor, number * SEGMENT_BITS + 8 * byte + int(self._segments[number][byte]).bit_length()
                )
        return self.floor

    def first_unset(self, stop: int) -> int:
        """Return the least index whose bit is 0, or `stop` when none below it is 0."""
        index = self.floor
        while index < stop:
            number, at = divmod(index, SEGMENT_BITS)
            segment = self._segments.get(number)
            if segment is None:
                return index
            free = np.flatnonzero(segment[at >> 3 :] != 0xFF)
            if len(free):
                byte = (at >> 3) + int(free[0])
                clear = ~int(segment[byte]) & 0xFF
                return min(stop, number * SEGMENT_BITS + 8 * byte + (clear & -clear).bit_length() - 1)
            index = (number + 1) * SEGMENT_BITS
        return stop

    def count_unset(self, stop: int) -> int:
        """Return the number of bits below `stop` that are 0. No bit from `stop` on may be 1."""
        if stop <= self.floor:
            return 0
        number = self.floor // SEGMENT_BITS
        below = self.floor - number * SEGMENT_BITS if number in self._segments else 0
        return max(0, stop - self.floor - (sum(self._ones.values()) - below))

    def update(self, indices: Indices) -> None:
        if len(indices) <= FEW:
            for index in indices.tolist():
                self.add(index)
            return
        if self.update_quick(indices, 0):
            return
        indices = indices[indices >= self.floor]
        for number, chosen in _by_segment(indices):
            self._set(number, indices[chosen] % SEGMENT_BITS)

    def update_quick(self, indices: Indices, first: int) -> bool:
        """Set bits of `indices` from `first`. False, with nothing changed, for several segments or without kernels."""
        number = (int(indices[-1]) - first) // SEGMENT_BITS
        if not jit.available() or (number + 1) * SEGMENT_BITS <= self.floor:
            return False
        segment = self._segment(number)
        indices = np.ascontiguousarray(indices)
        fresh = kernel.put(segment, number * SEGMENT_BITS, self.floor, first, indices)
        if fresh < 0:
            return False
        self._ones[number] += int(fresh)
        self._give_back()
        return True

    def raise_floor(self, floor: int) -> None:
        if floor <= self.floor:
            return
        self.floor = floor
        for number in [number for number in self._segments if (number + 1) * SEGMENT_BITS <= self.floor]:
            del self._segments[number], self._ones[number]
        number = self.floor // SEGMENT_BITS
        if number in self._segments:
            self._fill_below_floor(number)
            self._give_back()

    def copy(self) -> IndexBits:
        made = IndexBits()
        made.floor = self.floor
        made._segments = {number: segment.copy() for number, segment in self._segments.items()}
        made._ones = dict(self._ones)
        return made

    def packed(self, end: int) -> tuple[int, bytes]:
        """Return the first bit's index in the floor's segment, and the bits from it to `end`, the lowest one first."""
        first = self.floor // SEGMENT_BITS
        numbers = range(first, -(-end // SEGMENT_BITS))
        joined = np.concatenate([_ZEROS[:0], *(self._segments.get(number, _ZEROS) for number in numbers)])
        _fill(joined, self.floor - first * SEGMENT_BITS)
        return first * SEGMENT_BITS, joined[: -(-(end - first * SEGMENT_BITS) // 8)].tobytes()

    def add_packed(self, first: int, packed: bytes) -> None:
        """Set every bit below `first`, the start of a segment, and the bits of `packed` from there on."""
        assert first % SEGMENT_BITS == 0, first
        self.raise_floor(first)
        found = np.frombuffer(packed, np.uint8)
        for at in range(0, len(found), SEGMENT_BITS >> 3):
            part = found[at : at + (SEGMENT_BITS >> 3)]
            number = first // SEGMENT_BITS + at // (SEGMENT_BITS >> 3)
            if (number + 1) * SEGMENT_BITS > self.floor:
                segment = self._segment(number)
                segment[: len(part)] |= part
                self._ones[number] = _count_ones(segment)
        self._give_back()

    def _set(self, number: int, at: Indices) -> None:
        segment = self._segment(number)
        np.bitwise_or.at(segment, at >> 3, np.left_shift(1, at & 7).astype(np.uint8))
        self._ones[number] = _count_ones(segment)
        self._give_back()

    def _segment(self, number: int) -> npt.NDArray[np.uint8]:
        segment = self._segments.get(number)
        if segment is None:
            segment = self._segments[number] = np.zeros(SEGMENT_BITS >> 3, np.uint8)
            self._fill_below_floor(number)
        return segment

    def _fill_below_floor(self, number: int) -> None:
        """Set the bits of a segment that are below the floor, so that the segment can become full."""
        segment = self._segments[number]
        _fill(segment, min(max(self.floor - number * SEGMENT_BITS, 0), SEGMENT_BITS))
        self._ones[number] = _count_ones(segment)

    def _give_back(self) -> None:
        number = self.floor // SEGMENT_BITS
        while self._ones.get(number) == SEGMENT_BITS:
            del self._segments[number], self._ones[number]
            number += 1
            self.floor = number * SEGMENT_BITS


_ALL: Final = IndexBits()
"""The bits of a stream that has ended."""
_ALL.raise_floor(1 << INDEX_BITS)


class DoneBits:
    """One bit for each origin, by stream and index. The bit of NO_ORIGIN is 1.

    The origins of one call are mostly in one stream and near each other, so this case is tried first.
    """

    def __init__(self) -> None:
        self._streams: dict[Stream, IndexBits] = {}

    def of(self, stream: Stream) -> IndexBits:
        bits = self._streams.get(stream)
        if bits is None:
            bits = self._streams[stream] = IndexBits()
        return bits

    def streams(self) -> list[Stream]:
        return list(self._streams)

    def end_stream(self, stream: Stream) -> None:
        """Set every bit of a stream to 1 and free their memory."""
        self._streams[stream] = _ALL

    def has_ended(self, stream: Stream) -> bool:
        return self._streams.get(stream) is _ALL

    def forget(self, stream: Stream) -> None:
        """Set every bit of a stream to 0, as if the stream had never been used."""
        self._streams.pop(stream, None)

    def __contains__(self, origin: Origin) -> bool:
        bits = self._streams.get(origin_stream(origin))
        return origin == NO_ORIGIN if bits is None else origin_index(origin) in bits

    def add(self, origin: Origin) -> bool:
        return origin != NO_ORIGIN and self.of(origin_stream(origin)).add(origin_index(origin))

    def get(self, origins: Origins) -> Flags:
        bits = self._streams.get(origin_stream(Origin(int(origins[-1])))) if len(origins) else None
        if bits is not None:
            quick = bits.get_quick(origins, int(origins[-1]) & ~INDEX_MASK)
            if quick is not None:
                return quick
        found: Flags = origins == NO_ORIGIN
        for stream, mine in by_stream(origins):
            if stream in self._streams:
                found[mine] = self._streams[stream].get(origins[mine] & INDEX_MASK)
        return found

    def update(self, origins: Origins) -> None:
        if len(origins) <= FEW:
            for origin in origins.tolist():
                self.add(Origin(origin))
            return
        last = Origin(int(origins[-1]))
        if last != NO_ORIGIN and self.of(origin_stream(last)).update_quick(origins, last & ~INDEX_MASK):
            return
        for stream, mine in by_stream(origins):
            if stream:
                self.of(stream).update(origins[mine] & INDEX_MASK)

    def packed(self, ends: Mapping[Stream, int]) -> tuple[StreamBits, ...]:
        """Return the bits of the streams in `ends`, each up to its end."""
        found = []
        for stream, end in ends.items():
            one = self.of(stream)
            first, bits = one.packed(end) if one is not _ALL else (0, b"")
            assert one is not _ALL or end == 0, stream
            found.append(StreamBits(stream, first, max(first, end), bits))
        return tuple(found)

    def add_packed(self, streams: Iterable[StreamBits]) -> None:
        for one in streams:
            self.of(one.stream).add_packed(one.first_index, one.bits)

    def restore(self, saved: DoneBits) -> None:
        """Set all bits to those of `saved`, an earlier copy that nothing else uses."""
        self._streams = saved._streams

    def copy(self) -> DoneBits:
        made = DoneBits()
        made._streams = {stream: bits if bits is _ALL else bits.copy() for stream, bits in self._streams.items()}
        return made


def _fill(segment: npt.NDArray[np.uint8], count: int) -> None:
    segment[: count >> 3] = 0xFF
    if count & 7 and count >> 3 < len(segment):
        segment[count >> 3] |= (1 << (count & 7)) - 1


def _count_ones(segment: npt.NDArray[np.uint8]) -> int:
    return int(np.bitwise_count(segment.view(np.uint64)).sum(dtype=np.int64))


def _by_segment(indices: Indices) -> list[tuple[int, slice | npt.NDArray[np.intp]]]:
    """Return the segments of `indices`, each with the places of its own indices."""
    if not len(indices):
        return []
    numbers = indices // SEGMENT_BITS
    order = None
    if (numbers[1:] < numbers[:-1]).any():
        order = np.argsort(numbers, kind="stable")
        numbers = numbers[order]
    borders = [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), len(numbers)]
    places = (slice(first, stop) for first, stop in itertools.pairwise(borders))
    return [(int(numbers[place.start]), place if order is None else order[place]) for place in places]
