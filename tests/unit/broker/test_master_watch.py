"""A master that looks for a later one: by its name servers, and at the slave to which it hands over."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.unit.broker.test_replication_requests import state_of
from wheelmq.broker.replication.master_watch import LaterMaster, MasterWatch, Undecided
from wheelmq.formats.wire.replication_state import ReplicationState
from wheelmq.net.errors import CallError
from wheelmq.net.rpc_client import RpcClient
from wheelmq.testing.harness import BrokerHarness

NAMES = ("names1:1", "names2:1")
SLAVE = "slave:1"


class Around:
    """The name servers and the other brokers. Those that are in neither table do not answer."""

    def __init__(self, harness: BrokerHarness) -> None:
        self.harness = harness
        self.groups: dict[str, dict[int, str]] = {}
        """The brokers of the name by id, by name server."""
        self.states: dict[str, ReplicationState] = {}
        """The states of other brokers, by address."""
        self.found: list[LaterMaster] = []
        self.watch = MasterWatch(harness.broker.parts, self.found.append)

    def state(self, *, is_master: bool, promotions: int = 1) -> ReplicationState:
        """Return the state of a broker whose epoch is later by a number of promotions."""
        own = state_of(self.harness)
        return msgspec.structs.replace(own, is_master=is_master, epoch=own.epoch + (promotions << 18))

    def is_sure(self) -> bool:
        """Return whether the master knows that there is no later master."""
        try:
            return asyncio.run(self.watch.later_master_for_sure()) is None
        except Undecided:
            return False


@pytest.fixture
def around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Around]:
    async def members(watch: MasterWatch, server: str) -> dict[int, str]:
        if server not in found.groups:
            raise CallError(f"{server}: no answer")
        return found.groups[server]

    async def answer(requests: RpcClient, **fields: object) -> ReplicationState:
        if requests.address not in found.states:
            raise CallError(f"{requests.address}: no answer")
        return found.states[requests.address]

    monkeypatch.setattr(MasterWatch, "_members", members)
    monkeypatch.setattr("wheelmq.broker.replication.master_watch.state_of", answer)
    with BrokerHarness(tmp_path, namesrv=NAMES) as harness:
        found = Around(harness)
        yield found


def test_a_master_without_an_answer_of_any_name_server_is_not_sure(around: Around) -> None:
    assert not around.is_sure()
    around.groups[NAMES[0]] = {}
    assert around.is_sure()


def test_a_named_master_that_does_not_answer_outweighs_an_empty_name_server(around: Around) -> None:
    """The empty one may have just started."""
    around.groups = {NAMES[0]: {}, NAMES[1]: {0: SLAVE}}
    assert not around.is_sure()
    around.states[SLAVE] = around.state(is_master=True, promotions=-1)
    assert around.is_sure(), "its epoch is older"


def test_the_latest_master_is_found(around: Around) -> None:
    around.groups = {NAMES[0]: {0: "silent:1"}, NAMES[1]: {0: SLAVE}}
    around.states[SLAVE] = around.state(is_master=True)
    assert asyncio.run(around.watch.later_master()) == LaterMaster(SLAVE, around.states[SLAVE].epoch, 1)
