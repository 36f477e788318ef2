"""A sequence of mapped files."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from wheelmq.store.mapped import MappedSequence
from wheelmq.system.disk import DiskFull
from wheelmq.testing.disk import SimulatedDisk

SIZE = 4096


def sequence(disk: SimulatedDisk, folder: Path) -> MappedSequence:
    return MappedSequence(disk, folder, SIZE)


def files(folder: Path) -> list[int]:
    return sorted(int(path.name) for path in folder.iterdir())


def test_an_empty_folder_has_no_files(disk: SimulatedDisk, tmp_path: Path) -> None:
    empty = sequence(disk, tmp_path / "none")
    assert (empty.start, empty.end) == (0, 0)


def test_a_sequence_begins_at_the_first_requested_file(disk: SimulatedDisk, tmp_path: Path) -> None:
    files_ = sequence(disk, tmp_path)
    files_.grow(3 * SIZE + 17)
    assert (files_.start, files_.end) == (3 * SIZE, 4 * SIZE)
    assert files(tmp_path) == [3 * SIZE]
    again = sequence(disk, tmp_path)
    assert (again.start, again.end) == (3 * SIZE, 4 * SIZE)


def test_a_sequence_grows_only_by_the_next_file(disk: SimulatedDisk, tmp_path: Path) -> None:
    files_ = sequence(disk, tmp_path)
    first = files_.grow(0)
    assert files_.grow(SIZE - 1) is first
    assert files_.grow(SIZE).path.name == f"{SIZE:020d}"
    with pytest.raises(AssertionError):
        files_.grow(3 * SIZE)
    assert files(tmp_path) == [0, SIZE]


def test_files_with_a_gap_are_rejected(disk: SimulatedDisk, tmp_path: Path) -> None:
    for start in (0, SIZE, 3 * SIZE):
        (tmp_path / f"{start:020d}").write_bytes(bytes(SIZE))
    with pytest.raises(OSError, match="not 4096 bytes apart"):
        sequence(disk, tmp_path)


def test_other_file_names_are_ignored(disk: SimulatedDisk, tmp_path: Path) -> None:
    for name in ("0", f"{SIZE:020d}.new", "notes.txt"):
        (tmp_path / name).write_bytes(b"")
    assert sequence(disk, tmp_path).end == 0


def test_a_file_of_another_size_is_rejected(disk: SimulatedDisk, tmp_path: Path) -> None:
    (tmp_path / f"{0:020d}").write_bytes(bytes(100))
    files_ = sequence(disk, tmp_path)
    with pytest.raises(OSError, match="has 100 bytes where 4096 are configured"):
        files_.file_at(0)


def test_a_full_disk_leaves_the_sequence_unchanged(disk: SimulatedDisk, tmp_path: Path) -> None:
    files_ = sequence(disk, tmp_path)
    files_.grow(0)
    disk.is_full = lambda path: True
    with pytest.raises(DiskFull):
        files_.grow(SIZE)
    assert (files_.start, files_.end, files(tmp_path)) == (0, SIZE, [0])
    disk.is_full = lambda path: False
    files_.grow(SIZE)
    assert files_.end == 2 * SIZE


def test_a_read_stays_in_one_file(disk: SimulatedDisk, tmp_path: Path) -> None:
    files_ = sequence(disk, tmp_path)
    files_.grow(0).view[10:13] = b"abc"
    assert bytes(files_.read(10, 3)) == b"abc"
    files_.grow(SIZE)
    with pytest.raises(AssertionError):
        files_.read(SIZE - 1, 2)


def test_pieces_end_at_file_borders(disk: SimulatedDisk, tmp_path: Path) -> None:
    files_ = sequence(disk, tmp_path)
    for i in range(3):
        files_.grow(i * SIZE)
    found = [(position, int(file.path.name), at, stop) for position, file, at, stop in files_.pieces(100, 2 * SIZE + 1)]
    assert found == [(100, 0, 100, SIZE), (SIZE, SIZE, 0, SIZE), (2 * SIZE, 2 * SIZE, 0, 1)]
    assert files_.pieces(SIZE, SIZE) == []


def test_a_sync_covers_the_bytes_written_before_it(disk: SimulatedDisk, tmp_path: Path) -> None:
    files_ = sequence(disk, tmp_path)
    files_.grow(0)
    job = files_.sync_job(0, 100)
    assert not files_.synced(1)
    job()
    assert files_.synced(0) and files_.synced(100) and not files_.synced(101)
    files_.grow(SIZE)
    files_.sync_job(100, SIZE + 5)()
    assert files_.synced(SIZE) and files_.synced(SIZE + 5) and not files_.synced(SIZE + 6)


@pytest.mark.parametrize(
    ("at", "left"),
    [
        (0, []),
        (1, [0]),
        (SIZE - 1, [0]),
        (SIZE, [0]),
        (SIZE + 1, [0, SIZE]),
        (3 * SIZE, [0, SIZE, 2 * SIZE]),
        (9 * SIZE, [0, SIZE, 2 * SIZE]),
    ],
)
def test_a_cut_clears_the_bytes_and_removes_the_files_after_it(
    disk: SimulatedDisk, tmp_path: Path, at: int, left: list[int]
) -> None:
    files_ = sequence(disk, tmp_path)
    for i in range(3):
        files_.grow(i * SIZE).array[:] = 7
    files_.cut(at)
    assert files(tmp_path) == left
    assert files_.end == len(left) * SIZE
    for start in left:
        kept = min(max(at - start, 0), SIZE)
        assert (files_.file_at(start).array[:kept] == 7).all()
        assert (files_.file_at(start).array[kept:] == 0).all()


def test_a_cut_before_the_start_removes_all_files(disk: SimulatedDisk, tmp_path: Path) -> None:
    files_ = sequence(disk, tmp_path)
    files_.grow(2 * SIZE)
    files_.cut(SIZE)
    assert (files_.start, files_.end, files(tmp_path)) == (2 * SIZE, 2 * SIZE, [])
    files_.grow(5 * SIZE)
    assert files_.start == 5 * SIZE


def test_a_cut_is_on_disk(disk: SimulatedDisk, tmp_path: Path) -> None:
    files_ = sequence(disk, tmp_path)
    file = files_.grow(0)
    file.array[:] = 7
    file.sync(SIZE)
    files_.cut(100)
    del files_, file
    disk.cut_power(Random(0), keep=0.0)
    files_ = sequence(disk, tmp_path)
    assert bytes(files_.file_at(0).view) == b"\7" * 100 + bytes(SIZE - 100)
    disk.syncs.clear()
    files_.cut(100)
    assert len(disk.syncs) == 1, "the zeros may be those of a cut that was killed before it could sync them"


def test_an_interrupted_cut_leaves_files_without_a_gap(tmp_path: Path) -> None:
    class DiesAfterOneRemoval(SimulatedDisk):
        removed = 0

        def remove(self, path: Path) -> None:
            if self.removed == 1:
                raise KeyboardInterrupt
            self.removed += 1
            super().remove(path)

    disk = DiesAfterOneRemoval()
    files_ = sequence(disk, tmp_path)
    for i in range(4):
        files_.grow(i * SIZE)
    with pytest.raises(KeyboardInterrupt):
        files_.cut(100)
    assert sequence(SimulatedDisk(), tmp_path).start == 0
