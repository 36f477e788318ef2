"""JSON bodies, as clients in Java, Go and other languages write them."""

from __future__ import annotations

import json

import pytest

from wheelmq.formats.wire import bodies
from wheelmq.formats.wire.bodies import (
    BodyError,
    BrokerData,
    GroupConfig,
    Heartbeat,
    LockBatch,
    Route,
    Subscription,
    TopicConfig,
)


def test_a_heartbeat_of_the_java_client_is_read() -> None:
    raw = (
        b'{"clientID":"10.0.0.1@1#2","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET",'
        b'"consumeType":"CONSUME_PASSIVELY","groupName":"g","messageModel":"CLUSTERING","subscriptionDataSet":'
        b'[{"classFilterMode":false,"codeSet":[2598919],"expressionType":"TAG","subString":"TagA",'
        b'"subVersion":1700000000000,"tagsSet":["TagA"],"topic":"T"}],"unitMode":false}],"heartbeatFingerprint":0,'
        b'"producerDataSet":[{"groupName":"p"}],"withoutSub":false}'
    )
    beat = bodies.read(raw, Heartbeat)
    assert beat.client_id == "10.0.0.1@1#2"
    assert beat.producer_data_set[0].group_name == "p"
    subscription = beat.consumer_data_set[0].subscription_data_set[0]
    assert (subscription.topic, subscription.code_set, subscription.sub_version) == ("T", [2598919], 1700000000000)


def test_ordinals_and_text_versions_of_the_cpp_client_are_read() -> None:
    raw = (
        b'{"clientID":"1-127.0.0.1@DEFAULT","consumerDataSet":[{"consumeFromWhere":4,"consumeType":1,"groupName":"g",'
        b'"messageModel":0,"subscriptionDataSet":[{"subString":"*","subVersion":"1795340152440","topic":"T"}]}]}'
    )
    group = bodies.read(raw, Heartbeat).consumer_data_set[0]
    assert group.consume_type == "CONSUME_PASSIVELY"
    assert group.message_model == "BROADCASTING"
    assert group.consume_from_where == "CONSUME_FROM_FIRST_OFFSET"
    assert group.subscription_data_set[0].sub_version == 1795340152440


@pytest.mark.parametrize("ordinal", [b"-1", b"2"])
def test_an_unknown_ordinal_is_rejected(ordinal: bytes) -> None:
    with pytest.raises(BodyError, match=r"message_model is -?[0-9]+: send a name, or 0 to 1"):
        bodies.read(b'{"clientID":"c","consumerDataSet":[{"groupName":"g","messageModel":%b}]}' % ordinal, Heartbeat)


def test_text_codes_of_the_go_client_are_read() -> None:
    raw = b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{"codeSet":["2598919"]}]}]}'
    assert bodies.read(raw, Heartbeat).consumer_data_set[0].subscription_data_set[0].code_set == [2598919]


@pytest.mark.parametrize(
    "raw",
    [
        b'{"brokerName":"b","cluster":"c","brokerAddrs":{"0":"a","1":"b"}}',
        b'{"brokerName":"b","cluster":"c","brokerAddrs":{0:"a",1:"b"}}',
        b'{\n\t"brokerName":"b",\n\t"cluster":"c",\n\t"brokerAddrs":{\n\t\t0:"a",\n\t\t1 : "b"\n\t}\n}',
    ],
)
def test_number_keys_may_lack_quotes(raw: bytes) -> None:
    assert bodies.read(raw, BrokerData).broker_addrs == {0: "a", 1: "b"}


def test_a_bare_key_inside_a_text_is_not_changed() -> None:
    raw = b'{"brokerName":"a,1:b","cluster":"{2:c","brokerAddrs":{0:"x"}}'
    found = bodies.read(raw, BrokerData)
    assert (found.broker_name, found.cluster, found.broker_addrs) == ("a,1:b", "{2:c", {0: "x"})


@pytest.mark.parametrize("name", ['a\\",1:b', "\\\\", '\\\\\\"{2:', "{-3 :"])
def test_escapes_in_a_text_before_a_bare_key_are_read(name: str) -> None:
    raw = f'{{"brokerName":"{name}","cluster":"c","brokerAddrs":{{-1 :"x"}}}}'
    found = bodies.read(raw.encode(), BrokerData)
    assert (found.broker_name, found.broker_addrs) == (json.loads(f'"{name}"'), {-1: "x"})


def test_a_long_text_without_an_end_is_rejected() -> None:
    with pytest.raises(BodyError):
        bodies.read(b'{"brokerName":"' + b'\\"' * 1_000_000, BrokerData)


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"null", b'{"clientId":1', b'{"clientID":{}}', b"{}", b"\xff"])
def test_an_invalid_body_is_rejected(raw: bytes) -> None:
    with pytest.raises(BodyError, match="Heartbeat"):
        bodies.read(raw, Heartbeat)


def test_a_missing_field_has_its_default() -> None:
    group = bodies.read(b'{"groupName":"g","unheardOf":[1]}', GroupConfig)
    assert (group.retry_max_times, group.retry_queue_nums, group.consume_enable) == (16, 1, True)
    assert group.group_retry_policy.type == "CUSTOMIZED"
    topic = bodies.read(b"{}", TopicConfig)
    assert (topic.perm, topic.read_queue_nums, topic.topic_filter_type) == (6, 16, "SINGLE_TAG")


def test_defaults_are_not_shared() -> None:
    first, second = bodies.read(b"{}", TopicConfig), bodies.read(b"{}", TopicConfig)
    first.attributes["queue.type"] = "BatchCQ"
    assert second.attributes == {} == TopicConfig().attributes


def test_none_values_are_left_out() -> None:
    route = Route(broker_datas=[BrokerData(broker_name="b", cluster="c", broker_addrs={0: "a"})])
    assert json.loads(bodies.write(route)) == {
        "brokerDatas": [
            {"brokerName": "b", "cluster": "c", "brokerAddrs": {"0": "a"}, "enableActingMaster": False},
        ],
        "queueDatas": [],
        "filterServerTable": {},
    }


def test_lock_bodies_are_read_and_written() -> None:
    raw = b'{"clientId":"c","consumerGroup":"g","mqSet":[{"brokerName":"b","queueId":1,"topic":"T"}]}'
    body = bodies.read(raw, LockBatch)
    assert body.mq_set == [bodies.QueueName(broker_name="b", queue_id=1, topic="T")]
    assert json.loads(bodies.write({"lockOKMQSet": body.mq_set})) == {
        "lockOKMQSet": [{"brokerName": "b", "queueId": 1, "topic": "T"}]
    }


def test_tag_expressions_are_parsed() -> None:
    for text in ("*", ""):
        assert Subscription.of_tags("T", text, 1).sub_string == "*"
    chosen = Subscription.of_tags("T", " a ||b", 7)
    assert (chosen.tags_set, chosen.code_set, chosen.sub_version) == (["a", "b"], [97, 98], 7)
    for text in ("||", " "):
        with pytest.raises(ValueError, match="has no tags"):
            Subscription.of_tags("T", text, 1)


@pytest.mark.parametrize("raw", [b'{"topicName":"T\xd0pic"}', b'{"attributes":{"\xff":"a"}}'])
def test_a_body_with_invalid_utf_8_is_rejected(raw: bytes) -> None:
    with pytest.raises(BodyError, match="TopicConfig: "):
        bodies.read(raw, TopicConfig)


@pytest.mark.parametrize("raw", [b'{"x":' + b"[" * 20_000, b'{"x":' * 20_000])
def test_a_body_that_nests_too_deep_is_rejected(raw: bytes) -> None:
    with pytest.raises(BodyError, match="recursion"):
        bodies.read(raw, Heartbeat)


def test_the_text_of_a_topic_has_the_form_of_apache() -> None:
    topic = TopicConfig(topic_name="T", read_queue_nums=1, write_queue_nums=2, perm=5, attributes={"a": "b", "c": "d"})
    assert topic.text() == (
        "TopicConfig [topicName=T, readQueueNums=1, writeQueueNums=2, perm=R-X, topicFilterType=SINGLE_TAG, "
        "topicSysFlag=0, order=false, attributes={a=b, c=d}]"
    )
