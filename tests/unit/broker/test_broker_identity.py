"""The files with the id that a controller assigned have Apache's bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from wheelmq.broker.replication.controller.identity import Application, BrokerIdentity
from wheelmq.formats.disk.paths import StorePaths
from wheelmq.system.disk import Disk


def identity(folder: Path, name: str = "broker-a") -> BrokerIdentity:
    return BrokerIdentity(Disk(), StorePaths(folder), "c", name)


def test_an_application_is_stored_before_the_id(tmp_path: Path) -> None:
    one = identity(tmp_path)
    assert one.load() is None and one.application() is None
    applied = one.apply(2, "10.0.0.1:10911", 1_700_000_000_000)
    assert (tmp_path / "brokerIdentity-temp").read_bytes() == b"c#broker-a#2#10.0.0.1:10911;1700000000000"
    assert identity(tmp_path).application() == applied == Application(2, "10.0.0.1:10911;1700000000000")
    one.accept(2)
    assert (tmp_path / "brokerIdentity").read_bytes() == b"c#broker-a#2"
    assert identity(tmp_path).load() == 2 and one.application() is None


@pytest.mark.parametrize(
    ("text", "problem"), [("c#broker-a", "damaged"), ("c#broker-a#x", "damaged"), ("c#broker-b#1", "belongs to")]
)
def test_a_file_of_another_broker_ends_the_start(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "brokerIdentity").write_text(text)
    with pytest.raises(OSError, match=problem):
        identity(tmp_path).load()


def test_an_empty_file_is_ignored(tmp_path: Path) -> None:
    """A power cut may leave one."""
    (tmp_path / "brokerIdentity").write_text("\n")
    assert identity(tmp_path).load() is None
