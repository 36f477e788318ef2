"""A master that looks for a later one: by its name servers, and at the slave to which it hands over."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.unit.broker.test_replication_requests import state_of
from wheelmq.broker.replication.master_watch import LaterMaster, MasterWatch, Undecided
from wheelmq.broker.replication.replication import HAND_OVER_MS
from wheelmq.formats.wire.codes import ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.replication_state import ReplicationState
from wheelmq.net.errors import CallError, Refused
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
        self.watch = MasterWatch(harness.broker.parts, lambda later: None)

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


def test_a_name_server_that_rejects_the_question_does_not_say_that_there_is_no_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    code = ResponseCode.NO_PERMISSION

    async def refuse(requests: RpcClient, command: Command, timeout_s: float) -> Command:
        raise Refused(Command(code=code, remark="no right Get"))

    monkeypatch.setattr(RpcClient, "ask", refuse)
    with BrokerHarness(tmp_path, namesrv=NAMES) as harness:
        watch = MasterWatch(harness.broker.parts, lambda later: None)
        with pytest.raises(Undecided, match=r"NO_PERMISSION.*no right Get"):
            asyncio.run(watch.later_master_for_sure())
        assert asyncio.run(watch.later_master()) is None
        assert f"the name server at {NAMES[0]} does not say which broker is the master" in caplog.text
        assert "The user of this broker needs Get on the cluster" in caplog.text
        code = ResponseCode.SYSTEM_BUSY
        caplog.clear()
        watch = MasterWatch(harness.broker.parts, lambda later: None)
        assert asyncio.run(watch.later_master()) is None
        assert "does not say which broker is the master" in caplog.text and "needs Get" not in caplog.text
        code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED  # a name server of RocketMQ 4
        assert asyncio.run(watch.later_master_for_sure()) is None


# After a hand-over --------------------------------------------------------------------------------------------------


def hand_over(around: Around, *, after_ms: int = HAND_OVER_MS) -> LaterMaster | None:
    """Let the master hand over to SLAVE, and return the later master that it finds after a time."""
    around.harness.broker.parts.replication.hand_over(SLAVE)
    return find_later(around, after_ms=after_ms)


def find_later(around: Around, *, after_ms: int = 0) -> LaterMaster | None:
    around.harness.advance(after_ms)
    return asyncio.run(around.watch.find_later())


def test_a_former_master_finds_its_successor_at_a_name_server(around: Around) -> None:
    """It cannot reach the address that the operator named."""
    around.groups = {NAMES[0]: {}, NAMES[1]: {0: "registered:1"}}
    around.states["registered:1"] = around.state(is_master=True)
    later = hand_over(around, after_ms=1000)
    assert later is not None and later.address == "registered:1"


@pytest.mark.parametrize("answers", ["name server", "slave"])
def test_a_master_whose_successor_is_not_promoted_takes_the_role_back(around: Around, answers: str) -> None:
    if answers == "slave":
        around.states[SLAVE] = around.state(is_master=False)
    else:
        around.groups[NAMES[0]] = {0: around.harness.settings.broker.address, 1: SLAVE}
    assert hand_over(around, after_ms=HAND_OVER_MS - 1000) is None
    assert not around.harness.broker.parts.role.is_master, "the slave may still be promoted"
    assert find_later(around, after_ms=1000) is None
    assert around.harness.broker.parts.role.is_master


def test_a_master_that_can_ask_no_broker_after_a_hand_over_logs_the_remedy(
    around: Around, caplog: pytest.LogCaptureFixture
) -> None:
    assert hand_over(around) is None
    assert not around.harness.broker.parts.role.is_master
    assert "does not answer" in caplog.text and "Start the name servers, or the slave" in caplog.text
    around.groups[NAMES[1]] = {}
    assert find_later(around) is None
    assert around.harness.broker.parts.role.is_master


def test_a_master_stays_paused_while_a_named_master_does_not_answer(around: Around) -> None:
    around.groups = {NAMES[0]: {}, NAMES[1]: {0: "registered:1"}}
    assert hand_over(around) is None
    assert not around.harness.broker.parts.role.is_master
