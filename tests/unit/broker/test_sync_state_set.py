"""With a controller, a message is acknowledged once all replicas in sync have it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from tests.unit.broker.block_pairs import later, waiting
from tests.unit.broker.test_replicas import code_of, send_later
from wheelmq.broker.replication.controller.elections import ControllerDecision, Effect
from wheelmq.broker.replication.controller.sync_state_changes import JOIN_MS_MAX, RETRY_MS
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.replica import FakeReplica
from wheelmq.testing.replication import BlockCopy

ELECTED: Final[dict[str, Any]] = {"controller_mode": True, "controller_addresses": ("127.0.0.1:9",)}
OWN: Final = 1


def take(harness: BrokerHarness, master: int | None, epoch: int, members: tuple[int, ...], set_epoch: int) -> Effect:
    elections = harness.broker.parts.elections
    assert elections is not None
    effect = elections.take(ControllerDecision(master, f"10.0.0.{master}:10911", epoch, frozenset(members), set_epoch))
    harness.tick()
    return effect


def lead(harness: BrokerHarness) -> None:
    """Be elected, alone in sync."""
    elections = harness.broker.parts.elections
    assert elections is not None
    elections.take_id(OWN)
    assert take(harness, OWN, 1, (OWN,), 1) is Effect.LEADS


def wanted(harness: BrokerHarness) -> set[int] | None:
    elections = harness.broker.parts.elections
    assert elections is not None
    found = elections.membership.wanted()
    harness.tick()
    return None if found is None else set(found)


def follow(harness: BrokerHarness, replica_id: int) -> FakeReplica:
    """Connect a replica that has the whole log."""
    replica = FakeReplica(harness)
    replica.shake_hands(replica_id)
    replica.frames()
    replica.report(harness.broker.parts.store.log.end)
    return replica


def join(harness: BrokerHarness, *ids: int) -> list[FakeReplica]:
    """Let replicas be in sync."""
    replicas = [follow(harness, one) for one in ids]
    assert wanted(harness) == {OWN, *ids}
    harness.broker.parts.elections.membership.request(frozenset({OWN, *ids}))  # type: ignore[union-attr]
    take(harness, OWN, 1, (OWN, *ids), 2)
    return replicas


def end_of(harness: BrokerHarness) -> int:
    return harness.broker.parts.store.log.end


@pytest.fixture
def master(tmp_path: Path) -> Any:
    with BrokerHarness(tmp_path, slave_timeout_ms=1000, **ELECTED) as harness:
        lead(harness)
        harness.send("T", b"first")
        yield harness


class TestRole:
    def test_a_broker_is_a_slave_until_it_is_elected(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path, **ELECTED) as harness:
            assert harness.send("T").code == ResponseCode.SYSTEM_BUSY
            lead(harness)
            assert harness.send("T").code == ResponseCode.SUCCESS
            parts = harness.broker.parts
            assert parts.epochs.all == ((1, 0),) and parts.topics.version.state_version == 1
            assert (parts.role.broker_id, parts.role.is_sync) == (0, True)
            harness.restart()
            assert not harness.broker.parts.role.is_master, "the next start waits for the controller again"

    def test_another_master_ends_the_role_at_once(self, master: BrokerHarness) -> None:
        """Nothing is acknowledged from then on."""
        (replica,) = join(master, 2)
        asked = send_later(master)
        assert take(master, 2, 2, (2,), 3) is Effect.STEPS_DOWN
        assert code_of(asked) == ResponseCode.FLUSH_SLAVE_TIMEOUT and not replica.is_open
        assert master.send("T").code == ResponseCode.SYSTEM_BUSY

    def test_an_older_decision_has_no_effect(self, master: BrokerHarness) -> None:
        """A controller that lost its leadership may still answer."""
        take(master, OWN, 3, (OWN,), 5)
        assert take(master, 2, 2, (2,), 4) is Effect.NOTHING
        assert master.send("T").code == ResponseCode.SUCCESS

    def test_an_election_of_the_present_master_begins_an_epoch(self, master: BrokerHarness) -> None:
        (replica,) = join(master, 2)
        end = end_of(master)
        assert take(master, OWN, 2, (OWN,), 3) is Effect.LEADS
        assert not replica.is_open and master.broker.parts.epochs.all == ((1, 0), (2, end))
        assert master.send("T").code == ResponseCode.SUCCESS

    def test_a_start_does_not_continue_an_epoch(self, master: BrokerHarness) -> None:
        """After a power cut, a replica may have more bytes of this epoch than the master."""
        master.restart(clean=False)
        master.broker.parts.elections.take_id(OWN)  # type: ignore[union-attr]
        assert take(master, OWN, 1, (OWN,), 1) is Effect.NEEDS_ELECTION
        assert take(master, None, 1, (OWN,), 1) is Effect.NEEDS_ELECTION
        assert take(master, OWN, 2, (OWN,), 2) is Effect.LEADS

    def test_the_first_election_joins_all_earlier_epochs(self, tmp_path: Path) -> None:
        """Their numbers are greater than those of the controller."""
        with BrokerHarness(tmp_path) as harness:
            harness.send("T")
            harness.restart(**ELECTED)
            lead(harness)
            assert harness.broker.parts.epochs.all == ((0, 0), (1, end_of(harness)))
            assert harness.bodies("T") == [b"body"]

    def test_a_promotion_by_hand_is_rejected(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path, **ELECTED) as harness:
            for code, ext in ((RequestCode.WMQ_PROMOTE, {}), (RequestCode.WMQ_HAND_OVER, {"successor": "x:1"})):
                answer = harness.ask(Command(code=code, ext=ext))
                assert answer.code == ResponseCode.INVALID_PARAMETER and "electMaster" in (answer.remark or "")


class TestAcknowledgements:
    def test_a_master_alone_in_sync_waits_for_nobody(self, master: BrokerHarness) -> None:
        follow(master, 2)
        assert code_of(send_later(master)) == ResponseCode.SUCCESS
        assert master.bodies("T") == [b"first", b"body"]

    def test_all_replicas_in_sync_must_have_a_message(self, master: BrokerHarness) -> None:
        first, second = join(master, 2, 3)
        asked = send_later(master)
        first.report(end_of(master))
        assert asked.answer is None and master.bodies("T") == [b"first"]
        second.report(end_of(master))
        assert code_of(asked) == ResponseCode.SUCCESS
        assert master.bodies("T") == [b"first", b"body"]

    def test_a_message_of_a_block_waits_no_more_once_the_master_is_alone_in_sync(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path, **ELECTED) as master:
            lead(master)
            replica = BrokerHarness(tmp_path / "replica", clock=master.clock, **{**ELECTED, "broker_id": 2})
            replica.broker.parts.role.take_id(2)
            copy = BlockCopy(master, replica)
            copy.run()
            (lost,) = join(master, 2)
            asked = later(master)
            master.broker.lose_replica(lost.link)  # type: ignore[arg-type]
            assert wanted(master) == {OWN} and asked.answer is None
            take(master, OWN, 1, (OWN,), 3)
            assert code_of(asked) == ResponseCode.SUCCESS and waiting(master) == 1
            replica.stop()

    def test_a_replica_that_is_not_in_sync_does_not_count(self, master: BrokerHarness) -> None:
        join(master, 2)
        third = follow(master, 3)
        asked = send_later(master)
        third.report(end_of(master))
        assert asked.answer is None
        master.advance(1000)
        assert code_of(asked) == ResponseCode.FLUSH_SLAVE_TIMEOUT

    def test_a_cut_off_master_acknowledges_nothing(self, master: BrokerHarness) -> None:
        """Its request to remove the lost replica reaches no controller."""
        (replica,) = join(master, 2)
        master.broker.lose_replica(replica.link)  # type: ignore[arg-type]
        assert wanted(master) == {OWN}
        master.broker.parts.elections.membership.request(frozenset({OWN}))  # type: ignore[union-attr]
        asked = send_later(master)
        master.advance(1000)
        assert code_of(asked) == ResponseCode.FLUSH_SLAVE_TIMEOUT and master.bodies("T") == [b"first"]
        take(master, OWN, 1, (OWN,), 3)
        assert master.bodies("T") == [b"first", b"body"] and code_of(send_later(master)) == ResponseCode.SUCCESS

    @pytest.mark.parametrize("clean", [True, False])
    def test_a_start_hides_the_messages_that_no_replica_had(self, master: BrokerHarness, clean: bool) -> None:
        """The elected master may not have them."""
        join(master, 2)
        send_later(master, b"second")
        master.restart(clean=clean)
        assert master.bodies("T") == [b"first"]
        master.broker.parts.elections.take_id(OWN)  # type: ignore[union-attr]
        assert take(master, 2, 2, (2,), 3) is Effect.FOLLOWS
        assert master.bodies("T") == [b"first"]
        master.broker.parts.replicas.note_agreed()
        master.settle()
        assert master.bodies("T") == [b"first", b"second"], "the master has the record too"

    def test_a_master_that_is_elected_again_shows_its_whole_log(self, master: BrokerHarness) -> None:
        join(master, 2)
        send_later(master, b"second")
        master.restart(clean=False)
        master.broker.parts.elections.take_id(OWN)  # type: ignore[union-attr]
        assert take(master, OWN, 2, (OWN,), 3) is Effect.LEADS
        assert master.bodies("T") == [b"first", b"second"]

    def test_too_few_replicas_in_sync_reject_sends(self, master: BrokerHarness) -> None:
        master.broker.parts.settings.controller.min_in_sync_replicas = 2
        answer = master.send("T")
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "in-sync replicas not enough: 1 of 2" in (answer.remark or "")
        join(master, 2)
        assert send_later(master).answer is None


class TestMembership:
    def test_a_replica_joins_once_it_has_all_acknowledged_messages(self, master: BrokerHarness) -> None:
        end = end_of(master)
        master.send("T", b"second")
        replica = FakeReplica(master)
        replica.shake_hands(2)
        replica.frames()
        replica.report(end)
        assert wanted(master) is None, "it lacks the second message"
        asked = send_later(master, b"third")
        assert asked.answer is None, "later messages wait for it already"
        replica.report(end_of(master))
        assert wanted(master) == {OWN, 2} and code_of(asked) == ResponseCode.SUCCESS

    def test_a_replica_that_does_not_catch_up_delays_the_clients_for_a_time(self, master: BrokerHarness) -> None:
        end = end_of(master)
        master.send("T", b"second")
        replica = FakeReplica(master)
        replica.shake_hands(2)
        replica.frames()
        replica.report(end)
        assert wanted(master) is None
        master.advance(JOIN_MS_MAX - 10)
        asked = send_later(master, b"third")
        assert wanted(master) is None and asked.answer is None
        master.advance(11)
        assert wanted(master) is None and code_of(asked) == ResponseCode.SUCCESS
        replica.report(end_of(master))
        assert wanted(master) is None, "it tries again after a second"
        master.advance(RETRY_MS)
        assert wanted(master) == {OWN, 2}

    def test_a_request_without_an_answer_is_made_again(self, master: BrokerHarness) -> None:
        """It may be in force. So its replicas count until the controller says otherwise."""
        replica = follow(master, 2)
        membership = master.broker.parts.elections.membership  # type: ignore[union-attr]
        assert wanted(master) == {OWN, 2}
        membership.request(frozenset({OWN, 2}))
        master.broker.lose_replica(replica.link)  # type: ignore[arg-type]
        assert wanted(master) == {OWN, 2}
        asked = send_later(master)
        assert asked.answer is None
        membership.reject()
        master.tick()
        assert code_of(asked) == ResponseCode.SUCCESS

    def test_a_replica_that_hangs_leaves(self, master: BrokerHarness) -> None:
        """It may lack the newest messages for haMaxTimeSlaveNotCatchup milliseconds."""
        (replica,) = join(master, 2)
        assert wanted(master) is None
        for _ in range(14):
            send_later(master)
            master.advance(1000)
            replica.report(end_of(master) - 1)
            assert wanted(master) is None, "it acknowledges older messages"
        for _ in range(13):
            assert wanted(master) is None
            master.advance(1000)
        master.advance(3000)
        assert wanted(master) == {OWN}

    def test_a_replica_that_comes_back_with_less_leaves(self, master: BrokerHarness) -> None:
        """It lost the end of its log in a power cut. As a master it would lack acknowledged messages."""
        (replica,) = join(master, 2)
        less = end_of(master)
        asked = send_later(master)
        replica.report(end_of(master))
        assert code_of(asked) == ResponseCode.SUCCESS
        again = FakeReplica(master)
        again.shake_hands(2)
        assert wanted(master) == {OWN}, "the old connection does not count"
        again.report(less)
        assert wanted(master) == {OWN}


class TestRequests:
    def test_epochs_for_administrators(self, master: BrokerHarness) -> None:
        take(master, OWN, 2, (OWN,), 3)
        end = end_of(master)
        answer = master.ask(Command(code=RequestCode.GET_BROKER_EPOCH_CACHE))
        assert bytes(answer.body) == (
            b'{"clusterName":"DefaultCluster","brokerName":"broker-a","brokerId":1,"epochList":'
            b'[{"epoch":1,"startOffset":0,"endOffset":%d},{"epoch":2,"startOffset":%d,"endOffset":9223372036854775807}]'
            b',"maxOffset":%d}' % (end, end, end)
        )

    def test_a_notice_is_a_hint_to_ask(self, master: BrokerHarness) -> None:
        """Anyone can send one, so its content has no effect."""
        notices = list[bool]()
        master.broker.parts.elections.listen(lambda: notices.append(True))  # type: ignore[union-attr]
        ext = {"masterAddress": "10.0.0.2:1", "masterBrokerId": "2", "masterEpoch": "9", "syncStateSetEpoch": "9"}
        body = b'{"syncStateSet":[2],"syncStateSetEpoch":9}'
        answer = master.ask(Command(code=RequestCode.NOTIFY_BROKER_ROLE_CHANGED, ext=ext, body=body))
        assert answer.code == ResponseCode.SUCCESS and notices == [True]
        assert master.send("T").code == ResponseCode.SUCCESS

    def test_a_broker_without_a_controller_rejects_notices(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path) as harness:
            answer = harness.ask(Command(code=RequestCode.NOTIFY_BROKER_ROLE_CHANGED))
            assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
