"""Requests to the name server and its answers, without sockets."""

from __future__ import annotations

import errno
import json
import zlib
from pathlib import Path
from typing import ClassVar
from unittest import mock

import pytest

from wheelmq.formats.disk.message import Host
from wheelmq.formats.wire import bodies, frame, headers
from wheelmq.formats.wire.bodies import DataVersion, Registration, TopicConfig, TopicConfigTable
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.nameserver.nameserver import NameServer
from wheelmq.nameserver.settings import NameServerSettings
from wheelmq.testing.clock import ManualClock
from wheelmq.testing.connection import FakeConnection
from wheelmq.testing.disk import SimulatedDisk


class Harness:
    def __init__(self, folder: Path, clock: ManualClock, disk: SimulatedDisk) -> None:
        self.folder, self.clock, self.disk = folder, clock, disk
        self.settings = NameServerSettings(kv_config_path=folder / "kvConfig.json")
        self.server = NameServer(self.settings, disk=disk, clock=clock)
        self.client = FakeConnection(Host(b"\x7f\0\0\1", 1))

    def ask(
        self,
        code: int,
        body: bytes = b"",
        connection: FakeConnection | None = None,
        *,
        oneway: bool = False,
        **fields: object,
    ) -> Command:
        connection = connection or self.client
        command = Command(
            code=code, ext=headers.texts(**fields), body=body, opaque=connection.next_opaque(oneway=oneway)
        )
        command.flag = frame.FLAG_ONEWAY if oneway else 0
        raw = frame.encode(command)
        assert self.server.receive(connection, memoryview(raw), len(raw)) == len(raw)  # type: ignore[arg-type]
        connection.flush()
        return connection.answers.get(command.opaque, Command(code=-1))

    def register(
        self,
        *names: str,
        broker: str = "broker-a",
        connection: FakeConnection | None = None,
        version: int = 1,
        **fields: object,
    ) -> Command:
        table = {name: TopicConfig(topic_name=name) for name in names}
        wrapper = TopicConfigTable(data_version=DataVersion(counter=version), topic_config_table=table)
        body = bodies.write(Registration(topic_config_serialize_wrapper=wrapper))
        given: dict[str, object] = {
            "brokerName": broker,
            "brokerAddr": f"{broker}:10911",
            "clusterName": "c",
            "haServerAddr": f"{broker}:10912",
            "brokerId": 0,
            "bodyCrc32": zlib.crc32(body) & 0x7FFFFFFF,
            **fields,
        }
        return self.ask(RequestCode.REGISTER_BROKER, body, connection, **given)

    def route(self, topic: str = "T") -> dict[str, object] | None:
        answer = self.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=topic)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        assert answer.code == 0
        found: dict[str, object] = json.loads(answer.body)
        return found


TOPIC = b'T 8 9 6 SINGLE_TAG {"+message.type":"FIFO"}'


def packed(version: bytes, topics: list[bytes]) -> bytes:
    """Return the parts of a registration, before compression."""
    mapping = b'{"bname":"b","topic":"T"}'
    parts = [version, topics, b"[]", [mapping]]
    raw = b""
    for part in parts:
        if isinstance(part, list):
            raw += len(part).to_bytes(4, "big")
        for one in part if isinstance(part, list) else [part]:
            raw += len(one).to_bytes(4, "big") + one
    return raw


@pytest.fixture
def names(tmp_path: Path, clock: ManualClock, disk: SimulatedDisk) -> Harness:
    return Harness(tmp_path, clock, disk)


class TestRegistration:
    def test_a_route_has_the_form_that_clients_read(self, names: Harness) -> None:
        assert names.register("T").code == 0
        assert names.route() == {
            "brokerDatas": [
                {
                    "brokerAddrs": {"0": "broker-a:10911"},
                    "brokerName": "broker-a",
                    "cluster": "c",
                    "enableActingMaster": False,
                }
            ],
            "filterServerTable": {},
            "queueDatas": [
                {"brokerName": "broker-a", "perm": 6, "readQueueNums": 16, "topicSysFlag": 0, "writeQueueNums": 16}
            ],
        }

    def test_an_unknown_topic_has_no_route(self, names: Harness) -> None:
        answer = names.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T")
        assert (answer.code, "No topic route info" in (answer.remark or "")) == (17, True)

    def test_a_damaged_registration_is_rejected(self, names: Harness) -> None:
        assert names.register("T", bodyCrc32=5).code == ResponseCode.SYSTEM_ERROR
        assert names.route() is None
        assert names.register("T", bodyCrc32=0).code == 0  # 0: not checked

    FIELDS: ClassVar = {"brokerName": "b", "brokerAddr": "b:1", "clusterName": "c", "haServerAddr": "", "brokerId": 0}

    @pytest.mark.parametrize("said", [True, False])
    def test_a_compressed_registration_is_read(self, names: Harness, said: bool) -> None:
        """Apache's broker writes this form with compressedRegister. Release 5.3.3 does not name it in the header."""
        body = packed(version=b'{"counter":3,"stateVersion":0,"timestamp":7}', topics=[TOPIC, b"U 1 2 4 MULTI_TAG"])
        answer = names.ask(RequestCode.REGISTER_BROKER, zlib.compress(body, 9), compressed=said, **self.FIELDS)
        assert answer.code == 0, answer.remark
        for topic, queues in (("T", (8, 9, 6)), ("U", (1, 2, 4))):
            route = names.route(topic)
            assert route is not None
            (data,) = route["queueDatas"]  # type: ignore[misc]
            assert (data["readQueueNums"], data["writeQueueNums"], data["perm"]) == queues  # type: ignore[index]
        assert names.server.routes.version_of("b:1") == DataVersion(counter=3, timestamp=7)

    @pytest.mark.parametrize(
        ("body", "told"),
        [
            (b"junk", "is not compressed"),
            (zlib.compress(b" " * (65 << 20)), "is incomplete, or inflates to more than"),
            (zlib.compress(b"\0\0\0\2{}")[:-5], "is incomplete, or inflates to more than"),
            (zlib.compress(b"\0\0\0\2{}"), "part of 4 bytes at 6 of 6"),
            (zlib.compress(b"\xff\xff\xff\xff"), "part of -1 bytes"),
            (zlib.compress(b"\0\0\0\2[]"), "DataVersion"),
            (zlib.compress(b"\0\0\0\2{}\x7f\xff\xff\xff"), "part of 4 bytes"),
            (zlib.compress(b"\0\0\0\2{}\0\0\0\1\0\0\0\5T 1 2"), "the topic 'T 1 2'"),
            (zlib.compress(b"\0\0\0\2{}\0\0\0\1\0\0\0\x09T 1 x 6 S"), "the topic 'T 1 x 6 S'"),
        ],
    )
    def test_an_invalid_compressed_registration_is_rejected(self, names: Harness, body: bytes, told: str) -> None:
        answer = names.ask(RequestCode.REGISTER_BROKER, body, compressed=True, **self.FIELDS)
        assert answer.code == 1 and told in str(answer.remark)
        assert json.loads(names.ask(RequestCode.GET_BROKER_CLUSTER_INFO).body)["brokerAddrTable"] == {}

    def test_a_replica_receives_the_addresses_of_its_master(self, names: Harness) -> None:
        assert names.register("T").ext == {}
        answer = names.register(brokerId=1, brokerAddr="replica:1")
        assert answer.ext == {"masterAddr": "broker-a:10911", "haServerAddr": "broker-a:10912"}

    def test_an_unregistered_broker_has_no_routes(self, names: Harness) -> None:
        names.register("T")
        fields = {"brokerName": "broker-a", "brokerAddr": "broker-a:10911", "clusterName": "c", "brokerId": 0}
        assert names.ask(RequestCode.UNREGISTER_BROKER, **fields).code == 0
        assert names.route() is None

    def test_a_silent_broker_expires(self, names: Harness) -> None:
        names.register("T")
        names.register("T", broker="short", heartbeatTimeoutMillis=10_000)
        for _ in range(24):
            names.clock.advance(names.settings.scan_interval_ms)
            names.server.tick()
        route = names.route()
        assert route is not None and len(route["brokerDatas"]) == 1  # type: ignore[arg-type]
        names.clock.advance(names.settings.scan_interval_ms)
        names.server.tick()
        assert names.route() is None

    def test_the_name_server_requests_its_next_scan(self, names: Harness) -> None:
        names.server.tick()
        assert names.server.next_tick_ms() == names.settings.scan_interval_ms
        names.clock.advance(names.settings.scan_interval_ms - 1)
        assert names.server.next_tick_ms() == 1

    def test_a_closed_connection_removes_its_broker(self, names: Harness) -> None:
        connection = FakeConnection(Host(b"\x7f\0\0\1", 2))
        names.register("T", connection=connection)
        names.server.connection_lost(names.client)  # type: ignore[arg-type]
        assert names.route() is not None
        names.server.connection_lost(connection)  # type: ignore[arg-type]
        assert names.route() is None


class TestTopics:
    def test_all_topics_and_clusters_are_listed(self, names: Harness) -> None:
        names.register("T", "U")
        names.register("V", broker="broker-b")
        answer = names.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        assert json.loads(answer.body) == {"topicList": ["T", "U", "V"]}
        clusters = json.loads(names.ask(RequestCode.GET_BROKER_CLUSTER_INFO).body)
        assert clusters["clusterAddrTable"] == {"c": ["broker-a", "broker-b"]}
        assert clusters["brokerAddrTable"]["broker-a"]["brokerAddrs"] == {"0": "broker-a:10911"}

    def test_a_deleted_topic_has_no_route(self, names: Harness) -> None:
        names.register("T", "U")
        assert names.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="T", clusterName="other").code == 0
        assert names.route() is not None
        names.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="T")
        assert names.route() is None and names.route("U") is not None


class TestPermissions:
    def perm(self, names: Harness) -> int:
        route = names.route()
        assert route is not None
        return int(route["queueDatas"][0]["perm"])  # type: ignore[index]

    def test_write_permission_is_wiped_and_restored(self, names: Harness) -> None:
        names.register("T", "U")
        assert names.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, brokerName="broker-a").ext == {"wipeTopicCount": "2"}
        assert self.perm(names) == 4
        assert names.ask(RequestCode.ADD_WRITE_PERM_OF_BROKER, brokerName="broker-a").ext == {"addTopicCount": "2"}
        assert self.perm(names) == 6

    def test_a_wiped_permission_lasts_until_the_topics_change(self, names: Harness) -> None:
        names.register("T", version=7)
        names.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, brokerName="broker-a")
        names.register("T", version=7)
        assert self.perm(names) == 4
        names.register("T", version=8)
        assert self.perm(names) == 6


class TestKeysAndValues:
    def test_a_value_is_stored_returned_and_deleted(self, names: Harness) -> None:
        pair = {"namespace": "n", "key": "k"}
        assert names.ask(RequestCode.GET_KV_CONFIG, **pair).code == ResponseCode.QUERY_NOT_FOUND
        assert names.ask(RequestCode.PUT_KV_CONFIG, value="v", **pair).code == 0
        assert names.ask(RequestCode.GET_KV_CONFIG, **pair).ext == {"value": "v"}
        assert json.loads(names.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, namespace="n").body) == {"table": {"k": "v"}}
        assert names.ask(RequestCode.DELETE_KV_CONFIG, **pair).code == 0
        assert names.ask(RequestCode.GET_KV_CONFIG, **pair).code == ResponseCode.QUERY_NOT_FOUND
        assert names.ask(RequestCode.DELETE_KV_CONFIG, **pair).code == 0

    def test_an_unknown_namespace_is_not_found(self, names: Harness) -> None:
        assert names.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, namespace="n").code == ResponseCode.QUERY_NOT_FOUND

    def test_a_put_without_a_value_is_rejected(self, names: Harness) -> None:
        assert names.ask(RequestCode.PUT_KV_CONFIG, namespace="n", key="k").code == ResponseCode.SYSTEM_ERROR

    def test_values_survive_a_restart(self, names: Harness) -> None:
        names.ask(RequestCode.PUT_KV_CONFIG, namespace="n", key="k", value="v:8;w:8")
        again = Harness(names.folder, names.clock, names.disk)
        assert again.ask(RequestCode.GET_KV_CONFIG, namespace="n", key="k").ext == {"value": "v:8;w:8"}

    def test_a_value_that_could_not_be_stored_is_not_returned(self, names: Harness) -> None:
        names.ask(RequestCode.PUT_KV_CONFIG, namespace="n", key="k", value="v")
        pair = {"namespace": "n", "key": "k"}
        with mock.patch.object(names.disk, "replace", side_effect=OSError(errno.EIO, "no")):
            assert names.ask(RequestCode.PUT_KV_CONFIG, value="w", **pair).code == ResponseCode.SYSTEM_ERROR
            assert names.ask(RequestCode.DELETE_KV_CONFIG, **pair).code == ResponseCode.SYSTEM_ERROR
        assert names.ask(RequestCode.GET_KV_CONFIG, **pair).ext == {"value": "v"}

    def test_a_route_has_the_order_of_an_ordered_topic(self, names: Harness) -> None:
        names.ask(RequestCode.PUT_KV_CONFIG, namespace="ORDER_TOPIC_CONFIG", key="T", value="broker-a:8")
        answer = names.register("T")
        assert json.loads(answer.body) == {"table": {"T": "broker-a:8"}}
        route = names.route()
        assert route is not None and route["orderTopicConf"] == "broker-a:8"

    def test_the_configuration_is_returned_sorted(self, names: Harness) -> None:
        lines = names.ask(RequestCode.GET_NAMESRV_CONFIG).body.decode().splitlines()  # type: ignore[union-attr]
        assert "listenPort=9876" in lines and lines == sorted(lines)


class TestRequests:
    @pytest.mark.parametrize("code", [0, -1, 10, 25, 902, 1 << 40])
    def test_an_unknown_code_is_rejected(self, names: Harness, code: int) -> None:
        answer = names.ask(code)
        assert (answer.code, answer.remark) == (3, f" request type {code} not supported")

    def test_a_oneway_request_gets_no_answer(self, names: Harness) -> None:
        assert names.ask(RequestCode.GET_NAMESRV_CONFIG, oneway=True).code == -1

    @pytest.mark.parametrize("code", [100, 101, 102, 103, 104, 105, 205, 216, 219, 327])
    def test_a_missing_required_field_is_rejected(self, names: Harness, code: int) -> None:
        assert names.ask(code).code == ResponseCode.SYSTEM_ERROR

    def test_an_invalid_body_is_rejected(self, names: Harness) -> None:
        fields = {"brokerName": "b", "brokerAddr": "b:1", "clusterName": "c", "haServerAddr": "", "brokerId": 0}
        assert names.ask(RequestCode.REGISTER_BROKER, b"{", **fields).code == ResponseCode.SYSTEM_ERROR
        assert names.ask(RequestCode.REGISTER_BROKER, b"", **fields).code == 0
        assert json.loads(names.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER).body) == {"topicList": []}

    def test_a_peer_that_does_not_read_is_not_served_further(self, names: Harness) -> None:
        """One read has room for hundreds of requests for all topics. Their answers must not pile up."""
        requests = [Command(code=RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, opaque=i) for i in range(3)]
        raw = [frame.encode(request) for request in requests]
        everything = memoryview(b"".join(raw))

        class Full(FakeConnection):
            def send(self, frame: bytes) -> None:
                super().send(frame)
                self.is_full = True

        peer = Full(Host(b"\x7f\0\0\1", 3))
        for taken in (len(raw[0]), len(raw[0]), len(raw[0])):
            assert names.server.receive(peer, everything, len(everything)) == taken  # type: ignore[arg-type]
            assert names.server.receive(peer, everything[taken:], len(everything) - taken) == 0  # type: ignore[arg-type]
            everything, peer.is_full = everything[taken:], False
        assert not everything

    def test_answers_of_a_peer_are_ignored(self, names: Harness) -> None:
        raw = frame.encode(Command(code=0, opaque=5, flag=frame.FLAG_RESPONSE))
        names.server.receive(names.client, memoryview(raw), len(raw))  # type: ignore[arg-type]
        names.client.flush()
        assert names.client.answers == {}


class TestSettings:
    def test_settings_are_shown_and_changed(self, names: Harness) -> None:
        assert b"orderMessageEnable=true\n" in names.ask(RequestCode.GET_NAMESRV_CONFIG).body
        assert names.ask(RequestCode.UPDATE_NAMESRV_CONFIG, b"orderMessageEnable=false\n").code == ResponseCode.SUCCESS
        assert b"orderMessageEnable=false\n" in names.ask(RequestCode.GET_NAMESRV_CONFIG).body

    def test_a_path_cannot_be_changed(self, names: Harness) -> None:
        answer = names.ask(RequestCode.UPDATE_NAMESRV_CONFIG, b"orderMessageEnable=false\nkvConfigPath=/x\n")
        assert answer.code == ResponseCode.NO_PERMISSION
        assert (answer.remark or "").startswith("kvConfigPath does not change at run time")
        assert names.settings.order_message_enable

    def test_the_order_of_topics_can_be_disabled(self, names: Harness) -> None:
        names.ask(RequestCode.PUT_KV_CONFIG, namespace="ORDER_TOPIC_CONFIG", key="T", value="broker-a:4")
        assert names.register("T").body
        assert b"broker-a:4" in names.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T").body
        names.settings.order_message_enable = names.settings.return_order_topic_config = False
        assert not names.register("T").body
        assert b"broker-a:4" not in names.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T").body

    def test_the_list_of_all_topics_can_be_disabled(self, names: Harness) -> None:
        names.settings.enable_all_topic_list = False
        answer = names.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "disable")

    def test_routes_wait_until_brokers_had_time_to_register(self, names: Harness) -> None:
        names.settings.waits_for_service, names.settings.wait_for_service_seconds = True, 2
        names.register("T")
        names.clock.advance(1999)
        answer = names.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T")
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "name server not ready")
        names.clock.advance(1)
        assert names.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T").code == ResponseCode.SUCCESS

    def test_topics_missing_from_a_registration_can_be_removed(self, names: Harness) -> None:
        names.register("T", "U", version=1)
        names.register("U", version=2)
        assert names.route("T") is not None
        assert names.ask(RequestCode.UPDATE_NAMESRV_CONFIG, b"deleteTopicWithBrokerRegistration=true").code == 0
        names.register("U", version=2)
        assert names.route("T") is None and names.route("U") is not None

    def test_the_scan_interval_can_be_set(self, names: Harness) -> None:
        names.settings.scan_interval_ms = 70
        names.server.tick()
        assert names.server.next_tick_ms() == 70

    def test_values_are_stored_at_the_path_of_the_setting(self, names: Harness) -> None:
        names.ask(RequestCode.PUT_KV_CONFIG, namespace="n", key="k", value="v")
        assert b'"v"' in (names.disk.read(names.settings.kv_config_path) or b"")


def test_an_error_of_a_handler_is_logged_with_the_command(
    names: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def boom(*arguments: object) -> None:
        raise ValueError("unforeseen")

    monkeypatch.setattr(names.server.routes, "route", boom)
    answer = names.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T", AccessKey="s3cret")
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "ValueError: unforeseen")
    (line,) = caplog.messages
    assert line.startswith("request code=105 opaque=1 ") and "fields={topic=T, AccessKey=***}" in line
    assert names.client.last_request == (105, 1) and not names.client.sends


def test_two_brokers_with_one_name_are_logged(names: Harness, caplog: pytest.LogCaptureFixture) -> None:
    """The next registration of each broker reports the other one. The log has one line in ten seconds."""
    one, other = FakeConnection(Host(b"\x7f\0\0\1", 2)), FakeConnection(Host(b"\x7f\0\0\1", 3))
    assert "replacedBrokerAddr" not in names.register("T", connection=one, brokerAddr="10.0.0.1:1").ext
    for _ in range(5):
        assert names.register("T", connection=other, brokerAddr="10.0.0.2:2").ext["replacedBrokerAddr"] == "10.0.0.1:1"
        assert names.register("T", connection=one, brokerAddr="10.0.0.1:1").ext["replacedBrokerAddr"] == "10.0.0.2:2"
    (line,) = (record.message for record in caplog.records if record.levelname == "WARNING")
    assert line.startswith(
        "two brokers have the name 'broker-a' and the id 0: 10.0.0.2:2, which has just registered, and"
    )
    assert "and 10.0.0.1:1;" in line


def test_many_pairs_of_brokers_with_one_name_give_one_log_line(
    names: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    """A peer can register any name. It must not decide how many lines the log has."""
    one, other = FakeConnection(Host(b"\x7f\0\0\1", 2)), FakeConnection(Host(b"\x7f\0\0\1", 3))
    for i in range(5):
        names.register("T", connection=one, brokerName=f"b{i}", brokerAddr="10.0.0.1:1")
        answer = names.register("T", connection=other, brokerName=f"b{i}", brokerAddr="10.0.0.2:2")
        assert answer.ext["replacedBrokerAddr"] == "10.0.0.1:1"
    assert [record.message.split(":")[0] for record in caplog.records if record.levelname == "WARNING"] == [
        "two brokers have the name 'b0' and the id 0"
    ]
