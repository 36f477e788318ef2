"""The kernels that read the log, and those of timer log, wheel and key index, match the plain code."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.twin.frames import streams
from tests.twin.twins import START_MS, Peer
from wheelmq.broker.store_sizes import store_sizes
from wheelmq.delay.blocks.records import UnitRecords
from wheelmq.delay.done import DoneBits
from wheelmq.delay.keys import KeyIndex
from wheelmq.delay.timer import staging
from wheelmq.delay.timer.log import TimerLog
from wheelmq.delay.timer.view import StoreView
from wheelmq.delay.timer.wheel import TimerWheel
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.index import IndexSize
from wheelmq.formats.disk.origin import timer_origin
from wheelmq.formats.disk.timer import MAGIC_DEFAULT, MAGIC_DELETE, TIMER_UNIT
from wheelmq.formats.java import java_hash
from wheelmq.formats.kernels import jit
from wheelmq.formats.units import LogPosition
from wheelmq.formats.wire.frame import FrameError
from wheelmq.store import recovery
from wheelmq.store.index import MessageIndex
from wheelmq.store.mapped import MappedSequence
from wheelmq.store.recovery import LogScan
from wheelmq.system.disk import Disk
from wheelmq.system.workers import InlineWorker
from wheelmq.testing.clock import ManualClock
from wheelmq.testing.harness import BrokerHarness

fixture_is_shared = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Turn kernels off and on again: `plain.setattr(jit, "MODE", ...)`."""
    return monkeypatch


def both_ways(switch: pytest.MonkeyPatch, run: object) -> list[object]:
    """Return the results of `run` with kernels and without."""
    assert callable(run)
    results = []
    for mode in ("compiled", "plain"):
        with switch.context() as patch:
            patch.setattr(jit, "MODE", mode)
            results.append(run())
    return results


def filled(folder: Path, stream: bytes, **chosen: object) -> BrokerHarness:
    """Return a broker that has received `stream` and released some of its messages."""
    harness = BrokerHarness(folder, clock=ManualClock(START_MS), **chosen)
    peer = Peer()
    buffer = bytearray(stream)
    with contextlib.suppress(FrameError):
        harness.broker.receive(peer, memoryview(buffer), len(buffer))  # type: ignore[arg-type]
    for _ in range(3):
        harness.clock.advance(700)
        harness.broker.tick()
    return harness


def scanned(files: MappedSequence, start: int) -> tuple[int, list[list[object]]]:
    """Return the end of the log and the values of each row, with names in place of the rows of names."""
    scan = LogScan(files, LogPosition(start))
    found: list[list[object]] = []
    for rows in scan.chunks():
        for row in rows.tolist():
            topic, real = row[6], row[11]
            found.append([*row, scan.names.name(topic), scan.names.name(real) if real >= 0 else None])
            found[-1][6] = found[-1][11] = 0
    return scan.end, found


@given(stream=streams(), damage=st.lists(st.tuples(st.integers(0, 1 << 14), st.integers(0, 255)), max_size=3))
@settings(fixture_is_shared, max_examples=120)
def test_kernel_and_plain_code_scan_the_log_alike(
    tmp_path_factory: pytest.TempPathFactory,
    plain: pytest.MonkeyPatch,
    stream: bytes,
    damage: list[tuple[int, int]],
) -> None:
    harness = filled(tmp_path_factory.mktemp("scan"), stream, log_file_bytes=1 << 14, body_bytes_max=1 << 12)
    log = harness.broker.parts.store.log
    for at, byte in damage:
        if log.files.start <= at < log.files.end:
            log.files.file_at(at).array[at % log.files.file_bytes] = byte
    kernel, twin = both_ways(plain, lambda: scanned(log.files, log.start))
    harness.crash()
    assert kernel == twin


@given(stream=streams(), switched_after=st.integers(0, 12))
@settings(fixture_is_shared, max_examples=60)
def test_kernels_continue_a_scan_of_the_plain_code(
    tmp_path_factory: pytest.TempPathFactory, plain: pytest.MonkeyPatch, stream: bytes, switched_after: int
) -> None:
    """Kernels that are compiled during a long recovery take over in its middle."""
    harness = filled(tmp_path_factory.mktemp("scan"), stream, log_file_bytes=1 << 14, body_bytes_max=1 << 12)
    log = harness.broker.parts.store.log

    def scanned_with_a_switch() -> tuple[object, ...]:
        scan = LogScan(log.files, LogPosition(log.start))
        found = []
        for number, rows in enumerate(scan.chunks()):
            found += rows.tolist()
            if number == switched_after:
                plain.setattr(jit, "MODE", "compiled")
        names = scan.names
        return scan.end, found, names.slots.tolist(), names.rows.tolist(), names.names.tobytes(), names.used.tolist()

    plain.setattr(recovery, "CHUNK_ROWS", 2)
    kernel, twin = both_ways(plain, scanned_with_a_switch)
    harness.crash()
    assert kernel == twin


@given(
    stream=streams(),
    seconds=st.lists(st.sampled_from(["5", "7", "15"]), min_size=1, max_size=6),
    damage=st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 255)), max_size=3),
)
@settings(fixture_is_shared, max_examples=40)
def test_kernel_and_plain_code_scan_the_log_of_a_block_alike(
    tmp_path_factory: pytest.TempPathFactory,
    plain: pytest.MonkeyPatch,
    stream: bytes,
    seconds: list[str],
    damage: list[tuple[int, int]],
) -> None:
    harness = filled(tmp_path_factory.mktemp("block"), stream, body_bytes_max=1 << 12)
    for i, delay in enumerate(seconds):
        own = {props.DELAY_IN_SECONDS: delay, props.UNIQ_KEY: f"U{i}" * (i % 3), props.KEYS: "\u20ac" * (i % 2) + "k"}
        assert harness.send("Alpha", bytes(100 * i + 1), properties=own).code == 0
    blocks = list(harness.broker.parts.blocks)
    for at, byte in damage:
        blocks[0].log.files.file_at(0).array[at] = byte

    def read() -> list[object]:
        found: list[object] = []
        for block in blocks:
            found.append(scanned(block.log.files, 0))
            records = UnitRecords(block.log.files, block.number)
            for first, units in block.queue.chunks():
                named = np.flatnonzero(units["size"])
                rows = records.read(first + named, units[named])
                rows[:, recovery.col.REAL_TOPIC] = [
                    java_hash(records.names.name(row)) if row > 0 else row for row in rows[:, recovery.col.REAL_TOPIC]
                ]
                rows[:, recovery.col.TOPIC] = 0
                found.append(rows.tolist())
        return found

    kernel, twin = both_ways(plain, read)
    harness.crash()
    assert kernel == twin


@given(stream=streams(), chosen=st.sets(st.integers(0, 60)), step=st.sampled_from([1, 300, 8 << 20]))
@settings(fixture_is_shared, max_examples=60)
def test_kernel_and_plain_code_read_chosen_records_alike(
    tmp_path_factory: pytest.TempPathFactory, plain: pytest.MonkeyPatch, stream: bytes, chosen: set[int], step: int
) -> None:
    """The rows are those of a walk over the whole log, for each step size and each distance between records."""
    harness = filled(tmp_path_factory.mktemp("chosen"), stream, log_file_bytes=1 << 14, body_bytes_max=1 << 12)
    log = harness.broker.parts.store.log
    plain.setattr(recovery, "AHEAD_BYTES", step)
    plain.setattr(recovery, "NEAR_BYTES", step)
    walked = [row.copy() for rows in LogScan(log.files, log.start).chunks() for row in rows]
    wanted = np.array([row for i, row in enumerate(walked) if i in chosen], np.int64).reshape(-1, recovery.col.COLUMNS)
    columns = [recovery.col.POSITION, recovery.col.SIZE, recovery.col.DUE_MS, recovery.col.SETTLES, recovery.col.FLAGS]

    def read() -> list[object]:
        scan = LogScan(log.files, log.start, whole_before_ms=1 << 62)
        found = [row[columns].tolist() for rows in scan.records_at(wanted[:, 0], wanted[:, 1]) for row in rows]
        assert not scan.damaged
        return found

    kernel, twin = both_ways(plain, read)
    harness.crash()
    assert kernel == twin == wanted[:, columns].tolist()


@given(stream=streams())
@settings(fixture_is_shared, max_examples=60)
def test_kernel_and_plain_code_stage_parked_records_alike(
    tmp_path_factory: pytest.TempPathFactory, plain: pytest.MonkeyPatch, stream: bytes
) -> None:
    folder = tmp_path_factory.mktemp("stage")
    harness = filled(folder, stream)
    chosen = harness.broker.parts.settings
    end = harness.broker.parts.timer.queue.end
    start = harness.broker.parts.timer.queue.start

    def read() -> list[object]:
        view = StoreView(folder, store_sizes(chosen))
        return staging.read_index(view, start, end, write_ms=START_MS, turn=1).tolist()

    kernel, twin = both_ways(plain, read)
    harness.crash()
    assert kernel == twin


@given(stream=streams(), units=st.integers(3, 40))
@settings(fixture_is_shared, max_examples=100)
def test_kernel_and_plain_code_build_the_index_alike(
    tmp_path_factory: pytest.TempPathFactory, plain: pytest.MonkeyPatch, stream: bytes, units: int
) -> None:
    harness = filled(tmp_path_factory.mktemp("index"), stream, log_file_bytes=1 << 14, body_bytes_max=1 << 12)
    store = harness.broker.parts.store

    def build() -> list[bytes]:
        shutil.rmtree(store.paths.index, ignore_errors=True)
        index = MessageIndex(store, InlineWorker(), IndexSize(slots=7, units=units))
        while index.indexed_to < store.dispatched_to:
            index.poll()
        return [file.read_bytes() for file in sorted(store.paths.index.glob("*"))]

    kernel, twin = both_ways(plain, build)
    harness.crash()
    assert kernel == twin


def timer_files(folder: Path) -> tuple[TimerLog, TimerWheel]:
    disk = Disk()
    wheel = TimerWheel(disk, folder / "timerwheel", 1000, slots=50)
    return TimerLog(MappedSequence(disk, folder / "timerlog", 52 * 40 + 16)), wheel


@given(seed=st.integers(0, 1 << 30), batches=st.lists(st.integers(0, 90), min_size=1, max_size=4))
@settings(fixture_is_shared, max_examples=40)
def test_kernel_and_plain_code_chain_and_rebuild_units_alike(
    tmp_path_factory: pytest.TempPathFactory, plain: pytest.MonkeyPatch, seed: int, batches: list[int]
) -> None:
    folders = iter([tmp_path_factory.mktemp("kernel"), tmp_path_factory.mktemp("plain")])

    def run() -> object:
        folder = next(folders)
        log, wheel = timer_files(folder)
        random = Random(seed)
        for count in batches:
            units = np.zeros(count, TIMER_UNIT.dtype)
            slots = START_MS + 1000 * np.array([random.randrange(-90, 120) for _ in range(count)], np.int64)
            units["size"] = TIMER_UNIT.size
            units["magic"] = [MAGIC_DEFAULT | (MAGIC_DELETE if random.random() < 0.2 else 0) for _ in range(count)]
            units["write_ms"] = START_MS
            units["delay_ms"] = slots - START_MS
            units["record_position"] = [random.randrange(1 << 40) for _ in range(count)]
            log.append(units, slots, wheel)
        before = [wheel.table.tobytes(), wheel.units.tobytes(), log.end]
        log_bytes = [bytes(file.view) for _, file, _, _ in log.files.pieces(log.files.start, log.end)]
        log.rebuild(wheel, log.end)
        return before, log_bytes, wheel.table.tobytes(), wheel.units.tobytes()

    kernel, twin = both_ways(plain, run)
    assert kernel == twin


@given(
    pairs=st.lists(st.tuples(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(0, 1 << 30)), max_size=300),
    done=st.sets(st.integers(0, 1 << 30), max_size=20),
)
@settings(fixture_is_shared, max_examples=60)
def test_kernel_and_plain_code_index_keys_alike(
    plain: pytest.MonkeyPatch, pairs: list[tuple[int, int]], done: set[int]
) -> None:
    hashes = np.array([key for key, _ in pairs], np.int64)
    origins = np.array([timer_origin(index) for _, index in pairs], np.int64)
    bits = DoneBits()
    bits.update(timer_origin(0) | np.array(sorted(done), np.int64))

    def run() -> list[list[int]]:
        keys = KeyIndex(capacity=16)
        for at in range(0, len(hashes), 50):
            keys.add(hashes[at : at + 50], origins[at : at + 50], bits)
        return [keys.find(key) for key in hashes.tolist() if key]

    kernel, twin = both_ways(plain, run)
    assert kernel == twin
