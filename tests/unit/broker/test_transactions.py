"""Transactional messages: half messages, their ends, checks and expiry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from wheelmq.formats import names
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import Record
from wheelmq.formats.disk.timer import TIMER_TOPIC
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.testing import invariants
from wheelmq.testing.connection import FakeConnection
from wheelmq.testing.harness import BrokerHarness, NoAnswer

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
GROUP = "producers"
ROUND_MS = 30_000


def half(harness: BrokerHarness, body: bytes = b"body", **options: Any) -> Command:
    """Send a half message to T. Returns the answer."""
    pairs = {props.TRAN_MSG: "true", props.PRODUCER_GROUP: GROUP, props.UNIQ_KEY: body.decode(), "TAGS": "A"}
    pairs.update(options.pop("properties", {}))
    return harness.send("T", body, properties={k: v for k, v in pairs.items() if v}, f=4, h=7, **options)


def end(harness: BrokerHarness, sent: Command, outcome: int, *, oneway: bool = False, **fields: object) -> Command:
    """End the transaction of a half message, which the answer to its send or a check names."""
    ext = sent.ext
    header: dict[str, object] = {
        "producerGroup": GROUP,
        "tranStateTableOffset": ext.get("queueOffset", ext.get("tranStateTableOffset")),
        "commitLogOffset": ext.get("commitLogOffset") or int(ext["msgId"][-16:], 16),
        "commitOrRollback": outcome,
        "fromTransactionCheck": "commitLogOffset" in ext,
        "msgId": ext["transactionId"],
    }
    header.update(fields)
    return harness.ask_code(RequestCode.END_TRANSACTION, **header)


def producer(harness: BrokerHarness, group: str = GROUP) -> FakeConnection:
    """Connect a client, and add it to a producer group by a heartbeat."""
    connection = harness.connect()
    body = msgspec.json.encode({"clientID": f"c{id(connection)}", "producerDataSet": [{"groupName": group}]})
    assert harness.ask_code(RequestCode.HEART_BEAT, body, connection).code == 0
    return connection


def send_heartbeat(harness: BrokerHarness, connection: FakeConnection, group: str = GROUP) -> None:
    body = msgspec.json.encode({"clientID": f"c{id(connection)}", "producerDataSet": [{"groupName": group}]})
    harness.ask_code(RequestCode.HEART_BEAT, body, connection)


def checks(connection: FakeConnection) -> list[Command]:
    """Return the checks that the connection got since the last call."""
    found = [one for one in connection.requests if one.code == RequestCode.CHECK_TRANSACTION_STATE]
    connection.requests.clear()
    return found


def halves(harness: BrokerHarness) -> list[Record]:
    return harness.read_queue(names.HALF_TOPIC)


def ops(harness: BrokerHarness) -> list[bytes]:
    """Return the bodies of op messages that are not empty."""
    return [body for body in harness.bodies(names.OP_HALF_TOPIC) if body]


def progress(harness: BrokerHarness) -> tuple[int | None, int | None]:
    offsets = harness.broker.parts.consumer_offsets
    half_at = offsets.get(names.TRANSACTION_GROUP, names.HALF_TOPIC, 0)
    return half_at, offsets.get(names.TRANSACTION_GROUP, names.OP_HALF_TOPIC, 0)


class TestSend:
    def test_a_half_message_is_not_visible(self, harness: BrokerHarness) -> None:
        answer = half(harness, queue_id=2)
        (record,) = halves(harness)
        message = record.message
        assert (answer.code, answer.ext["queueId"], answer.ext["queueOffset"]) == (0, "2", "0")
        assert answer.ext["transactionId"] == "body"
        assert int(answer.ext["msgId"][-16:], 16) == record.position > 0
        assert (message.queue_id, message.sys_flag, message.flag) == (0, 0, 7)
        found = message.properties
        assert (found[props.REAL_TOPIC], found[props.REAL_QID], found[props.TRANSACTION_ID]) == ("T", "2", "body")
        assert harness.bodies("T", 2) == []

    def test_the_property_alone_makes_a_half_message(self, harness: BrokerHarness) -> None:
        """As in Apache's broker, the bits of the system flag do not, and they hide a message forever."""
        harness.send("T", b"flag", f=4)
        half(harness, b"both")
        harness.send("T", b"mark", properties={props.TRAN_MSG: "TRUE", props.PRODUCER_GROUP: GROUP})
        assert [record.message.body for record in halves(harness)] == [b"both", b"mark"]
        assert harness.bodies("T") == []

    def test_a_retry_by_a_send_is_no_half_message(self, harness: BrokerHarness) -> None:
        """If a consumer can only send a message back by a send, it sends all its properties."""
        harness.broker.parts.groups.get("g")
        properties = {props.TRAN_MSG: "true", props.DELAY: "1"}
        assert harness.send("%RETRY%g", b"again", properties=properties, j=1).code == 0
        assert halves(harness) == []
        harness.advance(1000)
        assert harness.bodies("%RETRY%g") == [b"again"]

    def test_the_setting_to_reject_transactions_rejects_half_messages(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path, reject_transaction_message=True) as harness:
            answer = half(harness)
            assert answer.code == ResponseCode.NO_PERMISSION
            assert answer.remark == "the broker[127.0.0.1] sending transaction message is forbidden"

    @pytest.mark.parametrize(
        ("properties", "code"),
        [
            ({props.TIMER_DELAY_MS: "soon"}, 13),
            ({props.TIMER_DELAY_SEC: "259201"}, 13),
            ({props.DELAY: "soon"}, 1),
            ({props.DELAY_IN_SECONDS: "5"}, 13),
            ({"long": "x" * 32_600}, 13),
        ],
    )
    def test_an_undeliverable_half_message_is_rejected_at_once(
        self, harness: BrokerHarness, properties: dict[str, str], code: int
    ) -> None:
        assert half(harness, properties=properties).code == code
        assert halves(harness) == []

    def test_sends_to_the_topics_of_transactions_are_rejected(self, harness: BrokerHarness) -> None:
        for topic in (names.HALF_TOPIC, names.OP_HALF_TOPIC, names.CHECK_MAX_TIME_TOPIC):
            assert harness.send(topic).code == ResponseCode.NO_PERMISSION


class TestEnd:
    def test_a_commit_stores_the_message_in_its_real_topic(self, harness: BrokerHarness) -> None:
        sent = half(harness, queue_id=3)
        answer = end(harness, sent, COMMIT)
        assert (answer.code, answer.remark) == (0, None)
        (record,) = harness.read_queue("T", 3)
        (kept,) = halves(harness)
        assert (record.message.body, record.message.flag, record.message.sys_flag) == (b"body", 7, COMMIT)
        assert record.message.prepared_position == kept.position
        assert (record.message.born_ms, record.message.born_host) == (kept.message.born_ms, kept.message.born_host)
        assert record.message.properties == kept.message.properties
        invariants.check(harness.broker)

    def test_a_rollback_stores_only_an_op_message(self, harness: BrokerHarness) -> None:
        assert end(harness, half(harness), ROLLBACK).code == 0
        harness.advance(3000)
        assert harness.bodies("T") == []
        assert ops(harness) == [b"0,"]

    @pytest.mark.parametrize("from_check", [True, False])
    def test_an_unknown_outcome_is_not_answered(self, harness: BrokerHarness, from_check: bool) -> None:
        sent = half(harness)
        with pytest.raises(NoAnswer):
            end(harness, sent, UNKNOWN, fromTransactionCheck=from_check)
        assert end(harness, sent, COMMIT).code == 0

    @pytest.mark.parametrize(
        ("fields", "remark"),
        [
            ({"commitOrRollback": 4}, "commitOrRollback field wrong"),
            ({"producerGroup": "others"}, "The producer group wrong"),
            ({"producerGroup": None}, "The producer group wrong"),
            ({"tranStateTableOffset": 9}, "The transaction state table offset wrong"),
            ({"commitLogOffset": 1}, "Find prepared transaction message failed"),
            ({"commitLogOffset": -1}, "Find prepared transaction message failed"),
            ({"commitLogOffset": 1 << 40}, "Find prepared transaction message failed"),
        ],
    )
    def test_fields_that_do_not_match_the_half_message_are_rejected(
        self, harness: BrokerHarness, fields: dict[str, object], remark: str
    ) -> None:
        sent = half(harness)
        answer = end(harness, sent, COMMIT, **fields)
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, remark)
        assert harness.bodies("T") == []
        assert end(harness, sent, COMMIT).code == 0

    @pytest.mark.parametrize("key", ["K2", "7F0000010001C387DB2A0000AB120002"])
    def test_an_end_of_another_transaction_at_its_place_is_rejected(self, harness: BrokerHarness, key: str) -> None:
        """The new master has another half message where the former one alone had that of the request."""
        sent = half(harness)
        answer = end(harness, sent, ROLLBACK, msgId=key, transactionId=key)
        assert answer.code == ResponseCode.ILLEGAL_OPERATION and "another one" in str(answer.remark)
        assert end(harness, sent, COMMIT).code == 0
        assert harness.bodies("T") == [b"body"]

    @pytest.mark.parametrize("names", ["key", "offset", "none"])
    def test_an_end_may_name_its_transaction_in_several_ways(self, harness: BrokerHarness, names: str) -> None:
        sent = half(harness)
        ids = {"key": sent.ext["transactionId"], "offset": sent.ext["msgId"], "none": None}
        assert end(harness, sent, COMMIT, msgId=ids[names], transactionId=None).code == 0
        assert harness.bodies("T") == [b"body"]

    def test_an_end_for_a_plain_message_is_rejected(self, harness: BrokerHarness) -> None:
        plain = harness.send("T", b"plain", properties={props.PRODUCER_GROUP: GROUP})
        answer = end(harness, plain, COMMIT)
        assert (answer.code, answer.remark) == (1, "Find prepared transaction message failed")

    def test_an_end_for_a_half_message_without_a_group_is_rejected(self, harness: BrokerHarness) -> None:
        sent = half(harness, properties={props.PRODUCER_GROUP: ""})
        assert end(harness, sent, COMMIT).remark == "The producer group wrong"

    @pytest.mark.parametrize("missing", ["commitOrRollback", "tranStateTableOffset", "commitLogOffset"])
    def test_an_end_without_a_required_field_is_rejected(self, harness: BrokerHarness, missing: str) -> None:
        assert end(harness, half(harness), COMMIT, **{missing: None}).code == ResponseCode.SYSTEM_ERROR

    @pytest.mark.parametrize(("first", "second"), [(COMMIT, ROLLBACK), (ROLLBACK, COMMIT)])
    def test_a_transaction_ends_only_once(self, harness: BrokerHarness, first: int, second: int) -> None:
        """A repeated outcome is accepted without an effect. The other outcome is rejected."""
        sent = half(harness)
        codes = [end(harness, sent, outcome).code for outcome in (first, first, second)]
        assert codes == [0, 0, ResponseCode.ILLEGAL_OPERATION]
        assert len(harness.bodies("T")) == (first == COMMIT)

    def test_an_end_after_the_immunity_time_needs_a_check(self, harness: BrokerHarness) -> None:
        connection = producer(harness)
        sent = half(harness, properties={props.CHECK_IMMUNITY_SECONDS: "10"})
        harness.advance(10_001)
        assert end(harness, sent, COMMIT).code == ResponseCode.ILLEGAL_OPERATION
        harness.advance(ROUND_MS - 10_001)
        (asked,) = checks(connection)
        assert end(harness, asked, COMMIT).code == 0
        assert harness.bodies("T") == [b"body"]

    def test_a_slave_rejects_ends_and_sends_no_checks(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path) as harness:
            sent = half(harness)
            harness.restart(broker_id=1)
            assert end(harness, sent, COMMIT).code == ResponseCode.SLAVE_NOT_AVAILABLE
            connection = producer(harness)
            harness.advance(ROUND_MS)
            assert checks(connection) == []

    def test_a_full_disk_rejects_ends(self, harness: BrokerHarness) -> None:
        sent = half(harness)
        harness.broker.parts.health.reject_sends("the disk is full")
        answer = end(harness, sent, COMMIT)
        assert (answer.code, answer.remark) == (ResponseCode.SERVICE_NOT_AVAILABLE, "Service not available now.")
        assert harness.broker.parts.stats.failed_puts == 1
        harness.advance(200)
        assert end(harness, sent, COMMIT).code == 0

    def test_an_old_round_rejects_ends(self, harness: BrokerHarness) -> None:
        sent = half(harness)
        harness.broker.parts.ticks.begin()
        harness.clock.advance(1001)
        answer = end(harness, sent, COMMIT)
        expected = "OS page cache busy, please try another machine"
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, expected)
        assert harness.broker.parts.stats.failed_puts == 1

    def test_a_commit_waits_for_a_synchronous_flush(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path, flush_mode="SYNC_FLUSH") as harness:
            assert end(harness, half(harness), COMMIT).code == 0
            assert harness.broker.parts.store.log.synced >= harness.read_queue("T")[0].position


class TestDelayed:
    """The delay begins with the commit. Apache parks the half message itself and never delivers it."""

    @pytest.mark.parametrize(
        "asked", [{props.DELAY: "1"}, {props.TIMER_DELAY_SEC: "1"}, {props.TIMER_DELAY_MS: "1000"}]
    )
    def test_a_delay_begins_with_the_commit(self, harness: BrokerHarness, asked: dict[str, str]) -> None:
        sent = half(harness, properties=asked)
        assert "recallHandle" not in sent.ext
        harness.advance(3000)
        assert end(harness, sent, COMMIT).code == 0
        harness.advance(999)
        assert harness.bodies("T") == []
        harness.advance(1)
        assert harness.bodies("T") == [b"body"]
        invariants.check(harness.broker)

    def test_a_commit_keeps_the_delivery_time_or_releases_at_once(self, harness: BrokerHarness) -> None:
        asked = {props.TIMER_DELIVER_MS: str(harness.now_ms + 2000)}
        first, second = half(harness, b"1", properties=asked), half(harness, b"2", properties=asked)
        end(harness, first, COMMIT)
        harness.advance(1999)
        assert harness.bodies("T") == []
        harness.advance(1001)
        end(harness, second, COMMIT)
        harness.settle()
        assert harness.bodies("T") == [b"1", b"2"]

    def test_a_cancel_takes_effect_with_its_commit(self, harness: BrokerHarness) -> None:
        """The record of the cancel proves the commit, as for any other message."""
        harness.send("T", b"parked", delay_ms=9000, properties={props.UNIQ_KEY: "U"})
        cancel = {props.TIMER_DELAY_MS: "9000", props.TIMER_DEL_UNIQKEY: "T+U", props.KEYS: "k"}
        sent = half(harness, b"cancel", properties=cancel)
        position = halves(harness)[0].position
        assert end(harness, sent, COMMIT).code == 0
        assert harness.read_queue(TIMER_TOPIC)[-1].message.prepared_position == position
        harness.restart(clean=False)
        harness.advance(10_000)
        assert harness.bodies("T") == [] and len(halves(harness)) == 1

    def test_the_longest_accepted_half_message_can_be_committed(self, harness: BrokerHarness) -> None:
        """The longest accepted properties leave room for all properties added before the message is parked."""

        def send(size: int) -> Command:
            return half(harness, properties={"pad": "x" * size, props.TIMER_DELAY_SEC: "40"})

        fits, too_many = 1, props.PROPERTIES_BYTES_MAX
        while too_many - fits > 1:
            middle = (fits + too_many) // 2
            fits, too_many = (middle, too_many) if send(middle).code == 0 else (fits, middle)
        assert fits > props.PROPERTIES_BYTES_MAX - 1000
        connection = producer(harness)
        sent = send(fits)
        harness.advance(ROUND_MS)
        assert checks(connection)
        assert end(harness, sent, COMMIT).code == 0

    def test_a_delayed_message_that_is_rolled_back_is_not_parked(self, harness: BrokerHarness) -> None:
        end(harness, half(harness, properties={props.TIMER_DELAY_MS: "1000"}), ROLLBACK)
        harness.advance(5000)
        assert harness.bodies("T") == []
        assert harness.broker.parts.timer.queue.end == 0


class TestOps:
    def test_one_op_message_names_many_ends(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path, snapshot_ms=100_000) as harness:
            self._end_many(harness)

    def _end_many(self, harness: BrokerHarness) -> None:
        sent = [half(harness, b"%d" % i) for i in range(3)]
        for one, outcome in zip(sent, (COMMIT, ROLLBACK, COMMIT), strict=True):
            end(harness, one, outcome)
        harness.advance(2900)
        assert ops(harness) == []
        harness.advance(100)
        assert ops(harness) == [b"0,1,2,"]
        record = harness.read_queue(names.OP_HALF_TOPIC)[-1].message
        assert record.properties == {props.WAIT: "true", props.TAGS: "d"}
        assert (record.born_ms, record.born_host, record.sys_flag) == (harness.now_ms, harness.broker.parts.host, 0)

    def test_an_op_message_is_written_at_its_size_limit(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path, transaction_op_msg_max_size=5, snapshot_ms=100_000) as harness:
            for i in range(4):
                end(harness, half(harness, b"%d" % i), ROLLBACK)
            assert ops(harness) == [b"0,1,2,"]
            harness.advance(3000)
            assert ops(harness) == [b"0,1,2,", b"3,"]

    def test_ops_are_written_before_a_snapshot_and_at_a_clean_stop(self, harness: BrokerHarness) -> None:
        end(harness, half(harness), ROLLBACK)
        harness.advance(2000)
        assert ops(harness) == [b"0,"]
        end(harness, half(harness, b"2"), ROLLBACK)
        harness.restart()
        assert ops(harness) == [b"0,", b"1,"]

    def test_a_commit_before_a_snapshot_survives_a_kill(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path, transaction_op_batch_interval=60_000, offsets_persist_ms=60_000) as harness:
            sent = half(harness)
            end(harness, sent, COMMIT)
            harness.advance(2500)
            assert (tmp_path / "config" / "snapshot").exists()
            harness.restart(clean=False)
            assert end(harness, sent, COMMIT).code == ResponseCode.ILLEGAL_OPERATION
            assert harness.bodies("T") == [b"body"]

    def test_no_snapshot_is_taken_while_ends_have_no_op(self, tmp_path: Path) -> None:
        """The releases of a tick make a snapshot due after the same tick has checked for ops to write."""
        rarely = {"snapshot_ms": 600_000, "transaction_op_batch_interval": 600_000}
        with BrokerHarness(tmp_path, snapshot_log_bytes=45_000, **rarely) as harness:
            harness.advance(5000)
            for _ in range(6):
                harness.send("U", bytes(5000), delay_ms=3000)
            harness.advance(2900)
            sent = half(harness)
            end(harness, sent, COMMIT)
            assert ops(harness) == []
            harness.clock.advance(100)
            harness.broker.tick()
            harness.advance(1500)
            harness.restart(clean=False)
            assert end(harness, sent, COMMIT).code == ResponseCode.ILLEGAL_OPERATION
            assert len(harness.bodies("U")) == 6 and harness.bodies("T") == [b"body"]

    def test_the_offsets_move_past_ended_transactions(self, harness: BrokerHarness) -> None:
        first, second = half(harness, b"1"), half(harness, b"2")
        end(harness, second, ROLLBACK)
        harness.advance(4000)
        assert progress(harness) == (0, 1)
        end(harness, first, ROLLBACK)
        harness.advance(6000)
        assert progress(harness) == (2, len(harness.bodies(names.OP_HALF_TOPIC)))


def half_command(harness: BrokerHarness, body: bytes) -> Command:
    properties = {props.TRAN_MSG: "true", props.PRODUCER_GROUP: GROUP, props.UNIQ_KEY: body.decode()}
    return harness.send_command("T", body, properties=properties)


def expired_id(record: Record) -> str:
    return (
        record.store_host.address + record.store_host.port.to_bytes(4, "big") + record.position.to_bytes(8, "big")
    ).hex()


@pytest.mark.parametrize("name", ["transaction_check_interval", "transaction_metric_flush_interval"])
def test_an_interval_of_zero_is_rejected(tmp_path: Path, name: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=r"Expected `int` >= 1"):
        BrokerHarness(tmp_path, **{name: 0})
