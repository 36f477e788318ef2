"""Consumers see a record once replicas have it, so that no failover takes back what they saw."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from wheelmq.broker.replication.replicas import PATIENCE_MS
from wheelmq.formats.disk import properties as props
from wheelmq.formats.units import LogPosition, QueueOffset
from wheelmq.formats.wire import bodies, headers, queue_tables
from wheelmq.formats.wire.administration import TopicStats
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.testing import invariants
from wheelmq.testing.harness import BrokerHarness, records_in
from wheelmq.testing.replica import FakeReplica

SYNC: dict[str, Any] = {"broker_role": "SYNC_MASTER"}


def seen(harness: BrokerHarness, topic: str = "T") -> int:
    """Return the number of messages of queue 0 that a consumer can read."""
    queue = harness.broker.parts.store.queues.find(topic, 0)
    return 0 if queue is None else queue.end - queue.start


def log_end(harness: BrokerHarness) -> int:
    return harness.broker.parts.store.log.end


def send_later(harness: BrokerHarness, body: bytes = b"body", **options: Any) -> None:
    harness.submit(harness.send_command("T", body, **options))
    harness.end_round()


class TestSyncMaster:
    def test_a_message_is_seen_once_enough_replicas_have_it(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path, **SYNC) as harness:
            replica = FakeReplica(harness)
            replica.report(0)
            send_later(harness)
            first_end = log_end(harness)
            send_later(harness)
            assert seen(harness) == 0
            replica.report(first_end)
            assert seen(harness) == 1
            replica.report(log_end(harness))
            assert seen(harness) == 2

    def test_without_replicas_no_message_is_seen_for_any_time(self, tmp_path: Path) -> None:
        """Else a master that was cut off would deliver what its successor delivers too."""
        with BrokerHarness(tmp_path, **SYNC) as harness:
            send_later(harness)
            harness.advance(60_000)
            assert seen(harness) == 0
            FakeReplica(harness).report(log_end(harness))
            assert seen(harness) == 1

    def test_a_clean_stop_without_replicas_counts_the_pending_messages(self, tmp_path: Path) -> None:
        """Else the next start takes a snapshot that lacks them, and counts less than none after their release."""
        with BrokerHarness(tmp_path, **SYNC) as harness:
            properties = {props.UNIQ_KEY: "cancelled"}
            send_later(harness, b"timer", delay_ms=500)
            send_later(harness, b"cancelled", delay_ms=90_000, properties=properties)
            send_later(harness, b"cancel", delay_ms=5000, properties={props.TIMER_DEL_UNIQKEY: "T+cancelled"})
            harness.restart()
            invariants.check(harness.broker)
            harness.advance(1000)
            FakeReplica(harness).report(log_end(harness))
            harness.settle()
            invariants.check(harness.broker)

    def test_a_held_pull_is_woken_by_the_acknowledgement(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path, **SYNC) as harness:
            replica = FakeReplica(harness)
            replica.report(0)
            send_later(harness)
            replica.report(log_end(harness))
            held = harness.submit(harness.pull_command("T", 0, 1, hold_ms=10_000))
            harness.end_round()
            send_later(harness, b"second")
            harness.advance(50)
            assert held.answer is None
            replica.report(log_end(harness))
            assert held.answer is not None and held.answer.code == 0

    def test_a_parked_timer_is_armed_and_its_release_seen_only_with_replicas(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path, **SYNC) as harness:
            replica = FakeReplica(harness)
            replica.report(0)
            send_later(harness, b"timer", delay_ms=500)
            harness.advance(2000)
            assert harness.broker.parts.releaser.counts["released"] == 0, "no replica has the parked message"
            replica.report(log_end(harness))
            harness.settle()
            assert harness.broker.parts.releaser.counts["released"] == 1 and seen(harness) == 0
            replica.report(log_end(harness))
            assert seen(harness) == 1

    def test_a_batch_is_seen_as_a_whole_or_in_part_but_in_order(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path, **SYNC) as harness:
            replica = FakeReplica(harness)
            replica.report(0)
            ends = []
            for i in range(20):
                send_later(harness, b"%d" % i)
                ends.append(log_end(harness))
            for i, end in enumerate(ends):
                replica.report(end - 1)
                assert seen(harness) == i
                replica.report(end)
                assert seen(harness) == i + 1

    @pytest.mark.parametrize("seed", range(6))
    def test_a_restart_at_any_moment_agrees_with_the_log(self, tmp_path: Path, seed: int) -> None:
        """Snapshots are taken while records wait for replicas."""
        randomness = Random(seed)
        options = {"snapshot_ms": 1000, "checkpoint_ms": 500, "snapshot_log_bytes": 1, **SYNC}
        with BrokerHarness(tmp_path, **options) as harness:
            sent = 0
            for _ in range(4):
                replica = FakeReplica(harness)
                replica.report(log_end(harness))
                for _ in range(40):
                    delay_ms = randomness.choice([None, 200, 2500, 9000])
                    send_later(harness, b"%d" % sent, delay_ms=delay_ms)
                    sent += 1
                    harness.advance(randomness.choice([1, 40, 400]))
                    if randomness.random() < 0.6:
                        start = replica.link.source.progress.acked if replica.link else 0
                        replica.report(randomness.randint(start or 0, log_end(harness)))
                assert harness.broker.parts.store.disk.read(harness.broker.parts.paths.snapshot) is not None
                harness.restart(clean=randomness.random() < 0.5)
                invariants.check(harness.broker)
            replica = FakeReplica(harness)
            for _ in range(60):
                replica.report(log_end(harness))
                harness.advance(200)
            bodies = harness.bodies("T")
            assert sorted(bodies, key=int) == [b"%d" % i for i in range(sent)]


class TestStartOfSyncMaster:
    """A start writes the queue units of all records. Consumers see those that they had seen, or that replicas have."""

    @pytest.fixture(params=["clean", "kill", "two kills"])
    def started(self, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[BrokerHarness]:
        """Return a broker that starts again with two messages. A replica has the first one."""
        with BrokerHarness(tmp_path, **SYNC) as harness:
            replica = FakeReplica(harness)
            replica.report(0)
            send_later(harness, b"first")
            replica.report(log_end(harness))
            send_later(harness, b"second", properties={props.KEYS: "key", props.TAGS: "blue"})
            harness.restart(clean=request.param == "clean")
            if request.param == "two kills":
                harness.restart(clean=False)
            yield harness

    def test_a_record_that_no_replica_had_waits_for_one(self, started: BrokerHarness) -> None:
        started.advance(60_000)
        assert pulled(started) == [b"first"] and seen(started) == 2
        assert started.ask(started.pull_command("T", 0, 2)).code == ResponseCode.PULL_NOT_FOUND
        assert max_offset(started) == 1
        replica = FakeReplica(started)
        replica.report(log_end(started))
        assert pulled(started) == [b"first", b"second"] and max_offset(started) == 2
        send_later(started, b"third")
        assert pulled(started) == [b"first", b"second"]
        replica.report(log_end(started))
        assert pulled(started) == [b"first", b"second", b"third"]
        assert started.disk.read(started.broker.parts.paths.hidden_tail) is None
        started.restart(clean=False)
        assert pulled(started) == [b"first", b"second", b"third"]

    def test_the_statistics_of_the_topic_end_before_the_record(self, started: BrokerHarness) -> None:
        assert statistics_end(started) == 1
        FakeReplica(started).report(log_end(started))
        assert statistics_end(started) == 2

    def test_a_queue_that_hides_all_messages_has_them(self, started: BrokerHarness) -> None:
        started.broker.parts.store.hidden_tail.hide_from(LogPosition(0))
        codes = [started.ask(started.pull_command("T", 0, offset)).code for offset in range(4)]
        assert codes == [ResponseCode.PULL_NOT_FOUND] * 3 + [ResponseCode.PULL_OFFSET_MOVED]

    def test_queries_do_not_find_the_record(self, started: BrokerHarness) -> None:
        queue = started.broker.parts.store.queues.find("T", 0)
        assert queue is not None
        position = int(queue.read(QueueOffset(1), 1)[0]["position"])
        requests = [
            Command(code=RequestCode.VIEW_MESSAGE_BY_ID, ext={"offset": str(position)}),
            Command(
                code=RequestCode.QUERY_MESSAGE,
                ext=headers.texts(topic="T", key="key", maxNum=9, beginTimestamp=0, endTimestamp=1 << 60),
            ),
        ]
        started.advance(1000)
        assert all(started.ask(one).code != ResponseCode.SUCCESS for one in requests)
        FakeReplica(started).report(log_end(started))
        assert [started.ask(one).code for one in requests] == [ResponseCode.SUCCESS] * 2

    @pytest.mark.parametrize("subscription", ["*", "red || blue"])
    def test_a_held_pull_waits_for_the_record(self, started: BrokerHarness, subscription: str) -> None:
        command = started.pull_command("T", 0, 1, hold_ms=9000, subscription=subscription)
        held = started.submit(command)
        started.advance(100)
        assert held.answer is None
        FakeReplica(started).report(log_end(started))
        started.settle()
        assert held.answer is not None and held.answer.code == ResponseCode.SUCCESS

    def test_a_pull_with_a_filter_does_not_skip_the_record(self, started: BrokerHarness) -> None:
        held = started.submit(started.pull_command("T", 0, 1, hold_ms=100, subscription="blue"))
        started.advance(200)
        assert held.answer is not None and held.answer.ext["nextBeginOffset"] == "1"

    def test_without_needed_replicas_all_is_seen(self, started: BrokerHarness) -> None:
        started.broker.parts.settings.replication.in_sync_replicas = 1
        started.advance(10)
        assert pulled(started) == [b"first", b"second"]

    def test_an_asynchronous_master_shows_all(self, started: BrokerHarness) -> None:
        started.restart(broker_role="ASYNC_MASTER")
        assert pulled(started) == [b"first", b"second"]
        assert started.disk.read(started.broker.parts.paths.hidden_tail) is None


def pulled(harness: BrokerHarness) -> list[bytes]:
    answer = harness.ask(harness.pull_command("T"))
    return [record.message.body for record in records_in(bytes(answer.body))]


def max_offset(harness: BrokerHarness) -> int:
    answer = harness.ask(Command(code=RequestCode.GET_MAX_OFFSET, ext=headers.texts(topic="T", queueId=0)))
    return int(answer.ext["offset"])


def statistics_end(harness: BrokerHarness) -> int:
    answer = harness.ask(Command(code=RequestCode.GET_TOPIC_STATS_INFO, ext={"topic": "T"}))
    spans = queue_tables.by_queue(bodies.read(answer.body, TopicStats).offset_table)
    return next(span.max_offset for queue, span in spans.items() if queue.queue_id == 0)


class TestAsynchronousMaster:
    def test_a_message_is_seen_once_a_replica_in_sync_has_it(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path) as harness:
            replica = FakeReplica(harness)
            replica.report(log_end(harness))
            send_later(harness)
            assert seen(harness) == 0
            replica.report(log_end(harness))
            assert seen(harness) == 1

    def test_a_slow_replica_delays_a_message_for_a_moment_at_most(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path) as harness:
            replica = FakeReplica(harness)
            replica.report(log_end(harness))
            send_later(harness)
            harness.advance(PATIENCE_MS - 1)
            assert seen(harness) == 0
            harness.advance(1)
            assert seen(harness) == 1
            send_later(harness)
            assert seen(harness) == 2, "the replica lags, and delays nothing more"
            replica.report(log_end(harness))
            send_later(harness)
            assert seen(harness) == 2, "it has caught up"

    def test_before_the_first_replica_a_message_is_seen_at_once(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path) as harness:
            send_later(harness)
            assert seen(harness) == 1

    def test_a_lost_replica_delays_a_message_for_a_moment_at_most(self, tmp_path: Path) -> None:
        """It may connect again at once. A failover meanwhile would take back what consumers saw."""
        with BrokerHarness(tmp_path) as harness:
            replica = FakeReplica(harness)
            replica.report(log_end(harness))
            replica.lose()
            harness.advance(50)
            send_later(harness)
            harness.advance(PATIENCE_MS - 51)
            assert seen(harness) == 0
            harness.advance(1)
            assert seen(harness) == 1
            harness.advance(60_000)
            send_later(harness)
            assert seen(harness) == 2, "without a replica, nothing waits"

    def test_a_new_replica_that_copies_the_log_delays_nothing(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path) as harness:
            for _ in range(10):
                send_later(harness, b"x" * 200)
            harness.advance(1000)
            FakeReplica(harness).report(0)
            send_later(harness)
            harness.advance(PATIENCE_MS)
            send_later(harness)
            assert seen(harness) == 12


class TestPause:
    """A master that hands over, or that lost an election, shows no record that its successor may lack."""

    def test_a_hand_over_shows_only_replicated_records(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path, **SYNC) as harness:
            replica = FakeReplica(harness)
            replica.report(0)
            send_later(harness)
            harness.broker.parts.replication.hand_over("10.0.0.9:10911")
            harness.advance(5000)
            assert seen(harness) == 0
            replica.report(log_end(harness))
            assert seen(harness) == 1

    def test_the_next_start_hides_the_records_that_no_replica_got(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path, **SYNC) as harness:
            FakeReplica(harness).report(0)
            send_later(harness)
            harness.broker.parts.replication.step_down("10.0.0.9:10911")
            harness.advance(60_000)
            assert seen(harness) == 0
            harness.restart()
            assert pulled(harness) == []
            FakeReplica(harness).report(log_end(harness))
            assert pulled(harness) == [b"body"]

    def test_a_paused_master_releases_nothing(self, tmp_path: Path) -> None:
        """Its successor has the log up to the hand-over, and releases the same timers."""
        with BrokerHarness(tmp_path) as harness:
            parts = harness.broker.parts
            send_later(harness, b"timer", delay_ms=500)
            end = log_end(harness)
            harness.advance(400)
            harness.clock.advance(100)
            parts.releaser.take_due(harness.clock.now_ms())
            assert parts.releaser.has_more()
            parts.replication.hand_over("10.0.0.9:10911")
            harness.advance(5000)
            assert log_end(harness) == end and parts.releaser.counts["released"] == 0
            parts.replication.resume()
            harness.settle()
            assert parts.releaser.counts["released"] == 1 and seen(harness) == 1
