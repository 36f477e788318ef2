"""Members of groups: heartbeats, and the notices of a change."""

from __future__ import annotations

import json
from typing import Any, NoReturn

import pytest

from tests.unit.broker.test_handlers import send_heartbeat, take_notified_groups
from wheelmq.formats.wire import bodies
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.testing.harness import BrokerHarness


class TestMembers:
    def members(self, harness: BrokerHarness, group: str = "g") -> list[str] | None:
        answer = harness.ask_code(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup=group)
        if answer.code:
            assert answer.code == ResponseCode.SYSTEM_ERROR
            return None
        found: list[str] = json.loads(answer.body)["consumerIdList"]
        return found

    def test_a_heartbeat_adds_the_client_to_its_group(self, harness: BrokerHarness) -> None:
        assert self.members(harness) is None
        one, two = harness.connect(), harness.connect()
        answer = send_heartbeat(harness, one, "b")
        assert (answer.version, answer.ext["IS_SUPPORT_HEART_BEAT_V2"]) == (479, "false")
        send_heartbeat(harness, two, "a")
        assert self.members(harness) == ["a", "b"]
        retry = harness.broker.parts.topics.get("%RETRY%g")
        assert retry is not None and retry.write_queue_nums == 1

    def test_members_are_notified_of_changes(self, harness: BrokerHarness) -> None:
        one, two = harness.connect(), harness.connect()
        send_heartbeat(harness, one, "a")
        assert take_notified_groups(one) == ["g"]
        send_heartbeat(harness, one, "a")
        assert take_notified_groups(one) == []
        send_heartbeat(harness, two, "b")
        assert (take_notified_groups(one), take_notified_groups(two)) == (["g"], ["g"])
        wider = [{"topic": "T", "subString": "*"}, {"topic": "U", "subString": "*"}]
        send_heartbeat(harness, two, "b", subscriptionDataSet=wider)
        assert (take_notified_groups(one), take_notified_groups(two)) == (["g"], ["g"])

    def test_many_lost_members_cause_one_notification(self, harness: BrokerHarness) -> None:
        """A failed network switch can cut off half of a group. The other members need one notification."""
        stays, *others = (harness.connect() for _ in range(50))
        for number, connection in enumerate((stays, *others)):
            send_heartbeat(harness, connection, f"c{number}")
        take_notified_groups(stays)
        for connection in others:
            harness.lose(connection)
        harness.tick()
        assert take_notified_groups(stays) == ["g"] and self.members(harness) == ["c0"]

    def test_members_that_join_together_are_all_notified_of_the_last(self, harness: BrokerHarness) -> None:
        body = {"consumerDataSet": [{"groupName": "g", "subscriptionDataSet": [{"topic": "T", "subString": "*"}]}]}
        connections = [harness.connect() for _ in range(3)]
        for number, connection in enumerate(connections):
            beating = Command(code=RequestCode.HEART_BEAT, body=bodies.write(body | {"clientID": f"c{number}"}))
            harness.submit(beating, connection)
        harness.tick()
        assert [take_notified_groups(connection) for connection in connections] == [["g", "g"], ["g", "g"], ["g"]]

    def test_a_lost_connection_causes_no_scan_of_the_members(self, harness: BrokerHarness) -> None:
        """If 10,000 connections are lost at once, each loss must not scan all remaining members."""

        class Closed(dict[Any, Any]):
            def __iter__(self) -> NoReturn:
                raise AssertionError("all members are scanned")

            values = items = keys = __iter__  # type: ignore[assignment]

        one, two = harness.connect(), harness.connect()
        for connection, client in ((one, "a"), (two, "b")):
            send_heartbeat(harness, connection, client, producers=("p",))
        clients = harness.broker.parts.clients
        clients.consumers["g"].clients = Closed(clients.consumers["g"].clients)
        clients.producers["p"] = Closed(clients.producers["p"])
        assert clients.lose(one) == ["g"]
        assert len(clients.consumers["g"].clients) == len(clients.producers["p"]) == 1
        assert clients.lose(two) == ["g"]
        assert not clients.consumers and not clients.producers and not clients._memberships

    def test_a_group_can_switch_off_notifications_of_joins(self, harness: BrokerHarness) -> None:
        """The setting applies to clients that leave, too. As in Apache's broker, lost clients cause notifications."""
        one, two, three = (harness.connect() for _ in range(3))
        send_heartbeat(harness, one, "a")
        group = harness.broker.parts.groups.get("g")
        assert group is not None
        group.notify_consumer_ids_changed_enable = False
        take_notified_groups(one)
        send_heartbeat(harness, two, "b")
        send_heartbeat(harness, three, "c")
        harness.ask_code(RequestCode.UNREGISTER_CLIENT, connection=two, clientID="b", consumerGroup="g")
        assert take_notified_groups(one) == take_notified_groups(three) == []
        harness.lose(three)
        harness.tick()
        assert take_notified_groups(one) == ["g"]

    def test_broadcasting_groups_get_no_notifications(self, harness: BrokerHarness) -> None:
        one, two = harness.connect(), harness.connect()
        for connection, client in ((one, "a"), (two, "b")):
            send_heartbeat(harness, connection, client, messageModel="BROADCASTING")
        assert take_notified_groups(one) == take_notified_groups(two) == []

    @pytest.mark.parametrize("how", ["unregister", "connection lost", "silence"])
    def test_a_client_that_leaves_is_removed_from_its_group(self, harness: BrokerHarness, how: str) -> None:
        one, two = harness.connect(), harness.connect()
        send_heartbeat(harness, one, "a", producers=("p",))
        send_heartbeat(harness, two, "b")
        take_notified_groups(one)
        match how:
            case "unregister":
                fields = {"clientID": "b", "consumerGroup": "g"}
                answer = harness.ask_code(RequestCode.UNREGISTER_CLIENT, connection=two, **fields)
                assert answer.code == 0
            case "connection lost":
                harness.lose(two)
                harness.tick()
            case "silence":
                for _ in range(14):
                    harness.advance(10_000)
                    send_heartbeat(harness, one, "a", producers=("p",))
                assert not two.is_open
                notified = take_notified_groups(one)
                assert notified == ["g"]
                one.requests.clear()
        if how != "silence":
            assert take_notified_groups(one) == ["g"]
        assert self.members(harness) == ["a"]

    def test_a_silent_client_leaves_its_groups_before_its_socket_closes(
        self, harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one, two = harness.connect(), harness.connect()
        send_heartbeat(harness, two, "b", producers=("p",))
        monkeypatch.setattr(two, "close", lambda: None)  # its peer does not read
        for _ in range(14):
            harness.advance(10_000)
            send_heartbeat(harness, one, "a")
        assert self.members(harness) == ["a"]
        assert harness.broker.parts.clients.producers == {}

    def test_a_group_is_removed_with_its_last_member(self, harness: BrokerHarness) -> None:
        one = harness.connect()
        send_heartbeat(harness, one, producers=("p",))
        assert "p" in harness.broker.parts.clients.producers
        harness.lose(one)
        assert self.members(harness) is None
        assert harness.broker.parts.clients.producers == {} == harness.broker.parts.clients.consumers

    def test_a_client_with_two_connections_survives_the_loss_of_one(self, harness: BrokerHarness) -> None:
        one, two = harness.connect(), harness.connect()
        send_heartbeat(harness, one, "a")
        send_heartbeat(harness, two, "a")
        assert self.members(harness) == ["a"]
        harness.lose(one)
        assert self.members(harness) == ["a"]

    def test_an_unregistered_producer_is_removed_from_its_group(self, harness: BrokerHarness) -> None:
        one = harness.connect()
        send_heartbeat(harness, one, producers=("p",))
        harness.ask_code(RequestCode.UNREGISTER_CLIENT, connection=one, clientID="c", producerGroup="p")
        assert harness.broker.parts.clients.producers == {}
        assert self.members(harness) == ["c"]

    @pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"clientID":5}'])
    def test_an_invalid_heartbeat_is_rejected(self, harness: BrokerHarness, body: bytes) -> None:
        answer = harness.ask(Command(code=RequestCode.HEART_BEAT, body=body))
        assert answer.code == ResponseCode.SYSTEM_ERROR

    def test_a_heartbeat_of_an_unknown_group_needs_auto_creation(self, harness: BrokerHarness) -> None:
        harness.restart(auto_create_group=False)
        send_heartbeat(harness, harness.connect(), group="new")
        assert self.members(harness, "new") is None
