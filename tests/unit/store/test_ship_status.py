"""The status of shippers in a store."""

from __future__ import annotations

from pathlib import Path

import pytest

from wheelmq.formats.disk.paths import StorePaths
from wheelmq.store.ship_status import (
    ShipStatus,
    ShipStatusFile,
    has_raw_password,
    public_name,
    public_text,
    read_statuses,
)
from wheelmq.system.disk import Disk


def status(target: str, **fields: int) -> ShipStatus:
    return ShipStatus(target=target, history="h", pid=1, made_ms=10, **fields)


def test_a_status_is_read_as_it_was_written(tmp_path: Path) -> None:
    disk, paths = Disk(), StorePaths(tmp_path)
    file = ShipStatusFile(disk, paths, "s3://b/x")
    assert file.read() is None and read_statuses(disk, paths) == []
    file.write(status("s3://b/x", complete_ms=5, log_end=7))
    file.write(status("s3://b/x", complete_ms=6))
    ShipStatusFile(disk, paths, "/folder").write(status("/folder"))
    assert file.read() == status("s3://b/x", complete_ms=6)
    assert {one.target for one in read_statuses(disk, paths)} == {"s3://b/x", "/folder"}


def test_the_age_counts_from_the_last_complete_copy() -> None:
    assert status("x").age_ms(100) is None
    assert status("x", complete_ms=60).age_ms(100) == 40


def test_a_torn_status_is_ignored(tmp_path: Path) -> None:
    disk, paths = Disk(), StorePaths(tmp_path)
    ShipStatusFile(disk, paths, "/folder").write(status("/folder", complete_ms=5))
    (path,) = paths.ship.iterdir()
    raw = bytearray(path.read_bytes())
    raw[20] ^= 1
    path.write_bytes(raw)
    assert read_statuses(disk, paths) == []


def test_a_long_problem_fits(tmp_path: Path) -> None:
    disk, paths = Disk(), StorePaths(tmp_path)
    file = ShipStatusFile(disk, paths, "/folder")
    file.write(ShipStatus(target="/folder", history="h", pid=1, made_ms=1, problem="x" * 9000))
    found = file.read()
    assert found is not None and found.problem == "x" * 1000


def test_a_name_has_no_password(tmp_path: Path) -> None:
    assert public_name("sftp://user:secret@host/path") == "sftp://host/path"
    disk, paths = Disk(), StorePaths(tmp_path)
    file = ShipStatusFile(disk, paths, "sftp://user:secret@host/path")
    file.write(status(public_name("sftp://user:secret@host/path")))
    (path,) = paths.ship.iterdir()
    assert b"secret" not in path.read_bytes()
    assert ShipStatusFile(disk, paths, "sftp://user:other@host/path").read() is not None


def test_a_text_has_no_password_of_its_target() -> None:
    url = "sftp://bob:s@ec%2Fret@host/path"
    assert public_name(url) == "sftp://host/path"
    text = f"{url}: authentication of bob failed with s@ec/ret or s@ec%2Fret"
    assert public_text(text, url) == "sftp://host/path: authentication of bob failed with *** or ***"
    assert public_text("/folder@2: no room", "/folder@2") == "/folder@2: no room"
    assert public_text("s3://b/x@2: no bucket", "s3://b/x@2") == "s3://b/x@2: no bucket"


def test_a_short_password_does_not_garble_a_text() -> None:
    url = "sftp://bob:a@host/path"
    assert public_text("bad password a at a host: 'a'", url) == "bad password *** at *** host: '***'"


@pytest.mark.parametrize(
    ("url", "is_raw"),
    [
        ("sftp://bob:pa/ss@host/x", True),
        ("sftp://bob:/ss@host/x", True),
        ("sftp://bob:12/a/ss@host/x", False),  # like a host with a port
        ("sftp://bob:pa ss@host/x", True),
        ("sftp://bob:pass@host/x@2", False),
        ("sftp://bob:pass@host:22/x@2", False),
        ("sftp://host:22/x@2", False),
        ("sftp://[::1]:22/x@2", False),
        ("sftp://[::1]/x@2", False),
        ("s3://b/x@2", False),
        ("s3://b/x:y@2", False),
        ("/folder:a/b@2", False),
    ],
)
def test_a_raw_password_is_found(url: str, is_raw: bool) -> None:
    assert has_raw_password(url) is is_raw
