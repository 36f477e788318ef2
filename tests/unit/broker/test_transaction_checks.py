"""The checks of transactions that do not end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.broker.test_transactions import (
    COMMIT,
    GROUP,
    ROUND_MS,
    checks,
    end,
    expired_id,
    half,
    half_command,
    halves,
    producer,
    send_heartbeat,
)
from wheelmq.formats import names
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import decode_record
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.testing.harness import BrokerHarness


class TestChecks:
    def test_a_check_asks_the_producer(self, harness: BrokerHarness) -> None:
        connection = producer(harness)
        harness.advance(ROUND_MS - 6000)
        half(harness, queue_id=2)
        harness.advance(6000)
        (asked,) = checks(connection)
        old, new = halves(harness)
        assert asked.is_oneway
        assert asked.ext == {
            "topic": names.HALF_TOPIC,
            "tranStateTableOffset": "1",
            "commitLogOffset": str(new.position),
            "msgId": "body",
            "transactionId": "body",
            "offsetMsgId": asked.ext["offsetMsgId"],
            "bname": "broker-a",
        }
        assert int(asked.ext["offsetMsgId"][-16:], 16) == new.position
        record = decode_record(bytes(asked.body))
        assert (record.message.topic, record.message.queue_id, record.message.body) == ("T", 2, b"body")
        assert (record.queue_offset, record.position, record.message.flag) == (1, new.position, 7)
        assert record.message.properties[props.PRODUCER_GROUP] == GROUP
        assert new.message.properties[props.TRANSACTION_CHECK_TIMES] == "1"
        assert (new.message.born_ms, new.message.body) == (old.message.born_ms, b"body")
        assert end(harness, asked, COMMIT).code == 0
        assert harness.bodies("T", 2) == [b"body"]
        harness.advance(ROUND_MS)
        assert checks(connection) == []

    def test_a_young_half_message_is_not_checked(self, harness: BrokerHarness) -> None:
        connection = producer(harness)
        harness.advance(ROUND_MS - 5999)
        half(harness)
        harness.advance(5999)
        assert checks(connection) == []
        harness.advance(ROUND_MS)
        assert len(checks(connection)) == 1

    def test_the_first_end_may_name_the_old_position(self, harness: BrokerHarness) -> None:
        """Both ends were sent at the same time. The transaction ends once."""
        connection = producer(harness)
        sent = half(harness)
        harness.advance(ROUND_MS)
        (asked,) = checks(connection)
        assert end(harness, sent, COMMIT).code == 0
        assert end(harness, asked, COMMIT).code == 0
        assert harness.bodies("T") == [b"body"]
        (record,) = harness.read_queue("T")
        assert record.message.prepared_position == int(asked.ext["commitLogOffset"])

    def test_an_unknown_transaction_is_checked_up_to_a_limit(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path, transaction_check_max=3) as harness:
            connection = producer(harness)
            sent = half(harness)
            for times in range(1, 4):
                harness.advance(ROUND_MS)
                send_heartbeat(harness, connection)
                (asked,) = checks(connection)
                assert halves(harness)[-1].message.properties[props.TRANSACTION_CHECK_TIMES] == str(times)
            harness.advance(ROUND_MS)
            assert checks(connection) == []
            (expired,) = harness.read_queue(names.CHECK_MAX_TIME_TOPIC)
            assert expired.message.properties[props.REAL_TOPIC] == "T"
            assert expired.message.body == b"body"
            for named in (sent, asked):
                assert end(harness, named, COMMIT).code == ResponseCode.ILLEGAL_OPERATION
            harness.advance(ROUND_MS)
            assert len(harness.read_queue(names.CHECK_MAX_TIME_TOPIC)) == 1
            answer = harness.ask_code(RequestCode.RESUME_CHECK_HALF_MESSAGE, topic="T", msgId=expired_id(expired))
            assert answer.code == 0
            harness.advance(ROUND_MS)
            (asked,) = checks(connection)
            assert end(harness, asked, COMMIT).code == 0
            assert harness.bodies("T") == [b"body"]

    @pytest.mark.parametrize("message_id", ["", "nothing", "7F00000100002A9F0000000000000000"])
    def test_only_an_expired_transaction_can_be_checked_again(self, harness: BrokerHarness, message_id: str) -> None:
        half(harness)
        answer = harness.ask_code(RequestCode.RESUME_CHECK_HALF_MESSAGE, topic="T", msgId=message_id)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert len(halves(harness)) == 1

    def test_a_half_message_older_than_the_log_expires(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path, file_reserved_time=1) as harness:
            connection = producer(harness)
            half(harness, g=harness.now_ms - 3_600_000)
            harness.advance(ROUND_MS)
            assert checks(connection) == []
            assert harness.bodies(names.CHECK_MAX_TIME_TOPIC) == [b"body"]

    def test_a_new_reserved_time_expires_half_messages(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path, block_length_seconds=60) as harness:
            half(harness, g=harness.now_ms - 2 * 3_600_000)
            assert harness.ask_code(RequestCode.UPDATE_BROKER_CONFIG, b"fileReservedTime=1").code == 0
            harness.advance(ROUND_MS)
            assert harness.bodies(names.CHECK_MAX_TIME_TOPIC) == [b"body"]

    @pytest.mark.parametrize("seconds", ["40", "x", "-1"])
    def test_a_half_message_may_set_its_immunity_time(self, harness: BrokerHarness, seconds: str) -> None:
        """Before that time, the broker puts it back without counting a check."""
        connection = producer(harness)
        half(harness, properties={props.CHECK_IMMUNITY_SECONDS: seconds})
        harness.advance(ROUND_MS)
        waits = seconds == "40"
        assert len(checks(connection)) == (not waits)
        message = halves(harness)[-1].message
        assert message.properties.get(props.TRANSACTION_CHECK_TIMES) == (None if waits else "1")
        assert message.properties[props.TRAN_PREPARED_QUEUE_OFFSET] == "0"
        harness.advance(ROUND_MS)
        assert len(checks(connection)) == 1

    def test_a_half_message_born_in_the_future_is_checked(self, harness: BrokerHarness) -> None:
        connection = producer(harness)
        half(harness, g=harness.now_ms + 3_600_000)
        harness.advance(ROUND_MS)
        assert len(checks(connection)) == 1

    def test_checks_alternate_between_the_producers_of_a_group(self, harness: BrokerHarness) -> None:
        connections = [producer(harness) for _ in range(3)]
        others = producer(harness, "others")
        connections[1].is_full = True
        for i in range(6):
            half(harness, b"%d" % i)
        harness.advance(ROUND_MS)
        assert [len(checks(one)) for one in connections] == [2, 0, 4]
        assert checks(others) == []

    def test_a_check_without_a_producer_counts(self, harness: BrokerHarness) -> None:
        """Apache's broker counts such a check, too."""
        half(harness)
        harness.advance(ROUND_MS)
        assert halves(harness)[-1].message.properties[props.TRANSACTION_CHECK_TIMES] == "1"

    def test_more_half_messages_than_one_tick_reads_are_checked(self, harness: BrokerHarness) -> None:
        connection = producer(harness)
        for i in range(450):
            harness.submit(half_command(harness, b"%d" % i))
        harness.advance(ROUND_MS)
        assert len(checks(connection)) == 450
        assert harness.broker.parts.transactions.pending.first == 450
