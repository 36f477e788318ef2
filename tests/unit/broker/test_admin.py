"""Requests of administration tools: the groups of handlers that ordinary clients do not need."""

from __future__ import annotations

import json
import re
import time
from typing import Any
from unittest import mock

import pytest

from tests.unit.broker.test_handlers import send_heartbeat
from wheelmq.broker.slices import UNDER_WAY_MAX
from wheelmq.formats.wire import bodies
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.testing.disk import Call
from wheelmq.testing.harness import BrokerHarness

_QUEUE_KEY = re.compile(r'(\{|,)(\{"brokerName":"[^"]*","queueId":(\d+),"topic":"[^"]*"\}):')


def ask(harness: BrokerHarness, code: RequestCode, body: object = None, **fields: object) -> Any:
    """Send a request that must succeed. Returns the JSON of its answer, with queue ids instead of queues as keys."""
    raw = b"" if body is None else bodies.write(body)
    answer = harness.ask_code(code, raw, **fields)
    assert answer.code == 0, answer.remark
    return json.loads(_QUEUE_KEY.sub(r'\1"\3":', answer.body.decode())) if answer.body else None


def rejection(harness: BrokerHarness, code: RequestCode, body: object = None, **fields: object) -> tuple[int, str]:
    answer = harness.ask_code(code, b"" if body is None else bodies.write(body), **fields)
    return answer.code, answer.remark or ""


def commit(harness: BrokerHarness, group: str, offset: int, topic: str = "T", queue_id: int = 0) -> None:
    """Create the group and commit `offset` for it."""
    ask(harness, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group=group)
    fields = {"consumerGroup": group, "topic": topic, "queueId": queue_id, "commitOffset": offset}
    assert harness.ask_code(RequestCode.UPDATE_CONSUMER_OFFSET, **fields).code == 0


def make_topic(harness: BrokerHarness, topic: str, **fields: object) -> Command:
    given = {"defaultTopic": "TBW102", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}
    return harness.ask_code(RequestCode.UPDATE_AND_CREATE_TOPIC, topic=topic, **{**given, **fields})


class TestTopics:
    def test_a_topic_is_listed_alone_and_in_the_table(self, harness: BrokerHarness) -> None:
        assert make_topic(harness, "T", attributes="+message.type=FIFO", order=True).code == 0
        one = ask(harness, RequestCode.GET_TOPIC_CONFIG, topic="T", lo="true")
        assert (one["attributes"], one["order"], one["perm"]) == ({"message.type": "FIFO"}, True, 6)
        table = ask(harness, RequestCode.GET_ALL_TOPIC_CONFIG)
        assert table["topicConfigTable"]["T"] == one
        assert {"dataVersion", "mappingDataVersion", "topicQueueMappingDetailMap"} <= table.keys()
        assert rejection(harness, RequestCode.GET_TOPIC_CONFIG, topic="U")[0] == ResponseCode.TOPIC_NOT_EXIST

    @pytest.mark.parametrize(
        ("attributes", "remark"),
        [
            ("+colour=red", "unsupported key: colour"),
            ("+message.type=ODD", "message.type is ODD"),
            ("+cleanup.policy=COMPACTION", "the values are DELETE"),
            ("message.type=FIFO", "write \\+key=value"),
            ("-message.type", "only add"),
            ("+message.type=FIFO,+message.type=DELAY", "key duplication"),
            ("+message.type=MIXED", "MIXED"),
        ],
    )
    def test_invalid_attributes_are_rejected(self, harness: BrokerHarness, attributes: str, remark: str) -> None:
        answer = make_topic(harness, "T", attributes=attributes)
        assert answer.code in (ResponseCode.SYSTEM_ERROR, ResponseCode.INVALID_PARAMETER)
        assert re.search(remark, answer.remark or "")
        assert harness.broker.parts.topics.get("T") is None

    def test_only_existing_changeable_attributes_can_be_deleted(self, harness: BrokerHarness) -> None:
        make_topic(harness, "T", attributes="+message.type=FIFO,+queue.type=SimpleCQ")
        assert make_topic(harness, "T", attributes="-colour").code == ResponseCode.SYSTEM_ERROR
        assert "unchangeable" in (make_topic(harness, "T", attributes="-queue.type").remark or "")
        assert make_topic(harness, "T", attributes="-message.type").code == 0
        assert "nonexistent" in (make_topic(harness, "T", attributes="-message.type").remark or "")
        assert ask(harness, RequestCode.GET_TOPIC_CONFIG, topic="T")["attributes"] == {"queue.type": "SimpleCQ"}

    def test_an_update_without_a_change_keeps_the_version(self, harness: BrokerHarness) -> None:
        make_topic(harness, "T")
        version = harness.broker.parts.topics.version
        make_topic(harness, "T")
        assert harness.broker.parts.topics.version == version

    def test_a_list_of_topics_is_created_completely_or_not_at_all(self, harness: BrokerHarness) -> None:
        def put(*names: str) -> tuple[int, str]:
            body = {"topicConfigList": [{"topicName": name, "readQueueNums": 2, "writeQueueNums": 2} for name in names]}
            return rejection(harness, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body)

        assert put("A", "B") == (0, "")
        assert put("C", "TBW102")[0] == put("C", "d d")[0] == ResponseCode.INVALID_PARAMETER
        assert [name for name in "ABC" if name in harness.broker.parts.topics] == ["A", "B"]

    @pytest.mark.parametrize(
        "wrong", [{"perm": 1 << 31}, {"topicSysFlag": -(1 << 31) - 1}, {"topicFilterType": "NO_TAG"}]
    )
    def test_a_topic_that_clients_cannot_decode_is_rejected(
        self, harness: BrokerHarness, wrong: dict[str, object]
    ) -> None:
        """With one such topic in the table, the tools in Java would show no topic at all."""
        body = {"topicConfigList": [{"topicName": "A", **wrong}]}
        assert rejection(harness, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body)[0] != 0
        assert "A" not in harness.broker.parts.topics

    def test_the_topic_of_delay_levels_is_listed(self, harness: BrokerHarness) -> None:
        """Apache's broker 5.3.3 lists it, too. Older versions do not matter here."""
        config = ask(harness, RequestCode.GET_ALL_TOPIC_CONFIG)["topicConfigTable"]["SCHEDULE_TOPIC_XXXX"]
        assert (config["readQueueNums"], config["writeQueueNums"]) == (18, 18)

    def test_system_topics_are_listed_and_cannot_be_deleted(self, harness: BrokerHarness) -> None:
        settings = harness.broker.parts.settings
        listed = ask(harness, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)["topicList"]
        assert {"TBW102", settings.broker.cluster, settings.broker.name, "rmq_sys_wheel_timer"} <= set(listed)
        for name in (settings.broker.cluster, settings.broker.name):
            assert (
                rejection(harness, RequestCode.DELETE_TOPIC_IN_BROKER, topic=name)[0] == ResponseCode.INVALID_PARAMETER
            )


class TestGroups:
    def test_a_group_is_created_listed_and_deleted(self, harness: BrokerHarness) -> None:
        config = {"groupName": "g", "retryMaxTimes": 3, "consumeBroadcastEnable": False}
        ask(harness, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, config)
        one = ask(harness, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="g")
        assert one.items() >= config.items()
        harness.restart(clean=False)
        table = ask(harness, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)["subscriptionGroupTable"]
        assert table["g"] == one
        harness.send("T")
        commit(harness, "g", 1)
        ask(harness, RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="g")
        assert harness.broker.parts.consumer_offsets.get("g", "T", 0) == 1
        ask(harness, RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="g", cleanOffset=True)
        assert harness.broker.parts.consumer_offsets.get("g", "T", 0) is None
        assert harness.broker.parts.groups.known("g") is None

    def test_group_settings_that_the_broker_ignores_are_stored(self, harness: BrokerHarness) -> None:
        policy = {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 5000, "max": 60000, "multiplier": 3}}
        config = {"groupName": "g", "groupRetryPolicy": policy, "subscriptionDataSet": [{"topic": "T"}]}
        ask(harness, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, config)
        harness.restart()
        assert ask(harness, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="g").items() >= config.items()

    def test_a_list_of_groups_is_created_completely_or_not_at_all(self, harness: BrokerHarness) -> None:
        def put(*names: str, **fields: object) -> int:
            body = {"groupConfigList": [{"groupName": name, **fields} for name in names]}
            return rejection(harness, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body)[0]

        assert put("a", "b") == 0
        assert put("c", "no group!") == put("c", attributes={"+x": "y"}) == ResponseCode.INVALID_PARAMETER
        assert [name for name in "abc" if harness.broker.parts.groups.known(name)] == ["a", "b"]

    @pytest.mark.parametrize("field", ["retryMaxTimes", "consumeTimeoutMinute", "groupSysFlag", "retryQueueNums"])
    def test_a_number_beyond_32_bits_is_rejected(self, harness: BrokerHarness, field: str) -> None:
        config = {"groupName": "g", field: 1 << 31}
        assert (
            rejection(harness, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, config)[0] == ResponseCode.SYSTEM_ERROR
        )
        assert harness.broker.parts.groups.known("g") is None
        ask(harness, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, config | {field: (1 << 31) - 1})

    def test_a_group_whose_save_fails_is_not_created(self, harness: BrokerHarness) -> None:
        harness.disk.fail_call(1, OSError(5, "broken"), [Call.REPLACE])
        assert rejection(harness, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {"groupName": "g"})[0] != 0
        assert harness.broker.parts.groups.known("g") is None

    def test_an_unknown_group_is_not_created_without_auto_creation(self, harness: BrokerHarness) -> None:
        harness.restart(auto_create_group=False)
        code, _ = rejection(harness, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="g")
        assert code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST

    def test_a_forbidden_group_cannot_pull_the_topic(self, harness: BrokerHarness) -> None:
        """As in Apache's broker, this applies to pulls without a subscription of their own."""
        harness.send("T")
        client = harness.connect()
        send_heartbeat(harness, client)

        def forbid(**fields: object) -> Any:
            return ask(harness, RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, group="g", topic="T", **fields)

        def pull() -> int:
            fields = {"consumerGroup": "g", "topic": "T", "queueId": 0, "queueOffset": 0, "maxMsgNums": 1}
            more = {"sysFlag": 0, "commitOffset": 0, "suspendTimeoutMillis": 0, "subVersion": 0}
            return harness.ask_code(RequestCode.PULL_MESSAGE, connection=client, **fields, **more).code

        assert forbid() == {"group": "g", "topic": "T", "readable": True}
        assert pull() == 0
        assert forbid(readable=False)["readable"] is False
        assert pull() == ResponseCode.NO_PERMISSION
        harness.restart()
        assert forbid()["readable"] is False
        assert forbid(readable=True)["readable"] is True


class TestConnections:
    def test_the_connections_of_a_consumer_group_are_listed(self, harness: BrokerHarness) -> None:
        client = harness.connect()
        code, remark = rejection(harness, RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup="g")
        assert (code, remark) == (ResponseCode.CONSUMER_NOT_ONLINE, "the consumer group[g] not online")
        send_heartbeat(harness, client, "c", messageModel="BROADCASTING")
        found = ask(harness, RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup="g")
        [one] = found["connectionSet"]
        assert one.keys() == {"clientId", "clientAddr", "language", "version"}
        assert (one["clientId"], one["clientAddr"]) == ("c", f"10.0.0.1:{client.peer.port}")
        assert found["messageModel"] == "BROADCASTING"
        assert found["subscriptionTable"]["T"]["subString"] == "*"

    def test_the_connections_of_producers_are_listed(self, harness: BrokerHarness) -> None:
        code, remark = rejection(harness, RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup="p")
        assert (code, remark) == (ResponseCode.SYSTEM_ERROR, "the producer group[p] not exist")
        send_heartbeat(harness, harness.connect(), "c", producers=("p",))
        harness.clock.advance(500)
        found = ask(harness, RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup="p")
        assert [one["clientId"] for one in found["connectionSet"]] == ["c"]
        [one] = ask(harness, RequestCode.GET_ALL_PRODUCER_INFO)["data"]["p"]
        assert (one["clientId"], one["lastUpdateTimestamp"]) == ("c", harness.now_ms - 500)


class TestQueues:
    def test_topic_stats_show_the_offsets_of_each_queue(self, harness: BrokerHarness) -> None:
        make_topic(harness, "T", readQueueNums=1, writeQueueNums=3)
        harness.clock.advance(7)
        harness.send("T", queue_id=2)
        last_ms = harness.now_ms
        table = ask(harness, RequestCode.GET_TOPIC_STATS_INFO, topic="T")["offsetTable"]
        assert table["0"] == {"lastUpdateTimestamp": 0, "maxOffset": 0, "minOffset": 0}
        assert table["2"] == {"lastUpdateTimestamp": last_ms, "maxOffset": 1, "minOffset": 0}
        assert len(table) == 3
        assert rejection(harness, RequestCode.GET_TOPIC_STATS_INFO, topic="U")[0] == ResponseCode.TOPIC_NOT_EXIST

    def test_consume_queue_units_are_listed(self, harness: BrokerHarness) -> None:
        def units(index: int, count: int = 5, **fields: object) -> Any:
            given = {"topic": "T", "queueId": 0, "index": index, "count": count}
            return ask(harness, RequestCode.QUERY_CONSUME_QUEUE, **given, **fields)

        for tag in ("A", "B", "A"):
            harness.send("T", properties={"TAGS": tag})
        found = units(1)
        assert (found["minQueueIndex"], found["maxQueueIndex"]) == (0, 3)
        assert [unit["tagsCode"] for unit in found["queueData"]] == [66, 65]
        assert [unit["physicOffset"] for unit in units(0, 1)["queueData"]] == [0]
        assert units(7) is None
        assert "queueData" not in units(3)
        assert units(0, consumerGroup="g")["filterData"] == "g@T is not online!"
        send_heartbeat(harness, harness.connect())
        assert units(0, consumerGroup="g")["subscriptionData"]["topic"] == "T"
        fields = {"topic": "T", "queueId": 9, "index": 0, "count": 1}
        assert rejection(harness, RequestCode.QUERY_CONSUME_QUEUE, **fields) == (1, "9@T is not exist!")


class TestProgress:
    @pytest.fixture
    def consumed(self, harness: BrokerHarness) -> BrokerHarness:
        """T has three messages. Group `g` has committed one and pulled two, group `h` has committed all."""
        make_topic(harness, "T")
        make_topic(harness, "U", order=True)
        for _ in range(3):
            harness.send("T")
            harness.clock.advance(10)
        harness.send("U")
        harness.pull("T", consumerGroup="g", maxMsgNums=2)
        commit(harness, "g", 1)
        commit(harness, "h", 3)
        commit(harness, "h", 1, "U")
        return harness

    def test_consume_stats_show_the_offsets_of_a_group(self, consumed: BrokerHarness) -> None:
        found = ask(consumed, RequestCode.GET_CONSUME_STATS, consumerGroup="g", topic="T")["offsetTable"]
        stored_ms = consumed.now_ms - 30
        assert found["0"] == {"brokerOffset": 3, "consumerOffset": 1, "lastTimestamp": stored_ms, "pullOffset": 2}
        assert found["1"] == {"brokerOffset": 0, "consumerOffset": 0, "lastTimestamp": 0, "pullOffset": 0}

    def test_consume_stats_cover_only_subscribed_topics(self, consumed: BrokerHarness) -> None:
        def topics(**fields: object) -> set[str]:
            raw = consumed.ask_code(RequestCode.GET_CONSUME_STATS, consumerGroup="h", **fields).body
            return set(re.findall(r'"topic":"(\w+)"', raw.decode()))

        assert topics() == {"T", "U"}
        assert topics(topicList="U;nowhere;") == {"U"}
        send_heartbeat(consumed, consumed.connect(), group="h")
        assert topics() == {"T"}
        assert topics(topic="U") == set()
        assert topics(topicList="U;") == {"U"}

    def test_broker_consume_stats_sum_the_lag_of_all_groups(self, consumed: BrokerHarness) -> None:
        def lag(*, is_order: bool) -> tuple[int, int, list[str]]:
            found = ask(consumed, RequestCode.GET_BROKER_CONSUME_STATS, isOrder=is_order)
            groups = [name for row in found["consumeStatsList"] for name, stats in row.items() if stats]
            return found["totalDiff"], found["totalInflightDiff"], groups

        assert lag(is_order=False) == (2, 1, ["g", "h"])
        assert lag(is_order=True) == (0, 0, ["h"])

    def test_consume_time_spans_show_the_delay_of_each_group(self, consumed: BrokerHarness) -> None:
        def spans(group: str) -> Any:
            found = ask(consumed, RequestCode.QUERY_CONSUME_TIME_SPAN, topic="T", group=group)
            names = ("minTimeStamp", "maxTimeStamp", "consumeTimeStamp", "delayTime")
            return [tuple(one[name] for name in names) for one in found["consumeTimeSpanSet"]]

        now_ms = consumed.now_ms
        assert spans("g") == [(now_ms - 30, now_ms - 10, now_ms - 30, 20), (-1, -1, -1, 0)]
        assert spans("h")[0] == (now_ms - 30, now_ms - 10, now_ms - 10, 0)
        assert spans("nobody")[0] == (now_ms - 30, now_ms - 10, now_ms - 30, 30)

    def test_groups_are_found_by_topic_and_topics_by_group(self, consumed: BrokerHarness) -> None:
        send_heartbeat(consumed, consumed.connect(), group="new")
        assert ask(consumed, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, topic="T")["groupList"] == ["g", "h", "new"]
        assert ask(consumed, RequestCode.QUERY_TOPICS_BY_CONSUMER, group="h")["topicList"] == ["T", "U"]

        def subscribed(group: str) -> object:
            found = ask(consumed, RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, topic="T", group=group)
            return found.get("subscriptionData", {}).get("subString")

        assert (subscribed("new"), subscribed("g")) == ("*", None)

    def test_the_correction_offset_compares_the_offsets_of_groups(self, consumed: BrokerHarness) -> None:
        def least(**fields: object) -> Any:
            found = ask(consumed, RequestCode.QUERY_CORRECTION_OFFSET, topic="T", **fields)
            return found["correctionOffsets"]

        assert least(compareGroup="h") == {"0": 1}
        assert least(compareGroup="g", filterGroups="g,x") == {"0": (1 << 63) - 1}

    def test_a_clone_copies_the_offsets_of_subscribed_topics(self, consumed: BrokerHarness) -> None:
        offsets = consumed.broker.parts.consumer_offsets
        ask(consumed, RequestCode.CLONE_GROUP_OFFSET, srcGroup="h", destGroup="k", topic="T")
        assert (offsets.get("k", "T", 0), offsets.get("k", "U", 0)) == (3, None)
        send_heartbeat(consumed, consumed.connect(), group="h")
        ask(consumed, RequestCode.CLONE_GROUP_OFFSET, srcGroup="h", destGroup="k")
        assert offsets.get("k", "U", 0) is None  # it subscribes to T alone
        ask(consumed, RequestCode.CLONE_GROUP_OFFSET, srcGroup="h", destGroup="k", offline=True)
        assert offsets.get("k", "U", 0) == 1

    def test_all_consumer_offsets_are_listed(self, consumed: BrokerHarness) -> None:
        table = ask(consumed, RequestCode.GET_ALL_CONSUMER_OFFSET)["offsetTable"]
        assert table == {"T@g": {"0": 1}, "T@h": {"0": 3}, "U@h": {"0": 1}}


class TestSlices:
    def test_a_long_answer_does_not_delay_other_requests(self, harness: BrokerHarness) -> None:
        """Each read of the clock takes as long as a slice, so one tick handles one queue."""
        make_topic(harness, "T", writeQueueNums=40)
        commit(harness, "g", 0)
        harness.clock.creep_ms = 3
        asked = [
            harness.submit(Command(code=RequestCode.GET_BROKER_CONSUME_STATS, ext={"isOrder": "false"}))
            for _ in range(UNDER_WAY_MAX + 1)
        ]
        harness.tick()
        assert asked[-1].answer is not None and asked[-1].answer.code == ResponseCode.SYSTEM_BUSY
        assert asked[0].answer is None
        assert harness.send("T").code == 0
        harness.clock.creep_ms = 0
        harness.settle()
        answers = [one.answer for one in asked[:-1]]
        assert all(answer is not None and answer.code == 0 for answer in answers)
        assert not harness.broker.parts.slices.has_more()

    @pytest.mark.parametrize("how", ["lost", "late"])
    def test_a_sliced_answer_without_a_waiting_client_is_dropped(self, harness: BrokerHarness, how: str) -> None:
        make_topic(harness, "T", writeQueueNums=40)
        client = harness.connect()
        harness.clock.creep_ms = 3
        asked = harness.submit(Command(code=RequestCode.GET_TOPIC_STATS_INFO, ext={"topic": "T"}), client)
        harness.tick()
        assert asked.answer is None and harness.broker.parts.slices.has_more()
        if how == "lost":
            harness.lose(client)
        else:
            harness.clock.advance(harness.broker.parts.settings.requests.response_timeout_ms)
        harness.tick()
        harness.tick()
        assert not harness.broker.parts.slices.has_more()
        assert how == "lost" or (asked.answer is not None and asked.answer.code == ResponseCode.SYSTEM_BUSY)

    def test_an_error_in_a_slice_is_answered(self, harness: BrokerHarness) -> None:
        make_topic(harness, "T")
        with mock.patch("wheelmq.broker.handlers.queues.bounds", side_effect=OSError(5, "broken")):
            assert rejection(harness, RequestCode.GET_TOPIC_STATS_INFO, topic="T")[0] == ResponseCode.SYSTEM_ERROR


class TestCleaning:
    @pytest.mark.parametrize("code", [RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, RequestCode.DELETE_EXPIRED_COMMITLOG])
    def test_files_that_are_in_use_are_not_deleted(self, harness: BrokerHarness, code: RequestCode) -> None:
        harness.send("T", b"kept")
        ask(harness, code)
        assert harness.bodies("T") == [b"kept"]

    def test_the_log_is_cleaned_at_any_hour(self, harness: BrokerHarness) -> None:
        hour = time.localtime(harness.now_ms // 1000).tm_hour
        harness.restart(delete_when=f"{(hour + 12) % 24:02d}", file_reserved_time=1)
        for _ in range(40):
            harness.send("T", bytes(100_000))
        harness.advance(3_600_000 * 3)
        harness.send("T", b"new")
        harness.advance(5000)
        start = harness.broker.parts.store.log.start
        ask(harness, RequestCode.DELETE_EXPIRED_COMMITLOG)
        ask(harness, RequestCode.DELETE_EXPIRED_COMMITLOG)
        harness.settle()
        assert harness.broker.parts.store.log.start > start

    def test_offsets_of_deleted_topics_without_messages_are_removed(self, harness: BrokerHarness) -> None:
        make_topic(harness, "Empty")
        harness.send("Full", delay_ms=500)
        for topic in ("Empty", "Full"):
            ask(harness, RequestCode.DELETE_TOPIC_IN_BROKER, topic=topic)
            harness.broker.parts.consumer_offsets.commit("g", topic, 0, 0)  # an older store may contain this
        harness.advance(600)  # the parked message is stored
        ask(harness, RequestCode.CLEAN_UNUSED_TOPIC)
        offsets = harness.broker.parts.consumer_offsets
        assert (offsets.get("g", "Empty", 0), offsets.get("g", "Full", 0)) == (None, 0)


def test_no_replica_is_connected(harness: BrokerHarness) -> None:
    harness.send("T")
    found = ask(harness, RequestCode.GET_BROKER_HA_STATUS)
    assert (found["master"], found["inSyncSlaveNums"], found["haConnectionInfo"]) == (True, 0, [])
    assert found["masterCommitLogMaxOffset"] == harness.broker.parts.store.log.end


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (RequestCode.GET_COLD_DATA_FLOW_CTR_INFO, "cold data"),
        (RequestCode.POP_MESSAGE, "POP"),
        (RequestCode.GET_CLIENT_CONFIG, ""),
    ],
)
def test_a_rejected_request_code_gets_the_reason(harness: BrokerHarness, code: RequestCode, reason: str) -> None:
    """A code that Apache's broker does not serve either gets the remark of Apache's broker."""
    got, remark = rejection(harness, code)
    assert got == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert remark.startswith(f" request type {code.value} not supported")
    assert reason in remark and (remark.endswith("supported") == (reason == ""))
