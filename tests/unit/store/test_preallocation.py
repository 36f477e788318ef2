"""Preallocation: log files that are made ahead, and pages that are populated before the log needs them."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np
import pytest

from wheelmq.formats.kernels import jit
from wheelmq.formats.units import LogPosition, Millis
from wheelmq.store.commit_log import CommitLog
from wheelmq.store.mapped import MappedSequence
from wheelmq.store.preallocator import FRESH_S, RESTS_MAX, FilePreallocator, PagePreallocator, Preallocator
from wheelmq.system.disk import Disk
from wheelmq.system.mapped_file import UNMAPPED_BYTES_MIN, MappedFile
from wheelmq.system.pages import advise_by_pieces
from wheelmq.system.workers import InlineWorker
from wheelmq.testing.clock import ManualClock
from wheelmq.testing.disk import SimulatedDisk
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.workers import HeldWorker

SIZE = 1 << 20


@pytest.fixture
def disk() -> SimulatedDisk:
    found = SimulatedDisk()
    found.gives_room_ahead = True
    return found


class TestAhead:
    @pytest.fixture
    def log(self, disk: SimulatedDisk, tmp_path: Path) -> CommitLog:
        return CommitLog(MappedSequence(disk, tmp_path / "log", SIZE), ManualClock())

    def names(self, log: CommitLog) -> list[int]:
        return sorted(int(path.name) // SIZE for path in log.files.folder.iterdir())

    def test_the_next_two_files_are_made_ahead(self, log: CommitLog) -> None:
        worker = HeldWorker()
        ahead = Preallocator(log, worker, worker, ManualClock())
        ahead.poll()
        assert not len(worker)  # there was no send yet
        log.reserve(100)
        ahead.poll()
        assert self.names(log) == [0]  # the loop itself makes no file
        worker.run()
        assert self.names(log) == [0, 1, 2]
        made = log.files._ahead[SIZE]
        assert log.files.grow(SIZE) is made
        ahead.poll()
        worker.run()
        assert self.names(log) == [0, 1, 2, 3]

    def test_the_loop_may_make_a_file_before_the_worker(self, log: CommitLog) -> None:
        worker = HeldWorker()
        ahead = Preallocator(log, worker, worker, ManualClock())
        log.reserve(100)
        ahead.poll()
        worker.work()
        mine = log.files.grow(SIZE)
        mine.view[5] = 7
        worker.report()
        assert log.files.file_at(SIZE) is mine
        assert log.files.grow(2 * SIZE).view[5] == 0

    def test_the_next_file_is_made_when_the_last_is_nearly_full(self, disk: SimulatedDisk, tmp_path: Path) -> None:
        files, worker = MappedSequence(disk, tmp_path / "log", SIZE), HeldWorker()
        ahead = FilePreallocator(files, worker, 1, populate_bytes=SIZE, left_bytes=SIZE // 4)
        ahead.poll(0)  # there is no file yet
        files.grow(0)
        ahead.poll(SIZE // 2)
        assert not len(worker)
        ahead.poll(3 * SIZE // 4)
        ahead.poll(SIZE - 1)
        worker.run()
        assert files.made_to == 2 * SIZE and files.end == SIZE
        made = files._ahead[SIZE]
        assert files.grow(SIZE) is made
        ahead.poll(SIZE)
        assert not len(worker)

    def test_preallocation_leaves_the_last_space_free(
        self, log: CommitLog, disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(disk, "free_bytes", lambda folder: 2 * SIZE - 1)
        worker = HeldWorker()
        log.reserve(100)
        Preallocator(log, worker, worker, ManualClock()).poll()
        worker.run()
        assert self.names(log) == [0, 1]

    def test_a_failed_preallocation_is_logged_and_the_file_is_made_later(
        self, log: CommitLog, disk: SimulatedDisk, caplog: pytest.LogCaptureFixture
    ) -> None:
        worker = HeldWorker()
        ahead = Preallocator(log, worker, worker, ManualClock())
        log.reserve(100)
        disk.is_full = lambda path: True
        ahead.poll()
        worker.run()
        assert "could not create the next file" in caplog.text
        disk.is_full = lambda path: False
        assert log.files.grow(SIZE).size == SIZE

    @pytest.mark.parametrize(("count", "is_warm", "populated"), [(1, False, [8 << 20]), (2, True, [9 << 20] * 2)])
    def test_pages_of_new_files_are_populated(
        self,
        disk: SimulatedDisk,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        count: int,
        is_warm: bool,
        populated: list[int],
    ) -> None:
        seen: list[tuple[str, int]] = []
        monkeypatch.setattr(
            "wheelmq.system.mapped_file.MappedFile.populate",
            lambda file, _, stop, **how: seen.append((file.path.name, stop)),
        )
        log = CommitLog(MappedSequence(disk, tmp_path / "log", 9 << 20), ManualClock())
        log.reserve(100)
        worker = HeldWorker()
        Preallocator(log, worker, worker, ManualClock(), count, is_warm=is_warm).poll()
        worker.run()
        assert [stop for name, stop in seen if int(name) > 0] == populated

    @pytest.mark.parametrize(
        ("grown_bytes", "coming_bytes", "upto_bytes"),
        [
            (0, 0, 16 << 20),
            (0, 20 << 20, 40 << 20),
            (8 << 20, 0, 56 << 20),
            (16 << 20, 0, 80 << 20),
            (16 << 20, 20 << 20, 104 << 20),
            (16 << 20, 1 << 40, 136 << 20),
        ],
    )
    def test_pages_are_populated_for_expected_bytes(
        self,
        disk: SimulatedDisk,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        grown_bytes: int,
        coming_bytes: int,
        upto_bytes: int,
    ) -> None:
        seen: list[tuple[int, int]] = []
        monkeypatch.setattr("wheelmq.store.preallocator.COMING_BYTES_MAX", 50 << 20)
        monkeypatch.setattr(
            "wheelmq.system.mapped_file.MappedFile.populate", lambda file, start, stop, **_: seen.append((start, stop))
        )
        log = CommitLog(MappedSequence(disk, tmp_path / "log", 1 << 30, room_bytes=8 << 20), ManualClock())
        log.files.grow(0)
        worker = HeldWorker()
        ahead = Preallocator(log, worker, worker, ManualClock(), 0)
        log.advance(LogPosition(grown_bytes), Millis(0))
        log.files.grow(grown_bytes)
        for _ in range(40):
            ahead.poll(coming_bytes)
            ahead.poll(coming_bytes)
            assert len(worker) <= 2  # one step at a time, in addition to the files
            worker.run()
        step = 8 << 20
        assert seen == [(start, start + step) for start in range(grown_bytes, upto_bytes, step)]
        assert log.files.room_end(grown_bytes) == upto_bytes

    def test_the_next_pages_are_populated_by_stores(
        self, disk: SimulatedDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The pages after them are populated by reads, also in files that were made ahead."""
        seen: list[tuple[int, int, int, bool]] = []

        def populate(file: MappedFile, start: int, stop: int, *, stores: bool = False) -> None:
            seen.append((int(file.path.name) >> 20, start >> 20, stop >> 20, stores))

        log = CommitLog(MappedSequence(disk, tmp_path / "log", 12 << 20), ManualClock())
        log.files.grow(0)
        log.files.take_ahead(log.files.ahead_job(2, 0)())
        monkeypatch.setattr("wheelmq.store.preallocator.FIRST_AHEAD_BYTES", 64 << 20)
        monkeypatch.setattr("wheelmq.system.mapped_file.MappedFile.populate", populate)
        worker = HeldWorker()
        ahead = Preallocator(log, worker, worker, ManualClock(), 0)
        for _ in range(9):
            ahead.poll()
            worker.run()
        stored = [(0, 0, 8, True), (0, 8, 12, True), (12, 0, 8, True)]
        assert seen == [*stored, (12, 8, 12, False), (24, 0, 8, False), (24, 8, 12, False)]

    def test_pages_of_any_sequence_are_populated_in_steps(
        self, disk: SimulatedDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[tuple[int, int]] = []
        monkeypatch.setattr(
            "wheelmq.system.mapped_file.MappedFile.populate", lambda file, start, stop, **_: seen.append((start, stop))
        )
        files, worker = MappedSequence(disk, tmp_path / "log", SIZE), HeldWorker()
        ahead = PagePreallocator(files, worker, ManualClock(), SIZE // 4)
        assert not ahead.poll(0, SIZE // 2, stores=True), "there is no file yet"
        files.grow(0)
        for position in (0, 0, 0, SIZE // 4, SIZE - 100):
            ahead.poll(position, SIZE // 2, stores=True)
            worker.run()
        quarter = SIZE // 4
        assert seen == [(0, quarter), (quarter, 2 * quarter), (2 * quarter, 3 * quarter), (SIZE - 100, SIZE)]

    @pytest.mark.parametrize("flushes", [(100 * 4096 + 5, 2 * SIZE), (2 * SIZE,), (SIZE, SIZE + 100, 2 * SIZE)])
    def test_many_new_pages_are_unmapped_during_their_sync(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flushes: tuple[int, ...]
    ) -> None:
        """Pages that were synced before stay mapped, and so do the pages after the end of the sync."""
        page = mmap.PAGESIZE
        files = MappedSequence(Disk(), tmp_path / "log", SIZE)
        for _ in range(2):
            files.grow(files.end)
        both = [files.file_at(0), files.file_at(SIZE)]
        for number, file in enumerate(both):
            file.array[:] = number + 1
        unmapped: set[int] = set()

        def record_unmapped(file: MappedFile, _: int) -> None:
            at, count = file.array.ctypes.data // page, SIZE // page
            entries = np.fromfile("/proc/self/pagemap", np.uint64, count, offset=at * 8)
            first = both.index(file) * count
            unmapped.update(first + int(i) for i in np.flatnonzero(entries >> np.uint64(63) == 0))

        monkeypatch.setattr(MappedFile, "_sync", record_unmapped)
        done = 0
        for upto in flushes:
            unmapped.clear()
            files.sync_job(done, upto)()
            many = upto - done >= UNMAPPED_BYTES_MIN
            assert unmapped == (set(range(done // page, upto // page)) if many else set())
            for file in both:
                file.array.sum()
            done = upto
        assert [set(file.array.tolist()) for file in both] == [{1}, {2}]

    def test_pages_populated_long_ago_are_stored_to_again(
        self, disk: SimulatedDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Needs many expected or earlier bytes. The number of repetitions without growth is limited."""
        seen: list[tuple[int, int]] = []
        monkeypatch.setattr(
            "wheelmq.system.mapped_file.MappedFile.populate", lambda file, start, stop, **_: seen.append((start, stop))
        )
        files, worker, clock = MappedSequence(disk, tmp_path / "log", 16 * SIZE), HeldWorker(), ManualClock()
        ahead = PagePreallocator(files, worker, clock, SIZE)
        files.grow(0)

        def stored(position: int, coming_bytes: int = 0) -> list[int]:
            """Return the steps after `position` that are stored to."""
            seen.clear()
            for _ in range(6):
                ahead.poll(position, 4 * SIZE, stores=True, coming_bytes=coming_bytes)
                worker.run()
            return sorted({(start - position) // SIZE for start, _ in seen})

        window, after_ms = [0, 1, 2, 3], int(FRESH_S * 1000)
        assert stored(0) == window
        clock.advance(after_ms)
        assert stored(0) == stored(0, 2 * SIZE - 1) == [], "it rests"
        assert stored(0, 2 * SIZE) == window
        clock.advance(after_ms - 1)
        assert stored(0, 2 * SIZE) == [], "it is fresh"
        assert stored(2 * SIZE) == [2, 3], "as it was fresh"
        clock.advance(after_ms)
        assert stored(4 * SIZE) == window
        for left in reversed(range(RESTS_MAX + 2)):
            clock.advance(after_ms)
            assert stored(4 * SIZE, 2 * SIZE) == (window if left > 1 else []), "what comes may be held"

    def test_populating_by_stores_allocates_blocks_and_keeps_bytes(self, tmp_path: Path) -> None:
        """Pages after the end of the file do no harm."""
        page = mmap.PAGESIZE
        file = Disk().map(tmp_path / "file", 64 * page, sparse=True)
        file.populate(0, 32 * page)
        assert os.stat(file.path).st_blocks == 0
        file.view[5] = 7
        file.populate(0, 32 * page, stores=True)
        file.sync(32 * page)
        assert os.stat(file.path).st_blocks * 512 >= 32 * page
        assert bytes(file.view[:8]) == b"\0\0\0\0\0\7\0\0" and not any(file.view[8:])
        os.truncate(file.path, 32 * page)
        file.populate(0, 64 * page, stores=True)

    @pytest.mark.kernels
    @pytest.mark.parametrize("is_compiled", [False, True])
    def test_pages_are_populated_piece_by_piece(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_compiled: bool
    ) -> None:
        """From the page of the start to the page of the end, and no further. The twin does the same as the kernel."""
        page = mmap.PAGESIZE
        monkeypatch.setattr(jit, "available", lambda: is_compiled)
        monkeypatch.setattr("wheelmq.system.mapped_file.POPULATED_BYTES", 8 * page)
        file = Disk().map(tmp_path / "file", 64 * page)
        if not (file.populate(3 * page + 7, 20 * page, stores=True) and file.populate(40 * page, 51 * page + 1)):
            pytest.skip("this system does not populate")
        address = file.array.ctypes.data
        entries = np.fromfile("/proc/self/pagemap", np.uint64, 64, offset=address // page * 8)
        assert np.flatnonzero(entries >> np.uint64(63)).tolist() == [*range(3, 20), *range(40, 52)]
        no_advice = 9999
        if is_compiled:
            assert advise_by_pieces(address, 0, 7 * page, 2 * page, no_advice) == 4, "each piece by itself"
        monkeypatch.setattr("wheelmq.system.mapped_file._MADV_POPULATE_READ", no_advice)
        assert not file.populate(0, 20 * page)

    def test_a_system_that_cannot_populate_pages_is_logged_once(
        self, disk: SimulatedDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr("wheelmq.system.mapped_file._MADV_POPULATE_READ", 9999)
        files = MappedSequence(disk, tmp_path / "log", SIZE)
        files.grow(0)
        ahead = PagePreallocator(files, InlineWorker(), ManualClock(), SIZE // 4)
        for _ in range(4):
            ahead.poll(0, SIZE)
        assert caplog.text.count("does not populate pages") == 1

    def test_a_broker_makes_files_ahead(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path / "store", log_files_ahead=2) as harness:
            bodies = [bytes([i]) * 300_000 for i in range(20)]
            for body in bodies:
                assert harness.send("T", body).code == 0
            files = harness.broker.parts.store.log.files
            assert len(list(files.folder.iterdir())) == files.end // files.file_bytes + 2
            harness.restart(clean=False)
            assert [len(body) for body in harness.bodies("T")] == [300_000] * 20
