"""The HA port of a master with users: only a replica with a ticket gets the log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.broker.sample_requests import ROOT
from wheelmq.broker.replication.master_link import MasterLink
from wheelmq.broker.replication.tickets import TICKETS_MAX, VALID_MS
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.replication import REPORT, STATE_TICKET, TICKET
from wheelmq.formats.wire.signature import AccessKey
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.replica import FakeReplica

INIT = json.dumps({"username": ROOT.name, "password": ROOT.secret})


@pytest.fixture
def master(tmp_path: Path) -> Iterator[BrokerHarness]:
    with BrokerHarness(
        tmp_path, authentication_enabled=True, authorization_enabled=True, init_authentication_user=INIT
    ) as harness:
        send = harness.send_command("T", b"secret")
        ROOT.sign(send)
        assert harness.ask(send).code == 0
        yield harness


def ticket_of(master: BrokerHarness, key: AccessKey = ROOT, wants_ticket: str = "true") -> str:
    command = Command(code=RequestCode.WMQ_REPLICATION_STATE, ext={"wantsTicket": wants_ticket})
    key.sign(command)
    answer = master.ask(command)
    assert answer.code == 0, answer.remark
    return str(json.loads(bytes(answer.body)).get("ticket"))


def present(replica: FakeReplica, ticket: str) -> None:
    replica.send(TICKET.pack(STATE_TICKET, len(ticket)) + ticket.encode())


def test_a_replica_with_a_ticket_gets_the_log(master: BrokerHarness) -> None:
    replica = FakeReplica(master)
    present(replica, ticket_of(master))
    replica.shake_hands()
    replica.report(0)
    assert any(b"secret" in frame.data for frame in replica.frames())


def test_a_ticket_may_arrive_byte_by_byte(master: BrokerHarness) -> None:
    replica, ticket = FakeReplica(master), ticket_of(master)
    for byte in TICKET.pack(STATE_TICKET, len(ticket)) + ticket.encode():
        assert replica.is_open
        replica.send(bytes((byte,)))
    replica.shake_hands()
    assert replica.master_end == master.broker.parts.store.log.end


def test_a_ticket_is_valid_once_and_for_a_short_time(master: BrokerHarness) -> None:
    ticket, old = ticket_of(master), ticket_of(master)
    present(FakeReplica(master), ticket)
    again = FakeReplica(master)
    present(again, ticket)
    assert not again.is_open
    master.advance(VALID_MS)
    late = FakeReplica(master)
    present(late, old)
    assert not late.is_open


@pytest.mark.parametrize("ticket", ["", "x" * 43, "x" * 65, "\x00"])
def test_a_forged_ticket_closes_the_connection(master: BrokerHarness, ticket: str) -> None:
    ticket_of(master)
    replica = FakeReplica(master)
    present(replica, ticket)
    assert not replica.is_open and not replica.frames()


@pytest.mark.parametrize("position", [0, 1 << 32, 3 << 32, -1])
def test_a_replica_of_apache_gets_nothing(master: BrokerHarness, position: int) -> None:
    replica = FakeReplica(master)
    replica.send(REPORT.pack(position))
    assert not replica.is_open and not replica.frames()


def test_a_handshake_without_a_ticket_gets_nothing(master: BrokerHarness) -> None:
    replica = FakeReplica(master)
    link = link_to(master, "")
    replica.send(link.greeting())
    assert not replica.is_open and not replica.frames()


def test_the_slave_sends_its_ticket_before_its_handshake(master: BrokerHarness) -> None:
    replica = FakeReplica(master)
    replica.has_epochs = True
    replica.send(link_to(master, ticket_of(master)).greeting())
    assert replica.is_open and replica._received


def link_to(master: BrokerHarness, ticket: str) -> MasterLink:
    parts = master.broker.parts
    settings = parts.settings.replication
    return MasterLink(parts.store.log, parts.replica_log, parts.epochs, settings, 0, replica_id=1, ticket=ticket)


def test_only_who_asks_and_may_gets_a_ticket(master: BrokerHarness) -> None:
    assert ticket_of(master, wants_ticket="false") == ""
    tables = master.broker.parts.access.tables
    bob = AccessKey("bob", "the secret of bob")
    tables.change_user("bob", tables.users.make("bob", bob.secret))
    for text in ("true", "TRUE", "1"):
        command = Command(code=RequestCode.WMQ_REPLICATION_STATE, ext={"wantsTicket": text})
        bob.sign(command)
        assert master.ask(command).code == ResponseCode.NO_PERMISSION


def test_unused_tickets_have_a_limit(master: BrokerHarness) -> None:
    tickets = master.broker.parts.replicas.tickets
    assert tickets is not None
    first = tickets.issue()
    others = [tickets.issue() for _ in range(TICKETS_MAX)]
    assert not tickets.redeem(first) and tickets.redeem(others[-1])


def test_a_master_without_users_needs_no_ticket(tmp_path: Path) -> None:
    with BrokerHarness(tmp_path) as harness:
        harness.send("T")
        command = Command(code=RequestCode.WMQ_REPLICATION_STATE, ext={"wantsTicket": "true"})
        assert json.loads(bytes(harness.ask(command).body))["ticket"] == ""
        replica = FakeReplica(harness)
        replica.report(0)
        assert replica.frames()
