"""Folders as targets: exclusive objects, and unfinished files."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest

from tests.unit.backup.conftest import Ship
from wheelmq.backup.target import FolderTarget, TargetTaken
from wheelmq.system.disk import Disk
from wheelmq.system.unfinished_file import unfinished_file
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.stops import Died, Stops


class InterruptedDisk(Disk):
    """Calls a function of the test once, when the content of a new file is written and its name is not."""

    def __init__(self, interrupt: Callable[[], None]) -> None:
        super().__init__()
        self._interrupt: Callable[[], None] | None = interrupt

    def sync_new(self, handle: int) -> None:
        super().sync_new(handle)
        if self._interrupt is not None:
            interrupt, self._interrupt = self._interrupt, None
            interrupt()


def unfinished_in(root: Path) -> list[str]:
    return sorted(path.name for path in root.rglob("*.tmp"))


def test_only_one_of_two_shippers_creates_an_object(tmp_path: Path) -> None:
    other = FolderTarget(Disk(), tmp_path)
    target = FolderTarget(InterruptedDisk(lambda: other.write("new/1", b"other")), tmp_path)
    with pytest.raises(TargetTaken, match="another shipper"):
        target.write("new/1", b"mine")
    assert target.read("new/1") == b"other" and unfinished_in(tmp_path) == []


def test_a_file_system_without_hard_links_is_a_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(source: Path, target: Path) -> None:
        raise OSError(errno.EPERM, "no links")

    monkeypatch.setattr(os, "link", link)
    target = FolderTarget(Disk(), tmp_path)
    target.write("new/1", b"one")
    with pytest.raises(TargetTaken):
        target.write("new/1", b"other")
    assert target.read("new/1") == b"one" and unfinished_in(tmp_path) == []


def test_a_start_removes_unfinished_files_of_killed_shippers(harness: BrokerHarness, ship: Ship) -> None:
    harness.send("T", b"one")
    shipper, root = ship.shipper(), ship.root / "target"
    with Stops() as stops, pytest.raises(Died):
        stops.arm_in("create.written")
        shipper.step()
    assert len(unfinished_in(root)) == 1
    (root / "new" / "0000000000000007.tmp").write_bytes(b"of an older version")
    (root / "notes.tmp").write_bytes(b"of the user")
    (root / "photos").mkdir()
    for name in ("photos/2024.tmp", "new/2024.tmp", "new/0000000000000007.jpg.tmp"):
        (root / name).write_bytes(b"of the user")
    assert ship.target.names("new") == []
    ship.shipper().step()
    assert unfinished_in(root) == ["0000000000000007.jpg.tmp", "2024.tmp", "2024.tmp", "notes.tmp"]
    assert ship.check().counts.records == 1


def test_a_start_keeps_the_unfinished_file_of_a_running_shipper(harness: BrokerHarness, ship: Ship) -> None:
    harness.send("T", b"one")
    ship.shipper().step()
    root, found = ship.root / "target", []

    def start_another() -> None:
        Ship(ship.root, FolderTarget(Disk(), root), ship.clock).shipper()
        found.extend(unfinished_in(root))

    ship.target = FolderTarget(InterruptedDisk(start_another), root)
    harness.send("T", b"two")
    ship.shipper().step()
    assert len(found) == 1 and unfinished_in(root) == []
    assert ship.check().counts.records == 2


@pytest.mark.parametrize(
    "name",
    [
        "wheelmq-ship.json",
        "new/0000000000000042",
        "log/0000000000000001-0000000000000041",
        "blocks/0000000000000001-0000000000000041",
        "blocks/0000000000000001-0000000000000041.2",
        "points/0000000000000001-0000000000000041",
        "points/0000000000000001-0000000000000020.base",
    ],
)
def test_the_unfinished_file_of_each_object_is_removed(tmp_path: Path, name: str) -> None:
    target = FolderTarget(Disk(), tmp_path)
    with Stops() as stops, pytest.raises(Died):
        stops.arm_in("create.written")
        target.write(name, b"x")
    (tmp_path / f"{name}.tmp").write_bytes(b"of an older version")
    assert len(unfinished_in(tmp_path)) == 2
    target.remove_unfinished()
    assert unfinished_in(tmp_path) == []


@pytest.mark.parametrize("fails", [False, True])
def test_an_unfinished_file_is_closed_before_it_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """NFS gives an open file another name in place of a removal."""
    files: list[BinaryIO] = []
    unlink = Path.unlink

    def remove(path: Path, missing_ok: bool = False) -> None:
        assert files[0].closed
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", remove)
    with (
        pytest.raises(OSError, match="planted") if fails else contextlib.nullcontext(),
        unfinished_file(tmp_path / "x") as (fresh, file),
    ):
        files.append(file)
        assert fresh.exists()
        if fails:
            raise OSError("planted")
    assert unfinished_in(tmp_path) == []


def test_a_failed_write_leaves_no_unfinished_file(tmp_path: Path) -> None:
    def fail() -> None:
        raise OSError(errno.EIO, "planted")

    with pytest.raises(OSError, match="planted"):
        FolderTarget(InterruptedDisk(fail), tmp_path).write("new/1", b"one")
    assert unfinished_in(tmp_path) == []


def test_a_folder_target_ignores_unfinished_files(tmp_path: Path) -> None:
    target = FolderTarget(Disk(), tmp_path / "target")
    target.write("new/1", b"whole")
    (tmp_path / "target" / "new" / "2.tmp").write_bytes(b"half")
    assert target.names("new") == ["new/1"]
