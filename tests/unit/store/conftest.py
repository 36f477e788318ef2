"""Sent messages, and a killed broker whose log a test can damage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from wheelmq.formats.disk.message import Record
from wheelmq.testing.harness import BrokerHarness

LOG = f"commitlog/{0:020d}"


def bodies(count: int) -> list[bytes]:
    return [b"message %d" % i for i in range(count)]


def send_all(harness: BrokerHarness, count: int, topic: str = "T") -> list[Record]:
    for body in bodies(count):
        assert harness.send(topic, body).code == 0
    return harness.read_queue(topic)


def write(path: Path, at: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(data)


@pytest.fixture
def stopped(harness: BrokerHarness) -> Iterator[tuple[BrokerHarness, list[Record]]]:
    """A killed broker with ten messages in its log. A test may damage the log before the start."""
    records = send_all(harness, 10)
    harness.crash()
    yield harness, records
