"""A view over the wire needs memory for what it reads, not for the files of the store."""

from __future__ import annotations

import resource
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import numpy as np
import psutil
import pytest

from wheelmq.broker.store_sizes import store_sizes
from wheelmq.delay.timer import staging, wire_view
from wheelmq.delay.timer.portions import OnDisk, read_portion
from wheelmq.delay.timer.view import TIMER_QUEUE, StoreUnreadable, StoreView
from wheelmq.delay.timer.wire_view import FetchedBytes, FetchedChains, FetchedRecords, Segment, WireView
from wheelmq.formats.disk.queue_unit import QUEUE_UNIT
from wheelmq.formats.disk.timer import TIMER_UNIT
from wheelmq.formats.wire.portions import CHAINED, HOLE, FileKind, Ranges, ranges_of
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel

GIB = 1 << 30
COUNT = 40
BODY = bytes(5_000)
ROOM_BYTES = 256 << 20
"""Address space that the view may take. One file of the log has four times as much."""
POSITION_AT = 28
"""Byte position of the log position in a record (formats.disk.message)."""


@contextmanager
def limited_address_space() -> Iterator[None]:
    """Limit the address space, as `spark.executor.pyspark.memory` does, to what this process has and ROOM_BYTES."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + ROOM_BYTES, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


class SpreadStore:
    """The store of a harness, as if each parked record were in a log file of its own, of 1 GiB."""

    def __init__(self, harness: BrokerHarness) -> None:
        chosen = harness.broker.parts.settings
        self._files = StoreView(chosen.store.path, store_sizes(chosen))
        self._on_disk = OnDisk(self._files.log.end, 0)
        units = np.frombuffer(self._files.queue(TIMER_QUEUE).read(0, COUNT * QUEUE_UNIT.size), QUEUE_UNIT.dtype)
        self._numbers = {position: i for i, position in enumerate(units["position"].tolist())}
        self.sizes = msgspec.structs.replace(store_sizes(chosen), log_file_bytes=GIB)

    def _spread(self, position: int) -> int:
        return position + self._numbers[position] * GIB

    def ask(self, kind: FileKind, name: str, ranges: Ranges) -> Segment:
        ranges = ranges_of(ranges["position"] % GIB, ranges["size"])
        found = read_portion(self._files, kind, name, ranges, self._on_disk)
        body = bytearray(found.body)
        if kind is FileKind.QUEUE:
            units = np.frombuffer(body, QUEUE_UNIT.dtype)
            units["position"] = [self._spread(position) for position in units["position"].tolist()]
        if kind is FileKind.RECORD:
            at = found.covered * HOLE.itemsize
            holes = np.frombuffer(bytes(body[:at]), HOLE)["size"].tolist()
            for (position, size), hole in zip(ranges.tolist(), holes, strict=False):
                body[at + POSITION_AT : at + POSITION_AT + 8] = self._spread(position).to_bytes(8, "big")
                at += size - hole
        return Segment(bytes(body), found.covered, zlib.crc32(body), 0, COUNT * GIB)

    def read(self) -> staging.StagedRows:
        return staging.read_index(WireView(self.ask, self.sizes), 0, COUNT, write_ms=0, turn=1)


@pytest.fixture
def store(harness: BrokerHarness) -> SpreadStore:
    for i in range(COUNT):
        harness.send("T", BODY, delay_ms=9000 + i)
    harness.advance(4000, PipelineModel(harness).work, 500)
    assert harness.broker.parts.timer.indexed_to == COUNT
    return SpreadStore(harness)


def check_limited(store: SpreadStore, harness: BrokerHarness) -> None:
    expected = store.read()  # kernels and modules are loaded before the limit
    chosen = harness.broker.parts.settings
    files = staging.read_index(StoreView(chosen.store.path, store_sizes(chosen)), 0, COUNT, write_ms=0, turn=1)
    assert (expected["position"] % GIB).tolist() == files["position"].tolist()
    assert expected["due_ms"].tolist() == files["due_ms"].tolist()
    with limited_address_space():
        rows = store.read()
    assert np.array_equal(rows, expected)


def test_records_in_forty_log_files_fit_a_small_address_space(store: SpreadStore, harness: BrokerHarness) -> None:
    check_limited(store, harness)


@pytest.mark.kernels
def test_kernels_read_them_too(store: SpreadStore, harness: BrokerHarness) -> None:
    check_limited(store, harness)


def test_large_records_are_fetched_in_several_requests(store: SpreadStore, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = store.read()
    monkeypatch.setattr(staging, "RECORD_BYTES_AT_ONCE", 3 * len(BODY))
    asked: list[int] = []
    view = WireView(store.ask, store.sizes)
    reserve = view.log.reserve

    def count(positions: np.ndarray, sizes: np.ndarray) -> None:  # type: ignore[type-arg]
        asked.append(int(sizes.sum()))
        reserve(positions, sizes)

    monkeypatch.setattr(view.log, "reserve", count)
    assert np.array_equal(staging.read_index(view, 0, COUNT, write_ms=0, turn=1), expected)
    assert len(asked) == COUNT // 2 and max(asked) <= 3 * len(BODY)


def test_ranges_are_split_into_whole_units(store: SpreadStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker rejects a piece that ends within a unit."""
    expected = store.read()
    monkeypatch.setattr(wire_view, "WHOLE_BYTES_MAX", 7 * QUEUE_UNIT.size + 3)
    assert np.array_equal(store.read(), expected)


class TestFetched:
    def test_bytes_are_read_across_neighbouring_ranges(self) -> None:
        files = FetchedBytes(1000)
        files.replace(np.array([990, 1000, 40]), np.array([10, 5, 3]), b"abcdefghijklmnoXYZ")
        assert bytes(files.read(985 + 10, 8)) == b"fghijklm"
        assert files.gather(np.array([41, 1003, 990]), 2).tobytes() == b"YZnoab"

    @pytest.mark.parametrize("position", [0, 39, 42, 500, 989, 1004, 2000])
    def test_bytes_that_were_not_fetched_raise(self, position: int) -> None:
        files = FetchedBytes(1000)
        with pytest.raises(StoreUnreadable, match="not fetched"):
            files.read(position, 2)
        files.replace(np.array([990, 1000, 40]), np.array([10, 5, 3]), b"abcdefghijklmnoXYZ")
        with pytest.raises(StoreUnreadable, match=f"2 bytes at {position} were not fetched"):
            files.read(position, 2)

    def test_records_may_come_in_any_order(self) -> None:
        log = FetchedRecords(1000)
        assert not len(log.records(np.array([5])).starts)
        log.reserve(np.array([500, 20, 700]), np.array([3, 2, 4]))
        assert log.records(np.array([20, 700, 500])).starts.tolist() == [3, 5, 0]
        assert log.records(np.array([20, 500, 600, 700])).starts.tolist() == [3, 0]
        assert not len(log.records(np.array([800, 20])).starts)
        with pytest.raises(StoreUnreadable, match="log position 501"):
            log.read(501, 1)
        with pytest.raises(StoreUnreadable, match="log position 700"):
            log.read(700, 5)

    @pytest.mark.parametrize(
        ("links", "why"),
        [
            ({104: 52, 52: 0, 0: -1}, None),
            ({104: 52, 0: -1}, "at timer log position 52 was not fetched"),
            ({104: 104}, "through timer log position 104 is broken"),
            ({104: 156, 156: 104}, "through timer log position 104 is broken"),
            ({104: -2}, "through timer log position 104 is broken"),
        ],
    )
    def test_chains_follow_their_links(self, links: dict[int, int], why: str | None) -> None:
        rows, units = np.zeros(len(links), CHAINED), np.zeros(len(links), TIMER_UNIT.dtype)
        units["size"], units["previous_position"] = TIMER_UNIT.size, list(links.values())
        rows["position"], rows["unit"] = list(links), units.view(rows["unit"].dtype)
        chains = FetchedChains()
        chains.replace(rows)
        if why is None:
            assert chains.chain(104, 1000).tolist() == [104, 52, 0]
            assert chains.chain(104, 104).tolist() == [52, 0]
            assert chains.units(np.array([0, 104]))["previous_position"].tolist() == [-1, 52]
            with pytest.raises(StoreUnreadable, match="at timer log position 7 was not fetched"):
                chains.units(np.array([0, 7]))
        else:
            with pytest.raises(StoreUnreadable, match=why):
                chains.chain(104, 1000)
