"""Warm log files are locked in memory, and unlocked once the log has left them."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path

import pytest

from wheelmq.store.mapped import MappedSequence
from wheelmq.store.warm_locks import WarmLocks
from wheelmq.system import mapped_file as file_module
from wheelmq.system.disk import Disk
from wheelmq.system.mapped_file import MappedFile
from wheelmq.system.workers import InlineWorker
from wheelmq.testing.harness import BrokerHarness

SIZE = 64 << 10
"""Less than the memory that any system lets a process lock."""


def locked_kib(path: Path) -> int:
    """Return the locked size of a mapped file, as the system reports it."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    total = 0
    for line in lines:
        if line.endswith(str(path)):
            flags = next(one for one in lines if one.startswith("VmFlags"))
            if " lo" in flags:
                total += SIZE >> 10
    return total


def sequence(folder: Path, files: int) -> tuple[MappedSequence, list[MappedFile]]:
    found = MappedSequence(Disk(), folder, SIZE)
    found.grow(0)
    made = found.ahead_job(files, SIZE)()
    found.take_ahead(made)
    return found, made


def test_a_file_is_locked_and_unlocked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_module, "LOCKED_BYTES", 2 * mmap.PAGESIZE)  # in pieces
    file = Disk().map(tmp_path / f"{0:020d}", SIZE)
    file.lock()
    assert locked_kib(file.path) == SIZE >> 10
    file.unlock()
    assert locked_kib(file.path) == 0


def test_a_lock_that_fails_leaves_nothing_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_module, "LOCKED_BYTES", SIZE // 2)
    file = Disk().map(tmp_path / f"{0:020d}", SIZE)
    lock, calls = file_module._mlock, []

    def fail_at_the_second(address: int, size: int) -> int:
        calls.append(size)
        if len(calls) == 2:
            file_module.ctypes.set_errno(errno.ENOMEM)
            return -1
        return int(lock(address, size))

    monkeypatch.setattr(file_module, "_mlock", fail_at_the_second)
    with pytest.raises(OSError, match=os.strerror(errno.ENOMEM)):
        file.lock()
    assert calls == [SIZE // 2] * 2 and locked_kib(file.path) == 0


def test_files_made_ahead_are_locked_until_the_log_has_left_them(tmp_path: Path) -> None:
    files, made = sequence(tmp_path, 2)
    locks = WarmLocks(files, InlineWorker(), 2)
    locks.lock(made)
    assert [locked_kib(file.path) for file in made] == [64, 64]
    locks.unlock_before(2 * SIZE - 1)
    assert [locked_kib(file.path) for file in made] == [64, 64]
    locks.unlock_before(2 * SIZE)
    assert [locked_kib(file.path) for file in made] == [0, 64]


def test_missing_permission_gives_one_warning_with_the_needed_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(file: MappedFile) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory", str(file.path))

    monkeypatch.setattr(MappedFile, "lock", fail)
    files, made = sequence(tmp_path, 2)
    locks = WarmLocks(files, InlineWorker(), 2)
    for file in made:
        locks.lock([file])
    (line,) = caplog.messages
    assert line.startswith(
        "warm_maped_file_enable: the broker populates log files and does not lock them in memory: [Errno 12]"
    )
    assert f"allow {3 * SIZE} bytes with ulimit -l" in line
    locks.unlock_before(3 * SIZE)  # nothing to unlock


@pytest.mark.parametrize("is_warm", [True, False])
def test_a_broker_locks_files_only_if_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_warm: bool
) -> None:
    seen: list[tuple[str, int]] = []
    monkeypatch.setattr(MappedFile, "lock", lambda file: seen.append(("lock", int(file.path.name))))
    monkeypatch.setattr(MappedFile, "unlock", lambda file: seen.append(("unlock", int(file.path.name))))
    chosen = {"log_file_bytes": SIZE, "log_files_ahead": 1, "warm_maped_file_enable": is_warm}
    with BrokerHarness(tmp_path, **chosen) as harness:
        while harness.broker.parts.store.log.end < 2 * SIZE:
            harness.send("T", bytes(10_000))
        harness.settle()
    expected = [("lock", SIZE), ("lock", 2 * SIZE), ("unlock", SIZE), ("lock", 3 * SIZE)] if is_warm else []
    assert sorted(seen) == sorted(expected)
