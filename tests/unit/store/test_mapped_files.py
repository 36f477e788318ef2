"""The number of mapped files, and the allocation of their disk space."""

from __future__ import annotations

import errno
import gc
import os
from pathlib import Path

import numpy as np
import pytest

from wheelmq.formats.disk.paths import StorePaths
from wheelmq.formats.disk.queue_unit import QUEUE_UNIT
from wheelmq.formats.units import QueueOffset
from wheelmq.store.mapped import MappedFiles, MappedSequence
from wheelmq.store.queues import QueueTable
from wheelmq.system.disk import Disk, DiskFull
from wheelmq.testing.disk import Call, SimulatedDisk

SIZE = 1 << 20
STEP = 1 << 16


def mapped_paths() -> list[str]:
    """Return the paths of all files that this process has mapped."""
    return [
        line.split(maxsplit=5)[5].strip() for line in Path("/proc/self/maps").read_text().splitlines() if "/" in line
    ]


def room_bytes(path: Path) -> int:
    return path.stat().st_blocks * 512


class TestMappedFiles:
    def sequences(self, folder: Path, count: int, most: int) -> tuple[MappedFiles, list[MappedSequence]]:
        mapped = MappedFiles(most)
        disk = Disk()
        return mapped, [
            MappedSequence(disk, folder / str(i), SIZE, step_bytes=STEP, mapped=mapped) for i in range(count)
        ]

    def test_the_number_of_mapped_files_is_limited(self, tmp_path: Path) -> None:
        mapped, sequences = self.sequences(tmp_path, 40, 10)
        for i, files in enumerate(sequences):
            files.grow(0).view[0] = i
            files.sync_job(0, 1)()
        assert len(mapped) == 10
        gc.collect()
        assert len([path for path in mapped_paths() if path.startswith(str(tmp_path))]) == 10
        assert [files.file_at(0).view[0] for files in sequences] == list(range(40))
        assert len(mapped) == 10

    def test_mapped_files_keep_no_descriptor(self, tmp_path: Path) -> None:
        before = len(os.listdir("/proc/self/fd"))
        _, sequences = self.sequences(tmp_path, 100, 100)
        for files in sequences:
            files.grow(0)
        assert len(os.listdir("/proc/self/fd")) == before

    def test_the_files_used_last_stay_mapped(self, tmp_path: Path) -> None:
        _, sequences = self.sequences(tmp_path, 4, 3)
        held = [files.grow(0) for files in sequences[:3]]
        for files in sequences[:3]:
            files.sync_job(0, 1)()
        sequences[0].file_at(0)
        sequences[3].grow(0)
        assert sequences[0].file_at(0) is held[0]
        assert sequences[1].file_at(0) is not held[1]

    def test_files_with_unsynced_bytes_stay_mapped(self, tmp_path: Path) -> None:
        mapped, sequences = self.sequences(tmp_path, 20, 5)
        for files in sequences:
            files.grow(0)
        assert len(mapped) == 20
        for files in sequences:
            files.sync_job(0, 1)()
        for files in sequences:
            files.file_at(0)
            files.cut(0)
        assert len(mapped) == 0

    def test_a_file_whose_sync_failed_stays_mapped(self, disk: SimulatedDisk, tmp_path: Path) -> None:
        mapped = MappedFiles(1)
        sequences = [MappedSequence(disk, tmp_path / str(i), SIZE, step_bytes=STEP, mapped=mapped) for i in range(3)]
        first = sequences[0].grow(0)
        disk.sync_error = OSError(errno.EIO, "Input/output error")
        with pytest.raises(OSError, match="Input/output"):
            sequences[0].sync_job(0, 1)()
        for files in sequences[1:]:
            files.grow(0)
        assert sequences[0].file_at(0) is first

    def test_held_bytes_of_a_dropped_file_stay_readable(self, tmp_path: Path) -> None:
        mapped, sequences = self.sequences(tmp_path, 3, 1)
        array = sequences[0].grow(0).array[:4]
        array[:] = 7
        sequences[0].sync_job(0, 4)()
        for files in sequences[1:]:
            files.grow(0)
            files.sync_job(0, 1)()
        assert len(mapped) == 1
        gc.collect()
        assert array.tolist() == [7, 7, 7, 7]


class TestRoom:
    def test_a_sparse_file_gets_disk_space_in_steps(self, tmp_path: Path) -> None:
        files = MappedSequence(Disk(), tmp_path, SIZE, step_bytes=STEP)
        path = files.grow(0).path
        assert (path.stat().st_size, room_bytes(path)) == (SIZE, STEP)
        files.grow(STEP - 10, 10)
        assert room_bytes(path) == STEP
        files.grow(STEP - 10, 11)
        assert room_bytes(path) == 2 * STEP
        files.grow(SIZE - 1)
        assert room_bytes(path) == 3 * STEP
        assert files.room_end(SIZE - 1) == SIZE and files.room_end(SIZE) == SIZE

    def test_a_durable_file_gets_disk_space_in_steps(self, tmp_path: Path) -> None:
        files = MappedSequence(Disk(), tmp_path, SIZE, room_bytes=STEP)
        path = files.grow(0).path
        assert (path.stat().st_size, room_bytes(path), files.room_end(0)) == (SIZE, STEP, STEP)
        files.grow(STEP - 10, 11)
        assert (room_bytes(path), files.room_end(5)) == (2 * STEP, 2 * STEP)
        [ahead] = files.ahead_job(1, SIZE)()
        assert (ahead.path.stat().st_size, room_bytes(ahead.path)) == (SIZE, STEP)

    def test_room_that_a_job_gave_joins_the_known_room(self, tmp_path: Path) -> None:
        files = MappedSequence(Disk(), tmp_path, SIZE, room_bytes=STEP)
        file = files.grow(0)
        assert files.room_job(file, STEP, 2 * STEP)()
        assert room_bytes(file.path) == 2 * STEP and files.room_end(0) == STEP, "the loop does not know it yet"
        assert files.note_room(STEP, 2 * STEP) and files.room_end(0) == 2 * STEP
        assert not files.note_room(2 * STEP + 1, SIZE), "a hole is between them"
        assert not files.note_room(SIZE, SIZE + STEP), "it is that of another file"
        assert files.room_end(0) == 2 * STEP and files.room_end(2 * STEP) == 2 * STEP

    def test_a_job_gives_no_room_where_the_file_system_cannot(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        files = MappedSequence(Disk(), tmp_path, SIZE, room_bytes=STEP)
        file = files.grow(0)
        monkeypatch.setattr("wheelmq.system.disk.allocate_blocks", lambda handle, start, size: False)
        assert not files.room_job(file, STEP, 2 * STEP)() and room_bytes(file.path) == STEP

    def test_a_job_fails_on_a_full_disk(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        files = MappedSequence(Disk(), tmp_path, SIZE, room_bytes=STEP)

        def full(handle: int, start: int, size: int) -> bool:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr("wheelmq.system.disk.allocate_blocks", full)
        with pytest.raises(DiskFull, match="no room for 65536 bytes"):
            files.room_job(files.grow(0), STEP, 2 * STEP)()

    def test_a_sparse_file_of_another_broker_gets_space_before_a_write(self, tmp_path: Path) -> None:
        path = tmp_path / f"{0:020d}"
        path.touch()
        os.truncate(path, SIZE)
        files = MappedSequence(Disk(), tmp_path, SIZE)
        assert files.room_end(100) == 100
        files.grow(100)
        assert room_bytes(path) == SIZE and files.room_end(SIZE - 1) == SIZE

    def test_a_full_disk_rejects_the_next_step(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        files = MappedSequence(Disk(), tmp_path, SIZE, step_bytes=STEP)
        files.grow(0, STEP)

        def full(handle: int, at: int, size: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "posix_fallocate", full)
        files.grow(100, 100)
        with pytest.raises(DiskFull, match="no room for 65536 bytes"):
            files.grow(STEP, 1)
        monkeypatch.undo()
        files.grow(STEP, 1)

    def test_a_sparse_file_shortened_by_a_power_cut_is_extended(self, tmp_path: Path) -> None:
        (tmp_path / f"{0:020d}").write_bytes(b"\1" * 100)
        files = MappedSequence(Disk(), tmp_path, SIZE, step_bytes=STEP)
        assert bytes(files.file_at(0).view[:101]) == b"\1" * 100 + b"\0"

    def test_names_are_on_disk_only_after_a_sync(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        disk, synced = Disk(), list[Path]()
        monkeypatch.setattr(disk, "sync_folder", synced.append)
        files = MappedSequence(disk, tmp_path / "topic" / "0", SIZE, step_bytes=STEP)
        files.grow(0)
        assert synced == []
        files.sync_job(0, 1)()
        assert synced == [tmp_path / "topic" / "0", tmp_path / "topic", tmp_path]
        files.grow(10)
        files.sync_job(1, 11)()
        assert len(synced) == 3
        again = MappedSequence(
            disk, tmp_path / "topic" / "0", SIZE, step_bytes=STEP
        )  # its creator may have been killed
        again.grow(20)
        again.sync_job(0, 21)()
        assert len(synced) == 6


def test_a_table_of_many_queues_maps_few_files(tmp_path: Path) -> None:
    units = np.zeros(1, QUEUE_UNIT.dtype)
    units["size"] = 100
    paths = StorePaths(tmp_path)
    table = QueueTable(Disk(), paths, 6_000_000, 16)
    for i in range(200):
        queue = table[table.row("T", i)]
        units["position"] = i
        queue.write(QueueOffset(0), units)
        queue.sync_job()()
    assert len(table.mapped) <= 16
    assert [int(queue.read(QueueOffset(0), 1)["position"][0]) for queue in table] == list(range(200))
    again = QueueTable(Disk(), paths, 6_000_000, 16)
    again.load()
    assert len(again) == 200 and {queue.end for queue in again} == {1}
    assert len(again.mapped) <= 16
    assert sum(room_bytes(path) for path in tmp_path.rglob("0" * 20)) == 200 * STEP


def test_a_second_cut_syncs_the_zeros_that_the_first_could_not(tmp_path: Path) -> None:
    disk = SimulatedDisk()
    files = MappedSequence(disk, tmp_path / "log", SIZE)
    file = files.grow(0, SIZE)
    file.array[:] = 1
    files.sync_job(0, SIZE)()
    disk.fail_call(1, OSError(errno.EIO, "broken"), {Call.SYNC})
    with pytest.raises(OSError, match="broken"):
        files.cut(100)
    files.cut(100)
    assert not file.array[100:].any()
    assert disk.holds(file.path, 0, SIZE)
