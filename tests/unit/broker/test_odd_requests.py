"""Requests of the random sequences of compat/twin, answered as Apache RocketMQ 5.3.3 answers them."""

from __future__ import annotations

from wheelmq.client.outgoing import encode_batch
from wheelmq.formats.disk import properties as props
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.testing.harness import BrokerHarness


def test_a_send_without_a_body_is_rejected_before_the_topic_check(harness: BrokerHarness) -> None:
    answer = harness.send("T", b"", c="NoSuchTopic")
    assert answer.code == ResponseCode.SYSTEM_ERROR and answer.ext == {}
    assert harness.send("T", b"", d=0).code == ResponseCode.SYSTEM_ERROR


def test_a_queue_id_beyond_the_topic_gets_apaches_remark(harness: BrokerHarness) -> None:
    answer = harness.send("T", queue_id=77)
    assert answer.remark is not None
    assert "request queueId[77] is illegal, TopicConfig [topicName=T, readQueueNums=4" in answer.remark
    pulled = harness.ask(harness.pull_command("T", 77))
    assert pulled.remark is not None and "readQueueNums:[4] consumer:[/10.0.0.1:" in pulled.remark


def test_a_query_for_a_negative_number_of_messages_fails(harness: BrokerHarness) -> None:
    fields = {"topic": "T", "key": "k", "beginTimestamp": 0, "endTimestamp": 1 << 60, "maxNum": -1}
    assert harness.ask_code(RequestCode.QUERY_MESSAGE, **fields).code == ResponseCode.SYSTEM_ERROR
    fields |= {"_UNIQUE_KEY_QUERY": True}
    assert harness.ask_code(RequestCode.QUERY_MESSAGE, **fields).code == ResponseCode.QUERY_NOT_FOUND


def test_a_commit_of_an_offset_creates_no_group(harness: BrokerHarness) -> None:
    fields = {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 0}
    harness.send("T")
    answer = harness.ask_code(RequestCode.UPDATE_CONSUMER_OFFSET, **fields)
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    harness.pull("T", consumerGroup="g")
    assert harness.ask_code(RequestCode.UPDATE_CONSUMER_OFFSET, **fields).code == 0


def test_a_topic_of_an_unknown_filter_type_is_not_created(harness: BrokerHarness) -> None:
    fields: dict[str, object] = {"topic": "T", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    for kind, code in (("MULTI_TAG", 0), ("SINGLE_TAG", 0), ("x", 1), ("", 1)):
        assert harness.ask_code(RequestCode.UPDATE_AND_CREATE_TOPIC, **fields, topicFilterType=kind).code == code


def test_every_answer_to_a_recall_names_the_region(harness: BrokerHarness) -> None:
    answer = harness.ask_code(RequestCode.RECALL_MESSAGE, topic="NoSuchTopic", recallHandle="x")
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST and answer.ext == {props.MSG_REGION: "DefaultRegion"}


def test_a_batch_in_a_transaction_is_rejected(harness: BrokerHarness) -> None:
    body = encode_batch([(b"x", {})])
    assert harness.send("T", body, m=True, f=4).code == ResponseCode.MESSAGE_ILLEGAL
    assert harness.send("T", body, m=True).code == 0


def test_a_topic_created_by_a_sender_in_unit_mode_has_the_flag(harness: BrokerHarness) -> None:
    harness.send("T", k=True)
    assert harness.pull("T").answer.ext["topicSysFlag"] == "1"


def test_the_answer_to_a_send_turned_dead_letter_has_the_requested_queue(
    harness: BrokerHarness,
) -> None:
    harness.pull("T", consumerGroup="g")
    answer = harness.send("%RETRY%g", c="TBW102", queue_id=3, j=99, l=3)
    assert answer.code == 0 and answer.ext["queueId"] == "3"
    assert harness.bodies("%DLQ%g") == [b"body"]
