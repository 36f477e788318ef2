"""Targets in object stores: fsspec's memory and local files, and S3 over loopback with moto's server."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import fsspec
import pytest

from tests.s3_server import s3_server
from tests.unit.backup.conftest import Ship
from wheelmq.backup.object_store import ObjectStoreTarget, TargetUnusable
from wheelmq.backup.settings import ShipSettings
from wheelmq.backup.target import FolderTarget, Target, TargetTaken
from wheelmq.cli.ports import free_port
from wheelmq.system.disk import Disk
from wheelmq.testing.harness import BrokerHarness


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """The address of an S3 server with the bucket `copies`."""
    with s3_server() as url:
        yield url


@pytest.fixture(params=["folder", "memory", "local", "s3"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    name = f"{request.node.name}-{tmp_path.name}"
    if request.param == "folder":
        return FolderTarget(Disk(), tmp_path / "target")
    if request.param == "memory":
        return ObjectStoreTarget.open(f"memory://{name}", {})
    if request.param == "local":
        return ObjectStoreTarget(fsspec.filesystem("file", auto_mkdir=True), str(tmp_path / "target"))
    url = request.getfixturevalue("s3")
    return ObjectStoreTarget.open(f"s3://copies/{tmp_path.name}/{os.getpid()}", {"endpoint_url": url})


def test_objects_are_written_read_listed_and_removed(target: Target) -> None:
    assert target.names("") == [] and target.names("new") == []
    target.write("new/2", b"two")
    target.write("new/1", b"one")
    target.write("other", b"")
    target.settle()
    assert target.names("") == ["new/1", "new/2", "other"] and target.names("new") == ["new/1", "new/2"]
    assert target.read("new/2") == b"two"
    target.remove("new/2")
    target.remove("new/2")
    assert target.names("new") == ["new/1"]
    with pytest.raises(FileNotFoundError):
        target.read("new/2")


def test_an_object_is_never_replaced(target: Target) -> None:
    target.write("new/1", b"one")
    target.write("new/1", b"one")  # the first attempt had succeeded
    with pytest.raises(TargetTaken, match="another shipper"):
        target.write("new/1", b"another")
    assert target.read("new/1") == b"one"


def test_a_store_is_shipped_and_restored(harness: BrokerHarness, ship: Ship, target: Target) -> None:
    ship.target = target
    ship.settings = ShipSettings(merged_count=3, small_bytes_max=600, keep_ms=20_000, expiry_interval_ms=0)
    shipper = ship.shipper()
    for i in range(12):
        harness.send("T", b"%d" % i)
        harness.send("T", b"timer %d" % i, delay_ms=600_000)
        harness.send("T", b"block %d" % i, properties={"delayInSeconds": "600"})
        shipper.step()
        harness.advance(3000)
        if i == 6:
            shipper = ship.shipper(shipper.identity.history)
    counts = ship.check_all().counts
    assert (counts.timers, counts.in_blocks) == (12, 12)
    assert ship.restore().counts == counts
    with BrokerHarness(ship.root / "restored", clock=ship.clock) as restored:
        assert restored.bodies("T") == [b"%d" % i for i in range(12)]


def test_a_bucket_that_does_not_exist_is_an_error_with_its_name(s3: str) -> None:
    target = ObjectStoreTarget.open("s3://no-such-bucket/x", {"endpoint_url": s3})
    with pytest.raises(OSError, match=r"bucket does not exist.*no-such-bucket"):
        target.write("new/1", b"one")


def test_a_server_that_does_not_answer_is_an_error(s3: str) -> None:
    options = {"endpoint_url": f"http://127.0.0.1:{free_port()}", "config_kwargs": {"retries": {"max_attempts": 0}}}
    target = ObjectStoreTarget.open("s3://copies/x", options)
    with pytest.raises(OSError, match="Could not connect"):
        target.write("new/1", b"one")


def test_a_store_without_its_package_names_the_remedy() -> None:
    with pytest.raises(TargetUnusable, match="Install the package for nosuch://"):
        ObjectStoreTarget.open("nosuch://bucket/x", {})
    with mock.patch.dict(sys.modules, {"fsspec": None}), pytest.raises(TargetUnusable, match=r"wheelmq\[ship\]"):
        ObjectStoreTarget.open("s3://bucket/x", {})
