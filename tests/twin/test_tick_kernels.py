"""The kernels of a tick, except those of sends and releases, match the plain code on rows of every kind."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.twin.test_log_kernels import both_ways, fixture_is_shared
from tests.twin.twins import START_MS
from wheelmq.delay import intake
from wheelmq.delay.done import SEGMENT_BITS, DoneBits, IndexBits
from wheelmq.delay.timer import rows as turn_rows
from wheelmq.delay.timer.wheel import TimerWheel
from wheelmq.formats.disk.origin import NO_ORIGIN, level_origin, timer_origin
from wheelmq.formats.disk.paths import StorePaths
from wheelmq.formats.disk.queue_unit import QUEUE_UNIT
from wheelmq.formats.disk.turn_row import TURN_ROW
from wheelmq.formats.kernels import journal as row
from wheelmq.formats.units import LogPosition
from wheelmq.store.commit_log import CommitLog
from wheelmq.store.queues import QueueTable
from wheelmq.system.disk import Disk
from wheelmq.testing.clock import ManualClock
from wheelmq.testing.harness import BrokerHarness

SLOTS = 8
PRECISION_MS = 1000
FIRST = timer_origin(40)


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    return monkeypatch


@st.composite
def rows_of_a_turn(draw: st.DrawFn) -> npt.NDArray[Any]:
    """Rows sorted by fire time, with queue offsets in random order and sometimes one wrong row."""
    randomness = Random(draw(st.integers(0, 1 << 32)))
    count = draw(st.integers(0, 40))
    rows = np.zeros(count, TURN_ROW)
    offsets = list(range(FIRST, FIRST + count))
    randomness.shuffle(offsets)
    for i, offset in enumerate(offsets):
        slot_ms = randomness.randrange(0, 40) * PRECISION_MS
        fire_ms = slot_ms + randomness.randrange(1, 3000)
        size, topic_hash = randomness.randrange(1, 1 << 22), randomness.randrange(-(1 << 31), 1 << 31)
        delay_ms = randomness.choice((0, 5000, 5001, (1 << 32) - 1))
        rows[i] = (
            fire_ms, offset, slot_ms, randomness.randrange(1 << 50), size, topic_hash, randomness.randrange(8), 0,
            delay_ms, randomness.choice((0, 0, 1500)),
        )  # fmt: skip
    rows["order"][np.arange(count)] = np.argsort(rows["origin"])
    if count and draw(st.booleans()):
        field, value = draw(st.sampled_from([("order", -1), ("order", count), ("order", 0), ("origin", FIRST)]))
        rows[field][randomness.randrange(count)] = value
    return rows


@fixture_is_shared
@given(rows=rows_of_a_turn(), readable_only=st.booleans())
def test_kernel_and_plain_code_check_rows_of_a_turn_alike(
    tmp_path: Path, plain: pytest.MonkeyPatch, rows: npt.NDArray[Any], readable_only: bool
) -> None:
    wheel = TimerWheel(Disk(), tmp_path / "wheel", PRECISION_MS, SLOTS)
    wheel.clear()
    for slot in (1, 5, 17, 30):
        wheel.put(slot * PRECISION_MS, 0, deletes=False)
    if readable_only:
        rows = np.frombuffer(rows.tobytes(), TURN_ROW)

    def run() -> object:
        is_good = turn_rows.are_in_order(rows, FIRST)
        near = turn_rows.near_refs(rows, 20_000, 9000, wheel)
        if not is_good:
            return is_good, near.tolist()
        units, slots_ms = turn_rows.units_of(rows, 7000)
        return is_good, near.tolist(), units.tobytes(), slots_ms.tolist()

    compiled, by_hand = both_ways(plain, run)
    assert compiled == by_hand


def journal(randomness: Random, count: int, queues: int) -> npt.NDArray[np.int64]:
    """Return rows as a tick leaves them: the offsets of each queue are consecutive."""
    rows = np.zeros((count, row.COLUMNS), np.int64)
    ends = [randomness.randrange(3) for _ in range(queues)]
    for i in range(count):
        queue = randomness.randrange(queues)
        rows[i, row.QUEUE], rows[i, row.QUEUE_OFFSET] = queue, ends[queue]
        ends[queue] += 1
        rows[i, row.POSITION], rows[i, row.SIZE] = randomness.randrange(1 << 60), randomness.randrange(1, 1 << 22)
        rows[i, row.TAG_CODE] = randomness.randrange(-(1 << 31), 1 << 41)
        rows[i, row.STORE_MS] = 1_000_000
        rows[i, row.DUE_MS] = randomness.choice((0, 1_000_001, 1_005_000, 1_005_001, 9_000_000))
        rows[i, row.SETTLES] = randomness.choice((0, 0, timer_origin(77), level_origin(3, 77)))
        rows[i, row.KEY_HASH] = randomness.choice((0, randomness.randrange(-(1 << 63), 1 << 63)))
        rows[i, row.FLAGS] = randomness.choice((0, 0, row.FLAG_DELETE))
        rows[i, row.REAL_QUEUE] = randomness.randrange(-1, queues)
        parked = randomness.choice((timer_origin, partial(level_origin, 2)))
        rows[i, row.PARKS] = parked(i) if rows[i, row.DUE_MS] else 0
    return rows


@fixture_is_shared
@given(seed=st.integers(0, 1 << 32), count=st.integers(0, 60), queues=st.integers(1, 9))
def test_kernel_and_plain_code_take_journal_rows_alike(
    plain: pytest.MonkeyPatch, seed: int, count: int, queues: int
) -> None:
    rows = journal(Random(seed), count, queues)

    def run() -> object:
        counts = np.zeros((queues, intake.COUNTS), np.int64)
        taken = intake.take(rows, counts)
        lists = taken.refs.tolist(), taken.key_hashes.tolist(), taken.deletes.tolist()
        return *lists, taken.settled, counts.tolist()

    compiled, by_hand = both_ways(plain, run)
    assert compiled == by_hand


@settings(fixture_is_shared, max_examples=30)
@given(seed=st.integers(0, 1 << 32), count=st.integers(0, 60), queues=st.integers(1, 9))
def test_kernel_and_plain_code_write_queue_units_alike(
    tmp_path_factory: pytest.TempPathFactory, plain: pytest.MonkeyPatch, seed: int, count: int, queues: int
) -> None:
    rows = journal(Random(seed), count, queues)

    def run() -> object:
        table = QueueTable(Disk(), StorePaths(tmp_path_factory.mktemp("store")), 20 * 16)
        for i in range(queues):
            assert table.row("T", i) == i
        grown = table.write(rows[: count // 2]), table.write(rows[count // 2 :])
        units = [b"".join(chunk.tobytes() for chunk in queue.chunks()) for queue in table]
        return [sorted(part) for part in grown], units

    compiled, by_hand = both_ways(plain, run)
    assert compiled == by_hand


@fixture_is_shared
@given(st.data())
def test_kernel_and_plain_code_keep_bits_alike(plain: pytest.MonkeyPatch, data: st.DataObject) -> None:
    near_a_border = st.integers(SEGMENT_BITS - 40, SEGMENT_BITS + 40) | st.integers(0, 40)
    batches = st.lists(st.tuples(st.sampled_from(["update", "get", "floor"]), st.lists(near_a_border, max_size=60)))
    steps = data.draw(batches)

    def run() -> object:
        bits = IndexBits()
        seen: list[object] = []
        for what, indices in steps:
            chosen = np.array(indices, np.int64)
            if what == "update":
                bits.update(chosen)
            elif what == "floor" and indices:
                bits.raise_floor(min(indices))
            seen.append(bits.get(chosen).tolist())
            seen.append((bits.floor, sorted(bits._ones.items())))
        return seen

    compiled, by_hand = both_ways(plain, run)
    assert compiled == by_hand


@fixture_is_shared
@given(st.data())
def test_kernel_and_plain_code_keep_bits_of_several_streams_alike(
    plain: pytest.MonkeyPatch, data: st.DataObject
) -> None:
    index = st.integers(SEGMENT_BITS - 9, SEGMENT_BITS + 9) | st.integers(0, 20)
    firsts = st.sampled_from([timer_origin(0), level_origin(1, 0), level_origin(2, 0)])
    of_one = st.tuples(firsts, st.lists(index, max_size=40)).map(lambda pair: [pair[0] + i for i in pair[1]])
    of_any = st.lists(st.one_of(st.just(NO_ORIGIN), st.builds(int.__add__, firsts, index)), max_size=40)
    steps = data.draw(st.lists(st.tuples(st.booleans(), of_one | of_any), max_size=12))
    model: set[int] = {NO_ORIGIN}

    def run() -> object:
        bits = DoneBits()
        model.clear()
        model.add(NO_ORIGIN)
        for updates, origins in steps:
            if updates:
                bits.update(np.array(origins, np.int64))
                model.update(origins)
            assert bits.get(np.array(origins, np.int64)).tolist() == [origin in model for origin in origins]
            assert all((origin in bits) == (origin in model) for origin in origins)
        again = DoneBits()
        again.add_packed(bits.packed(dict.fromkeys(bits.streams(), 2 * SEGMENT_BITS)))
        known = np.array(sorted(model), np.int64)
        assert bits.copy().get(known).all() and again.get(known).all()
        return [(stream, bits.of(stream).floor) for stream in bits.streams()]

    compiled, by_hand = both_ways(plain, run)
    assert compiled == by_hand


@pytest.mark.parametrize("names", [["DELAY"], ["DELAY", "KEYS"], ["KEYS", "DELAY"], ["KEYS", "DELAY", "TAGS"]])
def test_kernel_and_plain_code_release_levels_alike(
    tmp_path_factory: pytest.TempPathFactory, plain: pytest.MonkeyPatch, names: list[str]
) -> None:
    served = []

    def run() -> object:
        with BrokerHarness(tmp_path_factory.mktemp("store"), clock=ManualClock(START_MS)) as harness:
            for i in range(3):
                properties = {name: "1" if name == "DELAY" else f"{name}{i}" for name in names}
                assert harness.send("T", b"%d" % i, properties=properties).code == 0
            if harness.broker.parts.fast_send is not None:
                bulk = harness.broker.parts.releaser._bulk
                assert bulk is not None
                harness.broker.parts.releaser._bulk = lambda refs, now_ms: (
                    served.append(bulk(refs, now_ms)) or served[-1]
                )
            harness.advance(1100)
            records = harness.read_queue("T")
            assert [record.message.body for record in records] == [b"0", b"1", b"2"]
            assert all(record.message.properties["DELAY"] == "1" for record in records)
            log = harness.broker.parts.store.log
            return bytes(log.read(log.start, log.end))

    compiled, by_hand = both_ways(plain, run)
    assert compiled == by_hand
    assert served == [3], "the kernel left one"


class TestGather:
    @given(data=st.data())
    @settings(deadline=None)
    def test_kernel_and_plain_code_gather_records_alike(
        self, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        """The bytes are those of the plain code, up to the first unit that is wrong or in another file."""
        log = _log_of_three_files(tmp_path_factory)
        count = data.draw(st.integers(1, 40))
        first = data.draw(st.integers(0, len(_SPANS) - count))
        units = np.zeros(count, QUEUE_UNIT.dtype)
        units["position"], units["size"] = np.array(_SPANS[first : first + count]).T
        wrong = data.draw(st.integers(0, count))
        if wrong < count:
            field = data.draw(st.sampled_from(["position", "size"]))
            limits = np.iinfo(units.dtype[field])
            units[field][wrong] = data.draw(st.integers(int(limits.min), int(limits.max)) | st.integers(-9, 9))
        bytes_max = data.draw(st.sampled_from([0, 300, 5000, 1 << 20]))
        count_max = data.draw(st.integers(0, 41))
        damaged = data.draw(st.none() | st.tuples(st.integers(0, count - 1), st.integers(0, 110), st.integers(1, 255)))
        with _damaged(log, first, damaged):
            self.compare(log, units, count_max, bytes_max, min(wrong, count if damaged is None else damaged[0]))

    def compare(self, log: CommitLog, units: npt.NDArray[Any], count_max: int, bytes_max: int, wrong: int) -> None:
        """`wrong` is the number of the first unit that is damaged, or that has a damaged record."""
        taken, body = log.gather_units(units, count_max, bytes_max)
        spans = [(LogPosition(p), s) for p, s in zip(units["position"].tolist(), units["size"].tolist(), strict=True)]
        assert body == (log.gather(spans[:taken]) if taken else b"")
        assert taken <= count_max and len(body) <= bytes_max
        good = min(wrong, count_max)
        in_file = sum(p // log.files.file_bytes == spans[0][0] // log.files.file_bytes for p, _ in spans[:good])
        fits = np.cumsum(units["size"][:in_file].astype(np.int64)) <= bytes_max
        assert taken >= int(np.count_nonzero(fits))


@contextlib.contextmanager
def _damaged(log: CommitLog, first: int, damaged: tuple[int, int, int] | None) -> Iterator[None]:
    """Change a byte of one record inside the context."""
    if damaged is None:
        yield
        return
    number, at, flip = damaged
    position = LogPosition(_SPANS[first + number][0] + at)
    file = log.files.file_at(position)
    file.array[position % log.files.file_bytes] ^= flip
    try:
        yield
    finally:
        file.array[position % log.files.file_bytes] ^= flip


_SPANS: list[tuple[int, int]] = []
_logs: list[CommitLog] = []


def _log_of_three_files(folders: pytest.TempPathFactory) -> CommitLog:
    """Return one log for all examples. `_SPANS` lists its records."""
    if not _logs:
        harness = BrokerHarness(folders.mktemp("log") / "store", log_file_bytes=1 << 16)
        for i in range(500):
            harness.send("T", b"x" * (1 + i % 300))
        _SPANS.extend((record.position, record.size) for record in harness.read_queue("T"))
        _logs.append(harness.broker.parts.store.log)
        assert len(_SPANS) == 500 and _SPANS[-1][0] > 2 << 16
    return _logs[0]
