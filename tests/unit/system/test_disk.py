"""The machine's file system, and the simulated one wherever both must agree."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import stat
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import ClassVar

import pytest

from wheelmq.system import mapped_file
from wheelmq.system.disk import Disk, DiskFull, ReadOnlyDisk, StoreLocked
from wheelmq.testing.disk import PAGE_BYTES, SECTOR_BYTES, Call, SimulatedDisk

HOLD = """
import sys
from pathlib import Path
from wheelmq.system.disk import Disk
held = Disk().lock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture(params=[Disk, SimulatedDisk], ids=["real", "simulated"])
def any_disk(request: pytest.FixtureRequest) -> Disk:
    made: Disk = request.param()
    return made


class TestMap:
    def test_a_new_file_has_disk_space_and_only_zeros(self, any_disk: Disk, tmp_path: Path) -> None:
        path = tmp_path / "deep" / "file"
        file = any_disk.map(path, 10_000)
        assert bytes(file.view) == bytes(10_000)
        status = path.stat()
        assert status.st_size == 10_000
        assert status.st_blocks * 512 >= 10_000  # a hole would be SIGBUS on a full disk
        assert os.listdir(path.parent) == ["file"]

    def test_array_and_view_are_the_same_bytes(self, any_disk: Disk, tmp_path: Path) -> None:
        file = any_disk.map(tmp_path / "file", 4096)
        file.view[5] = 7
        file.array[6] = 8
        assert (file.array[5], file.view[6]) == (7, 8)
        assert (tmp_path / "file").read_bytes()[4:8] == b"\0\x07\x08\0"
        assert any_disk.map(tmp_path / "file", 4096).view[6] == 8

    def test_the_array_for_reading_shows_each_store_and_takes_none(self, any_disk: Disk, tmp_path: Path) -> None:
        file = any_disk.map(tmp_path / "file", 1 << 16)
        file.array[7] = 1
        assert file.read_array[7] == 1
        with pytest.raises(ValueError, match="read-only"):
            file.read_array[7] = 2

    def test_a_file_of_another_size_is_rejected(self, any_disk: Disk, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"x")
        with pytest.raises(OSError, match="has 1 bytes where 4096 are configured") as caught:
            any_disk.map(tmp_path / "file", 4096)
        assert caught.value.errno == errno.EINVAL

    def test_an_unfinished_file_is_made_again(self, any_disk: Disk, tmp_path: Path) -> None:
        (tmp_path / "file.new").write_bytes(b"half")
        assert bytes(any_disk.map(tmp_path / "file", 100).view) == bytes(100)
        assert os.listdir(tmp_path) == ["file"]

    def test_a_full_disk_leaves_no_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(handle: int, at: int, size: int) -> None:
            os.pwrite(handle, b"part of it", 0)
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "posix_fallocate", full)
        with pytest.raises(DiskFull, match="no room for 4096 bytes"):
            Disk().map(tmp_path / "file", 4096)
        assert os.listdir(tmp_path) == []

    @pytest.mark.parametrize("name", ["open", "posix_fallocate", "fsync", "mkdir"])
    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
    def test_a_full_disk_at_any_step_leaves_no_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: int
    ) -> None:
        def full(*_: object, **__: object) -> int:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(os, name, full)
        with pytest.raises(DiskFull, match="no room for"):
            Disk().map(tmp_path / "folder" / "file", 4096)
        monkeypatch.undo()
        assert os.listdir(tmp_path / "folder") == [] if (tmp_path / "folder").exists() else True

    def test_the_size_is_durable_before_the_name(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        really, seen = os.fsync, []

        def note(handle: int) -> None:
            if os.path.isfile(f"/proc/self/fd/{handle}"):
                seen.append((os.fstat(handle).st_size, (tmp_path / "file").exists()))
            really(handle)

        monkeypatch.setattr(os, "fsync", note)
        Disk().allocate(tmp_path / "file", 4096)
        assert seen == [(4096, False)]

    def test_any_other_error_is_not_a_full_disk(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def broken(handle: int, at: int, size: int) -> None:
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(os, "posix_fallocate", broken)
        with pytest.raises(OSError, match="Input/output") as caught:
            Disk().map(tmp_path / "file", 4096)
        assert not isinstance(caught.value, DiskFull)
        assert os.listdir(tmp_path) == []

    def test_two_threads_may_make_one_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path, really = tmp_path / "file", os.posix_fallocate

        def slow(handle: int, at: int, size: int) -> None:
            monkeypatch.setattr(os, "posix_fallocate", really)
            Disk().allocate(path, 4096)  # the other thread, while this one waits for its blocks
            really(handle, at, size)

        monkeypatch.setattr(os, "posix_fallocate", slow)
        Disk().allocate(path, 4096)
        assert bytes(Disk().map(path, 4096).view) == bytes(4096)
        assert os.listdir(tmp_path) == ["file"]

    @pytest.mark.parametrize("is_full", [False, True])
    def test_an_existing_file_is_not_replaced_by_a_later_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_full: bool
    ) -> None:
        path, really = tmp_path / "file", os.posix_fallocate

        def slow(handle: int, at: int, size: int) -> None:
            monkeypatch.setattr(os, "posix_fallocate", really)
            Disk().map(path, 4096).view[0] = 7
            if is_full:
                raise OSError(errno.ENOSPC, "No space left on device")
            really(handle, at, size)

        monkeypatch.setattr(os, "posix_fallocate", slow)
        assert Disk().map(path, 4096).view[0] == 7
        assert os.listdir(tmp_path) == ["file"]

    def test_only_leftovers_of_unfinished_files_are_removed(self, tmp_path: Path) -> None:
        for name in ("file.7.new", "file.new", "file2.new", "file.bak"):
            (tmp_path / name).write_bytes(b"x")
        Disk().allocate(tmp_path / "file", 4096)
        assert sorted(os.listdir(tmp_path)) == ["file", "file.bak", "file2.new"]

    def test_the_names_of_new_folders_are_durable(self, tmp_path: Path) -> None:
        class Noting(Disk):
            synced: ClassVar[list[Path]] = []

            def sync_folder(self, folder: Path) -> None:
                self.synced.append(folder)

        disk = Noting()
        disk.allocate(tmp_path / "a" / "b" / "file", 4096)
        assert disk.synced == [tmp_path, tmp_path / "a", tmp_path / "a" / "b"]
        disk.synced.clear()
        disk.replace(tmp_path / "a" / "c" / "small", b"x")
        assert disk.synced == [tmp_path / "a", tmp_path / "a" / "c"]

    def test_synced_bytes_grow_with_each_sync(self, any_disk: Disk, tmp_path: Path) -> None:
        file = any_disk.map(tmp_path / "file", 4096)
        assert file.synced_bytes == 0
        file.sync(100)
        file.sync(50)
        assert file.synced_bytes == 100

    def test_a_failed_sync_leaves_synced_bytes_unchanged(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        file = Disk().map(tmp_path / "file", 4096)

        def fail(*_: object) -> int:
            ctypes.set_errno(errno.EIO)
            return -1

        monkeypatch.setattr(mapped_file, "_msync", fail)
        with pytest.raises(OSError, match="Input/output"):
            file.sync(100)
        assert file.synced_bytes == 0

    def test_a_sync_needs_no_descriptor(self, tmp_path: Path) -> None:
        file = Disk().map(tmp_path / "file", 5000)
        file.view[:5] = b"hello"
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
        try:
            with pytest.raises(OSError, match="Too many open files"):
                os.open(tmp_path / "file", os.O_RDONLY)
            file.sync(5)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert file.synced_bytes == 5


class TestSmallFiles:
    def test_a_read_returns_the_bytes_or_none(self, any_disk: Disk, tmp_path: Path) -> None:
        assert any_disk.read(tmp_path / "none") is None
        (tmp_path / "file").write_bytes(b"x")
        assert any_disk.read(tmp_path / "file") == b"x"

    def test_a_replacement_may_keep_the_previous_file(self, any_disk: Disk, tmp_path: Path) -> None:
        path = tmp_path / "deep" / "file"
        any_disk.replace(path, b"one")
        any_disk.replace(path, b"two")
        assert (path.read_bytes(), os.listdir(path.parent)) == (b"two", ["file"])
        any_disk.replace(path, b"three", keep_previous=True)
        any_disk.replace(path, b"four", keep_previous=True)
        assert path.read_bytes() == b"four"
        assert path.with_name("file.bak").read_bytes() == b"three"

    def test_a_replacement_keeps_the_mode_of_the_old_file(self, any_disk: Disk, tmp_path: Path) -> None:
        """A settings file may hold secrets that other users must not see."""
        path = tmp_path / "f"
        path.write_bytes(b"old")
        for mode in (0o600, 0o664):
            path.chmod(mode)
            any_disk.replace(path, b"new", keep_previous=True)
            assert [stat.S_IMODE(one.stat().st_mode) for one in (path, tmp_path / "f.bak")] == [mode, mode]

    def test_a_failed_replacement_leaves_the_old_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "file"
        Disk().replace(path, b"old")

        def fail(handle: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="No space"):
            Disk().replace(path, b"new", keep_previous=True)
        assert path.read_bytes() == b"old"

    def test_files_are_listed_and_removed(self, any_disk: Disk, tmp_path: Path) -> None:
        assert any_disk.list(tmp_path / "none") == []
        any_disk.make_folder(tmp_path / "a" / "b")
        (tmp_path / "z").write_bytes(b"")
        assert any_disk.list(tmp_path) == ["a", "z"]
        any_disk.remove(tmp_path / "z")
        any_disk.remove(tmp_path / "z")
        assert any_disk.list(tmp_path) == ["a"]


class TestLock:
    def test_a_held_lock_rejects_another_process(self, tmp_path: Path) -> None:
        path = tmp_path / "store" / "lock"
        path.parent.mkdir()
        with subprocess.Popen(
            [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == b"held\n"
            with pytest.raises(StoreLocked, match="another broker runs on this store"):
                Disk().lock(path)
            other.kill()
        held = Disk().lock(path)  # a process that was killed holds nothing
        assert path.read_bytes() == b"lock"
        held.close()

    def test_the_simulated_lock_rejects_a_second_broker_of_this_process(self, tmp_path: Path) -> None:
        disk = SimulatedDisk()
        held = disk.lock(tmp_path / "lock")
        with pytest.raises(StoreLocked):
            disk.lock(tmp_path / "lock")
        held.close()
        disk.lock(tmp_path / "lock")
        disk.release_locks()
        disk.lock(tmp_path / "lock").close()


class TestReadOnly:
    def test_a_read_only_disk_reads_and_changes_nothing(self, tmp_path: Path) -> None:
        Disk().map(tmp_path / "file", 4096).view[0] = 9
        file = ReadOnlyDisk().map(tmp_path / "file", 4096)
        assert file.view[0] == 9
        with pytest.raises((TypeError, ValueError)):
            file.view[0] = 1
        with pytest.raises(FileNotFoundError):
            ReadOnlyDisk().map(tmp_path / "none", 4096)
        with pytest.raises(OSError, match="are expected"):
            ReadOnlyDisk().map(tmp_path / "file", 8192)
        assert os.listdir(tmp_path) == ["file"]


class TestPowerCut:
    def test_a_power_cut_keeps_synced_bytes_and_may_lose_others(self, tmp_path: Path) -> None:
        disk = SimulatedDisk()
        file = disk.map(tmp_path / "file", 3 * PAGE_BYTES)
        file.array[:] = 1
        file.sync(file.size)
        file.array[0], file.array[2 * PAGE_BYTES] = 2, 2
        disk.cut_power(Random(0), keep=0.0)
        assert (tmp_path / "file").read_bytes() == b"\x01" * (3 * PAGE_BYTES)

    @staticmethod
    def _cut(path: Path, seed: int, torn: float) -> bytes:
        """Return the bytes of a file of two pages that was written and not synced, after a power cut."""
        disk = SimulatedDisk()
        disk.map(path, 2 * PAGE_BYTES).array[:] = 1
        disk.sync_folder(path.parent)
        disk.cut_power(Random(seed), torn=torn)
        return path.read_bytes()

    def test_pages_are_kept_independently(self, tmp_path: Path) -> None:
        outcomes = set()
        for seed in range(40):
            raw = self._cut(tmp_path / str(seed), seed, torn=0.0)
            assert len(set(raw[:PAGE_BYTES])) == len(set(raw[PAGE_BYTES:])) == 1
            outcomes.add((raw[0], raw[-1]))
        assert outcomes == {(0, 0), (0, 1), (1, 0), (1, 1)}

    def test_sectors_of_a_torn_page_are_kept_independently(self, tmp_path: Path) -> None:
        outcomes = set()
        for seed in range(40):
            raw = self._cut(tmp_path / str(seed), seed, torn=1.0)
            sectors = [raw[at : at + SECTOR_BYTES] for at in range(0, len(raw), SECTOR_BYTES)]
            assert all(len(set(sector)) == 1 for sector in sectors)
            outcomes.add(bytes(sector[0] for sector in sectors))
        assert len(outcomes) > 30

    def test_bytes_that_the_kernel_wrote_back_are_kept(self, tmp_path: Path) -> None:
        disk = SimulatedDisk()
        file = disk.map(tmp_path / "file", PAGE_BYTES)
        file.array[:] = 1
        disk.write_back(Random(0), share=1.0)
        file.array[:] = 2
        disk.cut_power(Random(0), keep=0.0)
        assert (tmp_path / "file").read_bytes() == b"\x01" * PAGE_BYTES

    def test_a_second_cut_starts_from_the_result_of_the_first(self, tmp_path: Path) -> None:
        disk = SimulatedDisk()
        file = disk.map(tmp_path / "file", PAGE_BYTES)
        file.array[:] = 1
        disk.cut_power(Random(0), keep=1.0)
        file.array[:] = 2
        disk.cut_power(Random(0), keep=0.0)
        assert (tmp_path / "file").read_bytes() == b"\x01" * PAGE_BYTES

    def test_an_unsynced_name_may_be_lost(self, tmp_path: Path) -> None:
        disk = SimulatedDisk()
        disk.replace(tmp_path / "kept", b"old")
        disk.fail_call(1, OSError(errno.EIO, "broken"), [Call.SYNC_FOLDER])
        with pytest.raises(OSError, match="broken"):
            disk.replace(tmp_path / "kept", b"new")
        disk.remove(tmp_path / "none")
        disk.cut_power(Random(0), keep=0.0)
        assert (tmp_path / "kept").read_bytes() == b"old"

    def test_a_removed_file_may_come_back(self, tmp_path: Path) -> None:
        disk = SimulatedDisk()
        file = disk.map(tmp_path / "file", PAGE_BYTES)
        file.array[:] = 1
        file.sync(file.size)
        file.array[:] = 2
        disk.remove(tmp_path / "file")
        disk.cut_power(Random(0), keep=0.0)
        assert (tmp_path / "file").read_bytes() == b"\x01" * PAGE_BYTES

    def test_unsynced_removals_take_effect_in_order(self, tmp_path: Path) -> None:
        outcomes = set()
        for seed in range(40):
            disk, folder = SimulatedDisk(), tmp_path / str(seed)
            disk.make_folder(folder)
            for name in "ab":
                disk.replace(folder / name, b"")
            disk.sync_folder(tmp_path)
            for name in "ab":
                disk.remove(folder / name)
            disk.cut_power(Random(seed))
            outcomes.add(tuple(disk.list(folder)))
        assert outcomes == {(), ("b",), ("a", "b")}


class TestFailures:
    @pytest.mark.parametrize("nth", [1, 2, 3])
    def test_the_nth_call_fails_once(self, tmp_path: Path, nth: int) -> None:
        disk = SimulatedDisk()
        file = disk.map(tmp_path / "file", PAGE_BYTES)
        disk.fail_call(nth, OSError(errno.EIO, "broken"), [Call.SYNC])
        failed = []
        for i in range(1, 5):
            try:
                file.sync(file.size)
            except OSError:
                failed.append(i)
        assert failed == [nth] and len(disk.syncs) == 3

    def test_only_the_chosen_calls_are_counted(self, tmp_path: Path) -> None:
        disk = SimulatedDisk()
        disk.fail_call(1, OSError(errno.EIO, "broken"), [Call.REPLACE, Call.REMOVE])
        disk.map(tmp_path / "file", PAGE_BYTES)
        with pytest.raises(OSError, match="broken"):
            disk.remove(tmp_path / "file")
        assert (tmp_path / "file").exists()

    def test_a_full_disk_rejects_new_files(self, tmp_path: Path) -> None:
        disk = SimulatedDisk()
        disk.is_full = lambda path: True
        for make in (
            lambda: disk.allocate(tmp_path / "file", PAGE_BYTES),
            lambda: disk.replace(tmp_path / "file", b""),
        ):
            with pytest.raises(DiskFull):
                make()
        disk.heal()
        disk.replace(tmp_path / "file", b"")
        assert os.listdir(tmp_path) == ["file"]
