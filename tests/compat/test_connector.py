"""The suite of the Spark connector against Apache RocketMQ, without Spark."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from compat.apache.apache import VERSIONS, ApacheBroker, ApacheNameServer
from pyspark_rocketmq.errors import OptionError
from tests.live import Client
from tests.unit.connector.test_exactly_once import Query
from tests.unit.connector.test_mapped_store import TestFiles, pulled
from tests.unit.connector.test_sink import TestSink
from tests.unit.connector.test_source import TestBatch, TestBrokers, TestStream

__all__ = ["TestBatch", "TestBrokers", "TestFiles", "TestSink", "TestStream", "pulled"]

pytestmark = [
    pytest.mark.java,
    pytest.mark.skipif(os.environ.get("COMPAT") != "whole", reason="minutes: COMPAT=whole, as `make compat` sets it"),
]


class Apache(Client):
    """The running servers of Apache, as a suite uses them."""

    def __init__(self, folder: Path, version: str) -> None:
        self._folder = folder
        self._version = version
        self._names = ApacheNameServer(folder / "names")
        self._names.start()
        self.namesrv = self._names.address
        self.topic = "T"
        self._brokers: dict[str, ApacheBroker] = {}

    def add_broker(self, name: str) -> None:
        """Start a broker, or start it again."""
        if name not in self._brokers:
            config = {"brokerName": name, "enablePropertyFilter": "true", "mappedFileSizeCommitLog": str(1 << 24)}
            home = self._folder / name
            self._brokers[name] = ApacheBroker(home, self.namesrv, config=config, version=self._version)
        self._brokers[name].start()

    def stop_broker(self, name: str) -> None:
        self._brokers[name].kill()

    def broker_address(self, name: str) -> str:
        return self._brokers[name].address

    def store(self, name: str) -> Path:
        return self._brokers[name].store_dir

    def close(self) -> None:
        for broker in self._brokers.values():
            if broker.is_running:
                broker.kill()
        self._names.kill()


@pytest.fixture(scope="module", params=VERSIONS)
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apache]:
    found = Apache(tmp_path_factory.mktemp("apache"), request.param)
    try:
        found.add_broker("broker-a")
        yield found
    finally:
        found.close()


@pytest.fixture
def servers(shared: Apache, request: pytest.FixtureRequest) -> Apache:
    shared.topic = re.sub(r"\W+", "-", request.node.name)[-100:]
    return shared


@pytest.fixture(params=VERSIONS)
def own_servers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Apache]:
    found = Apache(tmp_path, request.param)
    try:
        found.add_broker("broker-a")
        yield found
    finally:
        found.close()


def test_exactly_once_is_an_error_with_a_remedy(servers: Apache) -> None:
    servers.create_topic(servers.topic)
    with pytest.raises(OptionError, match=r"does not know its requests.*set guarantee to at-least-once"):
        Query(servers).task(0, [b"x"])
