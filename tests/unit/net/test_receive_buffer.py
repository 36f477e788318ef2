"""The receive buffer of a connection, as a table of reads, and against random cuts of a stream."""

from __future__ import annotations

import random

import pytest

from wheelmq.formats.wire.frame import FRAME_BYTES_MAX
from wheelmq.net.receive_buffer import ROOM_BYTES, SMALL_BYTES, ReceiveBuffer

SHARED_BYTES = 64 << 10
LARGE = 1 << 20


@pytest.fixture
def shared() -> memoryview:
    return memoryview(bytearray(SHARED_BYTES))


@pytest.fixture
def buffer(shared: memoryview) -> ReceiveBuffer:
    return ReceiveBuffer(shared, lambda change: None)


def length(size: int) -> bytes:
    """Return the length field of a frame with `size` further bytes."""
    return size.to_bytes(4, "big", signed=True)


def frame(size: int, fill: bytes = b"x") -> bytes:
    """Return a frame of `size` bytes, with its length field."""
    return length(size - 4) + (fill * size)[: size - 4]


BEGUN = frame(LARGE)[:20_000]
"""The beginning of a large frame."""


def read(buffer: ReceiveBuffer, data: bytes) -> memoryview:
    """Read `data` into the buffer, all at once. Returns the view to serve."""
    room = buffer.room()
    room[: len(data)] = data
    return buffer.add(len(data))


def read_and_take(buffer: ReceiveBuffer, data: bytes, taken: int) -> bytes:
    """Read `data`, and take some of the unserved bytes. Returns the bytes that were there to serve."""
    view = read(buffer, data)
    seen = bytes(view[: buffer.filled])
    buffer.keep(view, taken)
    return seen


@pytest.mark.parametrize(
    "reads",
    [
        # each read: its bytes, the bytes to serve, the bytes that the core takes of them
        [(b"abc", b"abc", 3)],
        [(b"abc", b"abc", 1), (b"d", b"bcd", 3)],
        [(b"abc", b"abc", 0), (b"d", b"abcd", 2), (b"", b"cd", 0), (b"e", b"cde", 3), (b"f", b"f", 1)],
        [(BEGUN, BEGUN, 0), (b"yz", BEGUN + b"yz", 20_002)],
        [(b"ab" + BEGUN, b"ab" + BEGUN, 2), (b"y", BEGUN + b"y", 0), (b"z", BEGUN + b"yz", 20_002)],
        [(BEGUN + b"ab", BEGUN + b"ab", 0), (b"cd", BEGUN + b"abcd", 20_000), (b"e", b"abcde", 5)],
        [(BEGUN * 3, BEGUN * 3, 0), (b"a", BEGUN * 3 + b"a", 20_000), (b"b", BEGUN * 2 + b"ab", 40_002)],
    ],
)
def test_unserved_bytes_come_again_before_those_of_the_next_read(
    buffer: ReceiveBuffer, reads: list[tuple[bytes, bytes, int]]
) -> None:
    total = 0
    for data, seen, taken in reads:
        assert read_and_take(buffer, data, taken) == seen
        assert buffer.filled == len(seen) - taken
        total += len(data)
        assert buffer.bytes_received == total
        if (kept := buffer.kept()) is not None:
            assert bytes(kept[: buffer.filled]) == seen[taken:]
        else:
            assert buffer.filled == 0


@pytest.mark.parametrize(
    ("data", "taken", "bytes_held", "is_large"),
    [
        (frame(100), 100, 0, False),
        (frame(100)[:1], 0, 1, False),
        (frame(100) + frame(100)[:60], 100, 60, False),
        (frame(LARGE)[:SMALL_BYTES], 0, SMALL_BYTES, False),
        (frame(LARGE)[: SMALL_BYTES + 1], 0, 2 * (SMALL_BYTES + 1), True),
        (frame(50_000)[:40_000], 0, 50_000, True),  # no more than the frame
        (frame(100) + frame(LARGE)[:20_000], 100, 40_000, True),
        (frame(100) * 400, 0, 40_000, True),  # whole frames that wait
        (length(-1) + bytes(20_000), 0, 20_004, True),
        (length(FRAME_BYTES_MAX + 1) + bytes(20_000), 0, 40_008, True),
    ],
)
def test_the_memory_of_a_rest(buffer: ReceiveBuffer, data: bytes, taken: int, bytes_held: int, is_large: bool) -> None:
    read_and_take(buffer, data, taken)
    assert (buffer.bytes_held, buffer.is_large) == (bytes_held, is_large)


@pytest.mark.parametrize(
    ("size", "reads", "bytes_held"),
    [
        (LARGE, [20_000], [40_000]),
        (LARGE, [20_000, 15_000], [40_000, 40_000]),
        (LARGE, [20_000, 15_904], [40_000, 40_000]),  # as much room as a read needs
        (LARGE, [20_000, 15_904, 1], [40_000, 40_000, 40_000]),
        (LARGE, [20_000, 15_904, 1, 1], [40_000, 40_000, 40_000, 71_810]),
        (LARGE, [20_000, 20_000, 40_000, 80_000, 1], [40_000, 40_000, 80_000, 160_000, 320_000]),
        (90_000, [20_000, 20_000, 40_000, 6_000], [40_000, 40_000, 80_000, 90_000]),
        (90_000, [20_000, 20_000, 40_000, 9_000, 1], [40_000, 40_000, 80_000, 90_000, 89_000 + ROOM_BYTES]),
    ],
)
def test_memory_grows_as_a_large_frame_arrives(
    buffer: ReceiveBuffer, size: int, reads: list[int], bytes_held: list[int]
) -> None:
    found, at, data = [], 0, frame(size)
    for count in reads:
        read_and_take(buffer, data[at : at + count], 0)
        at += count
        found.append(buffer.bytes_held)
        kept = buffer.kept()
        assert kept is not None and kept[: buffer.filled] == data[:at]
    assert found == bytes_held


def test_a_read_has_room(buffer: ReceiveBuffer) -> None:
    data, at = frame(LARGE), 0
    assert len(buffer.room()) == SHARED_BYTES
    while at < LARGE:
        room = buffer.room()
        assert len(room) >= ROOM_BYTES
        count = min(len(room), LARGE - at)
        read_and_take(buffer, data[at : at + count], 0)
        at += count


def test_memory_shrinks_when_the_frame_is_served(buffer: ReceiveBuffer) -> None:
    data = frame(40_000)
    read_and_take(buffer, data[:39_000], 0)
    read_and_take(buffer, data[39_000:] + b"ab", 40_000)
    assert (buffer.filled, buffer.bytes_held, buffer.is_large) == (2, 2, False)
    read_and_take(buffer, b"", 2)
    assert (buffer.filled, buffer.bytes_held, buffer.kept()) == (0, 0, None)
    assert len(buffer.room()) == SHARED_BYTES


@pytest.mark.parametrize("count", [0, 10, 20_000])
def test_a_cleared_buffer_is_empty(buffer: ReceiveBuffer, count: int) -> None:
    read_and_take(buffer, bytes(count), 0)
    buffer.clear()
    assert (buffer.filled, buffer.bytes_held, buffer.is_large, buffer.kept()) == (0, 0, False, None)
    assert read_and_take(buffer, b"ab", 2) == b"ab"


@pytest.mark.parametrize(
    ("data", "taken", "expected"),
    [
        (b"", 0, False),
        (frame(10)[:3], 0, False),
        (frame(10)[:4], 0, False),
        (frame(10)[:9], 0, False),
        (frame(10), 0, True),
        (frame(10), 10, False),
        (frame(10) + frame(10)[:9], 10, False),
        (frame(10) + frame(10), 10, True),
        (length(0), 0, True),
        (length(-1), 0, True),
        (length(FRAME_BYTES_MAX), 0, False),
        (length(FRAME_BYTES_MAX + 1), 0, True),
        (b"x" + length(-1)[:3], 1, False),
    ],
)
def test_a_whole_frame_is_recognised(buffer: ReceiveBuffer, data: bytes, taken: int, expected: bool) -> None:
    """Bytes of earlier reads follow in the shared memory. They do not count."""
    buffer.room()[:] = length(0) * (SHARED_BYTES // 4)
    assert buffer.holds_frame(read(buffer, data), taken) == expected


@pytest.mark.parametrize("seed", range(8))
def test_streams_arrive_unchanged_however_they_are_cut(shared: memoryview, seed: int) -> None:
    """Several connections share memory. A core takes whole frames, and sometimes fewer than there are."""
    chance = random.Random(seed)
    sizes = (4, 5, 100, 5000, SMALL_BYTES - 1, SMALL_BYTES, SMALL_BYTES + 1, 40_000, SHARED_BYTES, 300_000)
    streams = [b"".join(frame(chance.choice(sizes), fill) for _ in range(12)) for fill in (b"ab", b"cd", b"ef")]
    charged = 0

    def charge(change: int) -> None:
        nonlocal charged
        charged += change

    buffers = [ReceiveBuffer(shared, charge) for _ in streams]
    read_to, served = [0] * len(streams), [bytearray() for _ in streams]
    while any(len(done) < len(stream) for done, stream in zip(served, streams, strict=True)):
        number = chance.randrange(len(streams))
        stream, buffer = streams[number], buffers[number]
        room = buffer.room()
        count = min(len(room), len(stream) - read_to[number], chance.choice((1, 3, 900, 20_000, 300_000)))
        room[:count] = stream[read_to[number] : read_to[number] + count]
        read_to[number] += count
        view = buffer.add(count)
        taken = 0
        while buffer.holds_frame(view, taken) and chance.random() < 0.9:
            taken += 4 + int.from_bytes(view[taken : taken + 4], "big")
        served[number] += view[:taken]
        buffer.keep(view, taken)
        assert buffer.bytes_held <= max(2 * buffer.filled, buffer.filled + ROOM_BYTES)
        assert charged == sum(one.bytes_held for one in buffers)
    assert served == [bytearray(stream) for stream in streams]
    assert [one.bytes_held for one in buffers] == [0] * len(streams)
