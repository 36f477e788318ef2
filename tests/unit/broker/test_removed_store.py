"""A broker whose store is removed or replaced acknowledges and writes nothing more."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

from wheelmq.formats.wire.codes import ResponseCode
from wheelmq.system.disk import Disk, StoreRemoved
from wheelmq.testing.harness import BrokerHarness


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("has_successor", [False, True])
def test_a_broker_whose_store_is_removed_rejects_sends(
    harness: BrokerHarness, caplog: pytest.LogCaptureFixture, has_successor: bool
) -> None:
    harness.send("T", b"stored", queue_id=0)
    store = harness.broker.parts.paths.root
    shutil.rmtree(store)
    if has_successor:
        with BrokerHarness(store) as successor:
            successor.send("T", b"of the next", queue_id=0)
    before = contents(store) if has_successor else {}
    harness.ask_code(15, consumerGroup="g", topic="T", queueId=0, commitOffset=1)  # type: ignore[arg-type]
    harness.advance(1000)
    assert isinstance(harness.broker.parts.health.failure, StoreRemoved)
    answer = harness.send("T", b"refused", queue_id=0)
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "disk is full" not in (answer.remark or "") and "removed or replaced" in (answer.remark or "")
    lines = [one.getMessage() for one in caplog.records if one.levelno == logging.CRITICAL]
    assert len(lines) == 1 and "restore a copy" in lines[0]
    harness.stop()
    assert (contents(store) if store.exists() else {}) == before


def test_files_of_a_successor_are_not_touched(tmp_path: Path) -> None:
    disk = Disk()
    folder = tmp_path / "store"
    held = disk.lock(folder / "lock")
    shutil.rmtree(folder)
    successor = Disk().lock(folder / "lock")
    file = folder / "file"
    Disk().allocate(file, 4096)
    for write in (
        lambda: disk.replace(file, b"x"),
        lambda: disk.map(file, 4096),
        lambda: disk.allocate(folder / "new", 4096),
        lambda: disk.give_room(file, 0, 4096),
        lambda: disk.remove(file),
        lambda: disk.remove_folder(folder),
    ):
        with pytest.raises(StoreRemoved):
            write()
    disk.replace(tmp_path / "elsewhere", b"x")
    assert file.read_bytes() == bytes(4096)
    held.close()
    successor.close()
