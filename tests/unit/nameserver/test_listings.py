"""Requests of administrators and brokers to a name server, except those for routes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.nameserver.test_nameserver import Harness
from wheelmq.formats.wire import bodies
from wheelmq.formats.wire.bodies import DataVersion, QueueData, Registration, Route, TopicConfig, TopicConfigTable
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.testing.clock import ManualClock
from wheelmq.testing.disk import SimulatedDisk


@pytest.fixture
def names(tmp_path: Path) -> Harness:
    return Harness(tmp_path, ManualClock(), SimulatedDisk())


def listed(names: Harness, code: RequestCode, **fields: object) -> list[str]:
    answer = names.ask(code, **fields)
    assert answer.code == 0, answer.remark
    found: list[str] = json.loads(answer.body)["topicList"]
    return found


class TestTopics:
    def test_the_topics_of_a_cluster_are_listed(self, names: Harness) -> None:
        names.register("T", "U")
        names.register("V", broker="broker-b", clusterName="other")
        assert listed(names, RequestCode.GET_TOPICS_BY_CLUSTER, cluster="c") == ["T", "U"]
        assert listed(names, RequestCode.GET_TOPICS_BY_CLUSTER, cluster="nowhere") == []

    def test_the_names_of_clusters_and_brokers_are_system_topics(self, names: Harness) -> None:
        assert listed(names, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS) == []
        names.register("T")
        answer = names.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
        assert json.loads(answer.body) == {"brokerAddr": "broker-a:10911", "topicList": ["broker-a", "c"]}

    def test_topics_are_listed_by_their_unit_flags(self, names: Harness) -> None:
        table = {str(flag): TopicConfig(topic_name=str(flag), topic_sys_flag=flag) for flag in range(4)}
        body = bodies.write(Registration(topic_config_serialize_wrapper=TopicConfigTable(topic_config_table=table)))
        fields = {"brokerName": "b", "brokerAddr": "b:1", "clusterName": "c", "haServerAddr": "b:2", "brokerId": 0}
        assert names.ask(RequestCode.REGISTER_BROKER, body, **fields).code == 0
        assert listed(names, RequestCode.GET_UNIT_TOPIC_LIST) == ["1", "3"]
        assert listed(names, RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST) == ["2", "3"]
        assert listed(names, RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST) == ["2"]

    @pytest.mark.parametrize(
        "code",
        [
            RequestCode.GET_TOPICS_BY_CLUSTER,
            RequestCode.GET_UNIT_TOPIC_LIST,
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
        ],
    )
    def test_a_disabled_topic_list_is_rejected(self, names: Harness, code: RequestCode) -> None:
        names.settings.enable_topic_list = False
        answer = names.ask(code, cluster="c")
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "disable")

    def test_a_single_topic_is_registered_only_for_known_brokers(self, names: Harness) -> None:
        def register(*brokers: str) -> None:
            queues = [QueueData(broker_name=name, read_queue_nums=3, write_queue_nums=3, perm=6) for name in brokers]
            body = bodies.write(Route(queue_datas=queues))
            assert names.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, body, topic="New").code == 0

        register("broker-a")
        assert names.route("New") is None  # there is no such broker
        names.register("T")
        register("broker-a", "nobody")
        assert names.route("New") is None
        register("broker-a")
        route: Any = names.route("New")
        assert route["queueDatas"][0]["readQueueNums"] == 3


class TestBrokers:
    WHO = {"brokerName": "broker-a", "brokerAddr": "broker-a:10911", "clusterName": "c", "brokerId": 0}

    def test_a_version_query_reports_a_change(self, names: Harness) -> None:
        def changed(counter: int) -> tuple[str, object]:
            body = bodies.write(DataVersion(counter=counter))
            answer = names.ask(RequestCode.QUERY_DATA_VERSION, body, **self.WHO)
            assert answer.code == 0
            return answer.ext["changed"], json.loads(answer.body)["counter"] if answer.body else None

        assert changed(1) == ("true", None)
        names.register("T", version=4)
        assert changed(4) == ("false", 4)
        assert changed(5) == ("true", 4)

    @pytest.mark.parametrize("code", [RequestCode.QUERY_DATA_VERSION, RequestCode.BROKER_HEARTBEAT])
    def test_a_request_keeps_its_broker_alive(self, names: Harness, code: RequestCode) -> None:
        names.register("T")
        for _ in range(3):
            names.clock.advance(90_000)
            assert names.ask(code, bodies.write(DataVersion()), **self.WHO).code == 0
            names.server.tick()
        assert names.route("T") is not None
        names.clock.advance(130_000)
        names.server.tick()
        assert names.route("T") is None

    def test_the_members_of_a_broker_group_are_listed(self, names: Harness) -> None:
        def addresses(**fields: object) -> object:
            given = {"brokerName": "broker-a", "clusterName": "c", **fields}
            return json.loads(names.ask(RequestCode.GET_BROKER_MEMBER_GROUP, **given).body)["brokerMemberGroup"]

        names.register("T")
        names.register("T", brokerId=1, brokerAddr="replica:10911")
        found = {"0": "broker-a:10911", "1": "replica:10911"}
        assert addresses() == {"brokerAddrs": found, "brokerName": "broker-a", "cluster": "c"}
        assert addresses(clusterName="other") == {"brokerAddrs": {}, "brokerName": "broker-a", "cluster": "other"}
