"""Transactions over a restart, and half messages that an Apache broker stored."""

from __future__ import annotations

from pathlib import Path
from random import Random

import msgspec
import pytest

from tests.unit.broker.test_transactions import (
    COMMIT,
    GROUP,
    ROLLBACK,
    ROUND_MS,
    UNKNOWN,
    checks,
    end,
    half,
    halves,
    ops,
    producer,
    progress,
)
from wheelmq.formats import names
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import Message
from wheelmq.formats.wire.codes import ResponseCode
from wheelmq.system.workers import InlineWorker
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.replication import SLAVE, copy_log
from wheelmq.testing.workers import HeldWorker


class TestHalfMessagesOfApache:
    """Half messages that only Apache's broker accepts. They may be pending in a store that it wrote."""

    def park(self, harness: BrokerHarness, **properties: str) -> None:
        """Append a half message unchanged."""
        harness.broker.parts.topics.create_for_group("T", 1)
        own = {props.REAL_TOPIC: "T", props.REAL_QID: "0", props.UNIQ_KEY: "U", props.PRODUCER_GROUP: GROUP}
        message = Message(
            names.HALF_TOPIC, 0, b"body", {**own, **properties}, born_ms=harness.broker.parts.clock.now_ms()
        )
        harness.broker.parts.transactions.prepare(message)
        harness.settle()

    def test_a_half_message_without_room_to_be_put_back_expires(
        self, harness: BrokerHarness, caplog: pytest.LogCaptureFixture
    ) -> None:
        connection = producer(harness)
        self.park(harness, long="x" * (props.PROPERTIES_BYTES_MAX - 80))
        half(harness, b"another")
        harness.advance(ROUND_MS + 1000)
        assert harness.bodies(names.CHECK_MAX_TIME_TOPIC) == [b"body"]
        assert "the broker cannot store it again" in caplog.text
        assert len(checks(connection)) == 1

    def test_a_half_message_without_room_for_its_expiry_expires(self, harness: BrokerHarness) -> None:
        """Its last property has no end mark. The broker adds the mark when it writes the message again."""
        producer(harness)
        names_bytes = 75
        self.park(harness, long="x" * (props.PROPERTIES_BYTES_MAX - names_bytes), z="y" * 8)
        (record,) = halves(harness)
        file = harness.broker.parts.store.log.files.file_at(record.position)
        end = record.position + record.size
        assert bytes(file.view[end - 1 : end]) == b"\2"
        file.view[end - 1] = ord("y")
        harness.advance(ROUND_MS + 1000)
        assert harness.bodies(names.CHECK_MAX_TIME_TOPIC) == [b"body"]

    def test_a_half_message_that_fills_a_log_file_expires(self, harness: BrokerHarness) -> None:
        """It expires, and the checks of other messages continue."""
        connection = producer(harness)
        harness.broker.parts.topics.create_for_group("T", 1)
        own = {props.REAL_TOPIC: "T", props.REAL_QID: "0", props.UNIQ_KEY: "U", props.PRODUCER_GROUP: GROUP, "own": "x"}
        message = Message(names.HALF_TOPIC, 0, b"", own, born_ms=harness.broker.parts.clock.now_ms())
        store = harness.broker.parts.store
        message.body = bytes(store.properties_room(message) - len(props.encode(own)))
        harness.broker.parts.transactions.prepare(message)
        half(harness, b"another")
        harness.advance(ROUND_MS + 1000)
        (expired,) = harness.read_queue(names.CHECK_MAX_TIME_TOPIC)
        assert expired.message.body == message.body and expired.size <= store.record_bytes_max
        assert len(checks(connection)) == 1

    @pytest.mark.parametrize("outcome", [COMMIT, UNKNOWN])
    def test_a_half_message_with_a_property_of_the_broker_is_checked(
        self, harness: BrokerHarness, outcome: int
    ) -> None:
        connection = producer(harness)
        log = harness.broker.parts.store.log
        fake = props.WMQ_ORIGIN[:-1] + "M"  # as long as the real name, which the store appends itself
        self.park(harness, **{fake: "0123456789ABCDEF"})
        position = halves(harness)[0].position
        file = log.files.file_at(position)
        at = bytes(file.view).index(fake.encode())
        file.view[at : at + len(fake)] = props.WMQ_ORIGIN.encode()
        assert props.WMQ_ORIGIN in halves(harness)[0].message.properties
        harness.advance(ROUND_MS + 1000)
        [asked] = checks(connection)
        if outcome == COMMIT:
            assert end(harness, asked, COMMIT).code == 0
            assert harness.bodies("T") == [b"body"]
        else:
            harness.advance(20 * ROUND_MS)
            assert harness.bodies(names.CHECK_MAX_TIME_TOPIC) == [b"body"]


class TestRestart:
    @pytest.mark.parametrize("clean", [True, False])
    def test_pending_transactions_survive_a_restart(self, harness: BrokerHarness, clean: bool) -> None:
        sent = [half(harness, b"%d" % i) for i in range(3)]
        end(harness, sent[1], COMMIT)
        harness.restart(clean=clean)
        assert end(harness, sent[1], COMMIT).code == ResponseCode.ILLEGAL_OPERATION
        assert end(harness, sent[0], ROLLBACK).code == 0
        connection = producer(harness)
        harness.advance(ROUND_MS)
        (asked,) = checks(connection)
        assert asked.ext["msgId"] == "2"
        end(harness, asked, COMMIT)
        harness.restart(clean=clean)
        assert harness.bodies("T") == [b"1", b"2"]
        connection = producer(harness)
        harness.advance(2 * ROUND_MS)
        assert checks(connection) == []
        assert progress(harness)[0] == len(halves(harness))

    @pytest.mark.parametrize("clean", [False, True])
    def test_a_master_that_hands_over_forgets_no_end(self, tmp_path: Path, clean: bool) -> None:
        """Its successor may not take over. Then the commit of an end that it forgot would be stored twice."""
        with BrokerHarness(tmp_path, snapshot_ms=100) as harness:
            end(harness, half(harness), COMMIT)
            harness.broker.parts.replication.hand_over("10.0.0.9:10911")
            harness.advance(5000)
            harness.restart(clean=clean)
            assert harness.broker.parts.role.is_master
            assert sum(harness.broker.parts.transactions.counts.waiting().values()) == 0
            assert len(harness.bodies("T")) == 1

    def test_a_slave_writes_no_op_message_at_a_stop(self, tmp_path: Path) -> None:
        """Its log would then differ from that of its master."""
        with BrokerHarness(tmp_path / "a") as master, BrokerHarness(tmp_path / "b", **SLAVE) as slave:
            end(master, half(master), COMMIT)
            copy_log(master, slave, Random(1))
            slave.restart(clean=False)
            slave.restart(clean=True)
            assert slave.broker.parts.store.log.end == master.broker.parts.store.log.end
            slave.broker.parts.replication.promote("the test")
            slave.restart(clean=True)
            assert ops(slave) == [b"0,"]

    def test_a_sender_cannot_forge_the_first_position(self, harness: BrokerHarness) -> None:
        """Otherwise a start would treat another transaction as an older copy of this one, and drop it."""
        half(harness, b"another")
        forged = {props.TRAN_PREPARED_QUEUE_OFFSET: "0", props.TRANSACTION_CHECK_TIMES: "99"}
        half(harness, b"forged", properties=forged)
        harness.restart(clean=False)
        connection = producer(harness)
        harness.advance(ROUND_MS)
        assert [asked.ext["msgId"] for asked in checks(connection)] == ["another", "forged"]

    def test_a_rollback_without_an_op_message_is_checked_again(self, harness: BrokerHarness) -> None:
        end(harness, half(harness), ROLLBACK)
        harness.restart(clean=False)
        connection = producer(harness)
        harness.advance(ROUND_MS)
        assert len(checks(connection)) == 1

    def test_a_half_message_put_back_before_a_kill_is_one_transaction(self, harness: BrokerHarness) -> None:
        """The queue has two copies of the half message of one transaction."""
        sent = half(harness)
        connection = producer(harness)
        harness.advance(ROUND_MS)
        assert len(checks(connection)) == 1
        harness.crash()
        (harness._folder / "config" / "consumerOffset.json").unlink(missing_ok=True)
        (harness._folder / "config" / "consumerOffset.json.bak").unlink(missing_ok=True)
        harness.start()
        connection = producer(harness)
        harness.advance(ROUND_MS)
        (asked,) = checks(connection)
        assert end(harness, sent, COMMIT).code == 0
        assert end(harness, asked, COMMIT).code == 0
        harness.restart(clean=False)
        assert end(harness, asked, COMMIT).code == ResponseCode.ILLEGAL_OPERATION
        assert harness.bodies("T") == [b"body"]

    @pytest.mark.parametrize("mode", ["ASYNC_FLUSH", "SYNC_FLUSH"])
    def test_a_power_cut_loses_at_most_ends_of_transactions(self, tmp_path: Path, mode: str) -> None:
        with BrokerHarness(tmp_path, flush_mode=mode) as harness:
            sent = [half(harness, b"%d" % i) for i in range(20)]
            harness.advance(6000)
            for one in sent[:10]:
                end(harness, one, COMMIT)
            harness.cut_power(0.0)
            harness.start()
            connection = producer(harness)
            harness.advance(ROUND_MS)
            for asked in checks(connection):
                end(harness, asked, COMMIT)
            assert sorted(harness.bodies("T"), key=int) == [b"%d" % i for i in range(20)]

    def test_offsets_do_not_move_past_the_flushed_log(self, tmp_path: Path) -> None:
        """The offsets are saved while the flush of a commit hangs. A power cut then loses the commit."""
        with BrokerHarness(tmp_path, worker=HeldWorker(), background=InlineWorker()) as harness:
            sent = half(harness)
            harness.advance(1000)
            harness.run_jobs()
            assert harness.broker.parts.store.log.synced == harness.broker.parts.store.log.end
            harness.advance(1000)
            assert end(harness, sent, COMMIT).code == 0
            harness.advance(10_000)
            assert progress(harness)[0] == 0
            harness.cut_power(0.0)
            harness.start()
            assert harness.bodies("T") == []
            assert end(harness, sent, COMMIT).code == 0
            assert harness.bodies("T") == [b"body"]

    def test_a_start_counts_transactions_from_the_queue(self, harness: BrokerHarness) -> None:
        sent = [half(harness, b"%d" % i) for i in range(3)]
        end(harness, sent[0], COMMIT)
        end(harness, sent[1], ROLLBACK)
        counts = harness.broker.parts.transactions.counts
        assert (counts.waiting(), counts.committed["T"], counts.rolled_back["T"]) == ({"T": 1}, 1, 1)
        harness.restart(clean=False)
        counts = harness.broker.parts.transactions.counts
        assert counts.waiting() == {"T": 2}  # nothing on disk says that one was rolled back
        harness.advance(3000)
        table = msgspec.json.decode((harness._folder / "config" / "transactionMetrics").read_bytes())
        assert table["transactionCount"]["T"]["count"] == 2
