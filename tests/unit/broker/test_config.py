"""UPDATE_BROKER_CONFIG, GET_BROKER_CONFIG and the effect of changed settings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from wheelmq.broker.registration import register_command
from wheelmq.config import properties
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.workers import HeldWorker

OK = ResponseCode.SUCCESS


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[BrokerHarness]:
    with BrokerHarness(tmp_path, block_length_seconds=60) as running:
        yield running


def update(harness: BrokerHarness, **changes: str) -> Command:
    return harness.ask_code(RequestCode.UPDATE_BROKER_CONFIG, properties.write(changes).encode())


def get(harness: BrokerHarness) -> tuple[dict[str, str], dict[str, int]]:
    answer = harness.ask_code(RequestCode.GET_BROKER_CONFIG)
    return {one.name: one.value for one in properties.parse(bytes(answer.body))}, json.loads(answer.ext["version"])


def registered(harness: BrokerHarness) -> dict[str, Any]:
    body = json.loads(
        bytes(
            register_command(
                harness.broker.parts.settings, harness.broker.parts.topics, harness.broker.parts.replication
            ).body
        )
    )
    return dict(body["topicConfigSerializeWrapper"]["topicConfigTable"])


def test_a_change_is_shown_and_counted(harness: BrokerHarness) -> None:
    values, version = get(harness)
    assert values["fileReservedTime"] == "72" and version["counter"] == 0
    harness.clock.advance(7)
    assert update(harness, fileReservedTime="24").code == OK
    values, version = get(harness)
    assert values["fileReservedTime"] == "24"
    assert version == {"counter": 1, "stateVersion": 0, "timestamp": harness.now_ms}


def test_an_empty_change_is_not_counted(harness: BrokerHarness) -> None:
    assert update(harness).code == OK
    assert get(harness)[1]["counter"] == 0


def test_a_rejected_change_gets_the_reason(harness: BrokerHarness) -> None:
    answer = update(harness, storePathRootDir="/x", fileReservedTime="24")
    assert answer.code == ResponseCode.NO_PERMISSION
    assert (answer.remark or "").startswith("storePathRootDir does not change at run time")
    assert get(harness)[0]["fileReservedTime"] == "72"


@pytest.mark.parametrize("broker_id", [0, 1])
def test_an_update_with_the_shown_settings_changes_nothing(tmp_path: Path, broker_id: int) -> None:
    with BrokerHarness(tmp_path, block_length_seconds=60, broker_id=broker_id) as harness:
        values = get(harness)[0]
        assert update(harness, **values).code == OK
        assert get(harness) == (values, {**get(harness)[1], "counter": 0})
        answer = update(harness, brokerId="5")
        assert answer.code == ResponseCode.NO_PERMISSION and "brokerId does not change" in (answer.remark or "")


def test_a_new_message_size_limit_applies_to_the_next_send(harness: BrokerHarness) -> None:
    """The kernel and the plain handler apply the limit."""
    assert harness.send("T", b"12345").code == OK
    assert update(harness, maxMessageSize="4").code == OK
    assert harness.send("T", b"12345").code == ResponseCode.MESSAGE_ILLEGAL
    assert harness.send("T", b"1234").code == OK
    assert update(harness, maxMessageSize="5").code == OK
    assert harness.send("T", b"12345").code == OK


def test_sends_create_topics_once_auto_creation_is_on(harness: BrokerHarness) -> None:
    """The template topic, for which clients ask the name server, exists from then on, too."""
    harness.stop()
    (harness._folder / "config" / "topics.json").unlink(missing_ok=True)
    harness.start(auto_create_topic=False)
    before = registered(harness)
    assert "TBW102" not in before and harness.send("NEW").code == ResponseCode.TOPIC_NOT_EXIST
    assert update(harness, autoCreateTopicEnable="true").code == OK
    assert registered(harness)["TBW102"]["perm"] == 7 and harness.broker.parts.topics.changed
    assert harness.send("NEW").code == OK
    assert update(harness, autoCreateTopicEnable="false").code == OK
    assert harness.send("OTHER").code == ResponseCode.TOPIC_NOT_EXIST


def test_a_new_longest_delay_applies_to_the_next_send(harness: BrokerHarness) -> None:
    assert update(harness, timerMaxDelaySec="10").code == OK
    assert harness.send("T", delay_ms=11_000).code == ResponseCode.MESSAGE_ILLEGAL
    assert harness.send("T", delay_ms=9000).code == OK


def test_the_trace_mark_of_answers_can_be_changed(harness: BrokerHarness) -> None:
    assert harness.send("T").ext["TRACE_ON"] == "true"
    assert update(harness, traceOn="false").code == OK
    assert harness.send("T").ext["TRACE_ON"] == "false"


def test_sends_wait_for_the_disk_once_synchronous_flush_is_on(tmp_path: Path) -> None:
    with BrokerHarness(tmp_path, block_length_seconds=60, worker=HeldWorker()) as harness:
        assert harness.send("T").code == OK
        assert update(harness, flushDiskType="SYNC_FLUSH").code == OK
        asked = harness.submit(harness.send_command("T"))
        harness.settle()
        assert asked.answer is None
        harness.run_jobs()
        harness.settle()
        harness.run_jobs()
        assert asked.answer is not None and asked.answer.code == OK


def test_a_new_limit_of_the_disk_applies_at_once(harness: BrokerHarness) -> None:
    harness.disk.used = 0.5
    assert update(harness, diskSpaceWarningLevelRatio="49").code == OK
    assert harness.send("T").code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert update(harness, diskSpaceWarningLevelRatio="51").code == OK
    assert harness.send("T").code == OK


def test_sends_before_the_start_accept_time_are_rejected(harness: BrokerHarness) -> None:
    assert update(harness, startAcceptSendRequestTimeStamp=str(harness.now_ms + 1000)).code == OK
    assert harness.send("T").code == ResponseCode.SYSTEM_ERROR
    harness.clock.advance(1000)
    assert harness.send("T").code == OK


class TestPermission:
    def test_a_new_broker_permission_is_registered_again(self, harness: BrokerHarness) -> None:
        harness.send("T")
        harness.broker.parts.topics.note_registration()
        version = harness.broker.parts.topics.version
        assert registered(harness)["T"]["perm"] == 6
        assert update(harness, brokerPermission="4").code == OK
        assert (
            harness.broker.parts.topics.changed and harness.broker.parts.topics.version.counter == version.counter + 1
        )
        assert registered(harness)["T"]["perm"] == 4
        found = harness.broker.parts.topics.get("T")
        assert found is not None and found.perm == 6  # the topic's own permission stays

    def test_a_broker_without_read_permission_rejects_pulls(self, harness: BrokerHarness) -> None:
        harness.send("T")
        assert update(harness, brokerPermission="2").code == OK
        answer = harness.pull("T").answer
        assert answer.code == ResponseCode.NO_PERMISSION
        assert answer.remark == "the broker[127.0.0.1] pulling message is forbidden"
        assert update(harness, brokerPermission="6").code == OK
        assert len(harness.pull("T").records) == 1

    def test_a_broker_without_write_permission_rejects_some_sends(self, harness: BrokerHarness) -> None:
        """As in Apache's broker, clients avoid the broker by its route.

        The broker rejects sends to ordered topics, and messages that a consumer sends back.
        """
        ordered = {"topic": "O", "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
        ordered |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "true"}
        assert harness.ask_code(RequestCode.UPDATE_AND_CREATE_TOPIC, **ordered).code == OK
        harness.send("T")
        assert harness.send("O").code == OK
        assert update(harness, brokerPermission="4").code == OK
        assert harness.send("T").code == OK
        back = harness.ask_code(RequestCode.CONSUMER_SEND_MSG_BACK, offset=0, group="g", delayLevel=1)
        for answer in (harness.send("O"), back):
            assert answer.code == ResponseCode.NO_PERMISSION
            assert answer.remark == "the broker[127.0.0.1] sending message is forbidden"
