"""A master and its replicas: the bytes of both protocols of Apache RocketMQ, acknowledgements, and put statuses."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.replication import EPOCH_REPORT, HANDSHAKE, REPORT
from wheelmq.testing.harness import Ask, BrokerHarness
from wheelmq.testing.replica import DataFrame, FakeReplica
from wheelmq.testing.workers import HeldWorker

SYNC: dict[str, Any] = {"broker_role": "SYNC_MASTER"}


def log_bytes(harness: BrokerHarness, start: int = 0) -> bytes:
    log = harness.broker.parts.store.log
    pieces = log.files.pieces(start, log.end)
    return b"".join(bytes(file.view[at:stop]) for _, file, at, stop in pieces)


def joined(frames: list[DataFrame]) -> bytes:
    """Return the bytes of frames that follow each other."""
    for before, after in pairwise(frames):
        assert after.position == before.position + len(before.data)
    return b"".join(one.data for one in frames)


def send_later(harness: BrokerHarness, body: bytes = b"body", **properties: str) -> Ask:
    """Send a message, and end the round. The answer may come later."""
    asked = harness.submit(harness.send_command("T", body, properties=properties))
    harness.end_round()
    return asked


def code_of(asked: Ask) -> int | None:
    return None if asked.answer is None else asked.answer.code


@pytest.fixture
def master(tmp_path: Path) -> Any:
    with BrokerHarness(tmp_path, log_file_bytes=4096) as harness:
        harness.send("T", b"first")
        yield harness


class TestClassic:
    """The protocol of DefaultHAService."""

    def test_a_new_replica_gets_the_log_from_its_first_file(self, master: BrokerHarness) -> None:
        """Apache's master sends it the last file only."""
        for i in range(30):
            master.send("T", b"%d" % i * 50)
        replica = FakeReplica(master)
        assert replica.frames() == [], "a master says nothing before the first report"
        replica.report(0)
        frames = replica.frames()
        assert frames[0].position == 0 and joined(frames) == log_bytes(master)
        assert all(one.position // 4096 == (one.position + len(one.data) - 1) // 4096 for one in frames)

    def test_a_replica_continues_inside_a_record(self, master: BrokerHarness) -> None:
        replica = FakeReplica(master)
        replica.report(7)
        assert joined(replica.frames()) == log_bytes(master, 7)

    def test_new_records_follow_at_the_end_of_each_round(self, master: BrokerHarness) -> None:
        replica = FakeReplica(master)
        replica.report(master.broker.parts.store.log.end)
        assert replica.frames() == []
        end = master.broker.parts.store.log.end
        send_later(master, b"second")
        assert joined(replica.frames()) == log_bytes(master, end)

    @pytest.mark.parametrize("position", [-1, 1 << 40])
    def test_an_impossible_position_ends_the_connection(
        self, master: BrokerHarness, position: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Apache's master counts a replica that is ahead of it as in sync, and sends it bytes of other records."""
        replica = FakeReplica(master)
        replica.report(position)
        assert not replica.is_open and not master.broker.parts.replicas.links
        assert str(position) in caplog.text

    def test_a_replica_that_needs_deleted_files_is_rejected_with_the_remedy(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        with BrokerHarness(tmp_path, log_file_bytes=4096) as harness:
            for i in range(30):
                harness.send("T", b"%d" % i * 50)
            remove = harness.broker.parts.store.log.files.drop_before(8192)
            assert remove is not None
            remove()
            replica = FakeReplica(harness)
            replica.report(100)
            assert not replica.is_open and "empty store" in caplog.text

    def test_several_reports_may_come_at_once_or_in_pieces(self, master: BrokerHarness) -> None:
        replica = FakeReplica(master)
        raw = REPORT.pack(0) + REPORT.pack(5) + REPORT.pack(9)
        for i in range(len(raw)):
            replica.send(raw[i : i + 1])
        assert replica.link is not None and replica.link.source.progress.acked == 9

    def test_a_report_at_four_gibibytes_is_no_handshake(self, master: BrokerHarness) -> None:
        """Its first bytes are those of a handshake. A handshake has 16 bytes, and a classic replica waits now."""
        replica = FakeReplica(master)
        replica.send(REPORT.pack(1 << 32))
        assert replica.is_open
        master.advance(1000)
        assert not replica.is_open, "the log of this master is shorter"

    def test_an_idle_connection_gets_heartbeats(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path, ha_heartbeat_ms=3000) as harness:
            harness.send("T")
            replica = FakeReplica(harness)
            replica.report(harness.broker.parts.store.log.end)
            harness.advance(9500)
            assert replica.frames() == [DataFrame(harness.broker.parts.store.log.end, b"")] * 3

    def test_a_silent_replica_is_disconnected(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path, ha_silence_ms_max=7000) as harness:
            replica = FakeReplica(harness)
            replica.report(0)
            harness.advance(6000)
            assert replica.is_open
            harness.advance(2000)
            assert not replica.is_open


class TestEpochs:
    """The protocol of AutoSwitchHAService."""

    def test_the_master_shows_its_epochs_and_names_that_of_each_frame(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path, log_file_bytes=4096) as harness:
            harness.send("T", b"first")
            first_end = harness.broker.parts.store.log.end
            harness.restart(clean=False)
            harness.send("T", b"second")
            known = harness.broker.parts.epochs.all
            assert [one.start for one in known] == [0, first_end], "an unclean stop begins an epoch"
            replica = FakeReplica(harness)
            replica.shake_hands()
            assert (replica.master_epochs, replica.master_end) == (list(known), harness.broker.parts.store.log.end)
            replica.report(0)
            frames = replica.frames()
            assert [one.epoch for one in frames] == list(known), "a frame is within one epoch"
            assert joined(frames) == log_bytes(harness)

    def test_a_clean_stop_begins_no_epoch(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path) as harness:
            harness.send("T")
            before = harness.broker.parts.epochs.all
            harness.restart()
            assert harness.broker.parts.epochs.all == before

    def test_a_replica_may_begin_at_the_last_file(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path, log_file_bytes=4096) as harness:
            for i in range(30):
                harness.send("T", b"%d" % i * 50)
            replica = FakeReplica(harness)
            replica.shake_hands(from_last_file=True)
            replica.report(0)
            end = harness.broker.parts.store.log.end
            assert replica.frames()[0].position == end - end % 4096

    def test_a_handshake_may_come_in_pieces(self, master: BrokerHarness) -> None:
        replica = FakeReplica(master)
        raw = HANDSHAKE.pack(1, 0, 0, 7)
        for i in range(len(raw) - 1):
            replica.send(raw[i : i + 1])
        replica.has_epochs = True
        replica.send(raw[-1:])
        assert replica.link is not None and replica.link.source.progress.replica_id == 7

    def test_a_frame_of_another_state_ends_the_connection(self, master: BrokerHarness) -> None:
        replica = FakeReplica(master)
        replica.shake_hands()
        replica.send(EPOCH_REPORT.pack(3, 0))
        assert not replica.is_open


class TestLimits:
    def test_a_frame_has_at_most_the_batch_size(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path, ha_batch_bytes=100) as harness:
            for _ in range(5):
                harness.send("T", b"x" * 300)
            replica = FakeReplica(harness)
            replica.report(0)
            frames = replica.frames()
            assert max(len(one.data) for one in frames) == 100 and joined(frames) == log_bytes(harness)

    def test_a_full_socket_gets_no_more(self, master: BrokerHarness) -> None:
        replica = FakeReplica(master)
        replica.is_full = True
        replica.report(0)
        assert replica.frames() == []
        replica.is_full = False
        master.tick()
        assert joined(replica.frames()) == log_bytes(master)

    def test_a_socket_that_fills_up_gets_each_byte_once(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path, ha_batch_bytes=100) as harness:
            for _ in range(20):
                harness.send("T", b"x" * 300)
            replica = FakeReplica(harness)
            replica.room_bytes = 250
            replica.report(0)
            frames = replica.frames()
            while sum(len(one.data) for one in frames) < harness.broker.parts.store.log.end:
                harness.tick()
                more = replica.frames()
                assert more
                frames += more
            assert joined(frames) == log_bytes(harness)

    def test_the_rate_can_be_limited(self, tmp_path: Path) -> None:
        options = {"ha_limits_rate": True, "ha_bytes_per_second_max": 10_000, "ha_batch_bytes": 100}
        with BrokerHarness(tmp_path, **options) as harness:
            for _ in range(200):
                harness.send("T", b"x" * 300)
            replica = FakeReplica(harness)
            replica.report(0)
            harness.advance(2000, lambda: replica.report(1), 100)
            sent = sum(len(one.data) for one in replica.frames())
            assert 15_000 <= sent <= 25_000

    def test_a_slave_takes_no_replicas(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path, broker_id=1, broker_role="SLAVE") as harness:
            assert not FakeReplica(harness).is_open


class TestSyncMaster:
    """The answers of a SYNC_MASTER, with each put status of Apache RocketMQ."""

    def test_a_send_is_answered_once_a_replica_has_it(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path, **SYNC) as harness:
            replica = FakeReplica(harness)
            replica.report(0)
            asked = send_later(harness)
            assert code_of(asked) is None
            end = harness.broker.parts.store.log.end
            replica.report(end - 1)
            assert code_of(asked) is None, "its last byte is missing"
            replica.report(end)
            assert code_of(asked) == ResponseCode.SUCCESS

    def test_without_a_replica_the_answer_says_so_at_once(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path, **SYNC) as harness:
            assert code_of(send_later(harness)) == ResponseCode.SLAVE_NOT_AVAILABLE

    def test_a_replica_that_lags_too_much_is_not_available(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path, ha_gap_not_in_sync=1000, **SYNC) as harness:
            replica = FakeReplica(harness)
            replica.report(0)
            codes = [code_of(send_later(harness, b"x" * 300)) for _ in range(5)]
            assert codes[:2] == [None, None] and codes[-1] == ResponseCode.SLAVE_NOT_AVAILABLE

    def test_a_slow_replica_is_a_timeout(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path, slave_timeout_ms=700, **SYNC) as harness:
            replica = FakeReplica(harness)
            replica.report(0)
            asked = send_later(harness)
            harness.advance(699)
            assert code_of(asked) is None
            harness.advance(1)
            assert code_of(asked) == ResponseCode.FLUSH_SLAVE_TIMEOUT

    def test_a_sender_that_does_not_wait_is_answered_at_once(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path, **SYNC) as harness:
            FakeReplica(harness).report(0)
            assert code_of(send_later(harness, WAIT="false")) == ResponseCode.SUCCESS

    @pytest.mark.parametrize("needed", [1, 2, 3])
    def test_as_many_brokers_as_configured_must_have_it(self, tmp_path: Path, needed: int) -> None:
        with BrokerHarness(tmp_path, in_sync_replicas=needed, **SYNC) as harness:
            replicas = [FakeReplica(harness) for _ in range(2)]
            for i, replica in enumerate(replicas):
                replica.shake_hands(i + 1)
                replica.report(0)
            asked = send_later(harness)
            end = harness.broker.parts.store.log.end
            codes = [code_of(asked)]
            for replica in replicas:
                replica.report(end)
                codes.append(code_of(asked))
            assert codes == [None] * (needed - 1) + [ResponseCode.SUCCESS] * (4 - needed)

    def test_two_connections_of_one_replica_count_once(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path, in_sync_replicas=3, **SYNC) as harness:
            replicas = [FakeReplica(harness) for _ in range(2)]
            for replica in replicas:
                replica.shake_hands(1)
                replica.report(0)
            assert code_of(send_later(harness)) == ResponseCode.SLAVE_NOT_AVAILABLE

    @pytest.mark.parametrize("flush_first", [True, False])
    def test_with_synchronous_flush_both_must_have_it(self, tmp_path: Path, flush_first: bool) -> None:
        worker = HeldWorker()
        with BrokerHarness(tmp_path, worker=worker, flush_mode="SYNC_FLUSH", **SYNC) as harness:
            replica = FakeReplica(harness)
            replica.report(0)
            asked = send_later(harness)
            end = harness.broker.parts.store.log.end
            for step in range(2):
                assert code_of(asked) is None
                if flush_first == (step == 0):
                    harness.tick()
                    harness.run_jobs()
                else:
                    replica.report(end)
            assert code_of(asked) == ResponseCode.SUCCESS

    def test_if_both_fail_the_answer_names_the_replicas(self, tmp_path: Path) -> None:
        options = {"flush_mode": "SYNC_FLUSH", "sync_flush_timeout_ms": 500, "slave_timeout_ms": 700, **SYNC}
        with BrokerHarness(tmp_path, worker=HeldWorker(), **options) as harness:
            FakeReplica(harness).report(0)
            asked = send_later(harness)
            harness.advance(800)
            assert code_of(asked) == ResponseCode.FLUSH_SLAVE_TIMEOUT

    def test_an_asynchronous_master_waits_for_nobody(self, master: BrokerHarness) -> None:
        FakeReplica(master).report(0)
        assert code_of(send_later(master)) == ResponseCode.SUCCESS


def test_the_status_lists_each_replica(master: BrokerHarness) -> None:
    replica = FakeReplica(master)
    replica.report(10)
    answer = master.ask(Command(code=RequestCode.GET_BROKER_HA_STATUS))
    status = json.loads(bytes(answer.body))
    (one,) = status["haConnectionInfo"]
    end = master.broker.parts.store.log.end
    assert status["master"] and status["inSyncSlaveNums"] == 1 and status["masterCommitLogMaxOffset"] == end
    assert (one["slaveAckOffset"], one["diff"], one["inSync"]) == (10, end - 10, True)


class TestLag:
    """The part of the log that a failover would lose."""

    def test_a_broker_without_replicas_has_no_lag(self, master: BrokerHarness) -> None:
        assert self.lag(master) == (0, 0, 0)

    def test_bytes_that_no_replica_has_count_with_their_age(self, master: BrokerHarness) -> None:
        replica = FakeReplica(master)
        log = master.broker.parts.store.log
        replica.report(log.end)
        assert self.lag(master) == (1, 0, 0)
        before = log.end
        send_later(master)
        master.clock.advance(70)
        assert self.lag(master) == (1, log.end - before, 70)
        replica.report(log.end)
        assert self.lag(master) == (1, 0, 0)

    def test_the_lag_counts_on_without_the_lost_replica(self, master: BrokerHarness) -> None:
        replica = FakeReplica(master)
        log = master.broker.parts.store.log
        replica.report(log.end)
        before = log.end
        replica.lose()
        master.clock.advance(1000)
        assert self.lag(master) == (0, 0, 0)
        send_later(master)
        master.clock.advance(50)
        assert self.lag(master) == (0, log.end - before, 1050), "the age counts from the loss: never too small"
        FakeReplica(master).report(log.end)
        assert self.lag(master) == (1, 0, 0)

    def test_a_start_forgets_no_lag(self, master: BrokerHarness) -> None:
        """Else a replica that is behind would have a lag of 0 until it has all that was there at the start."""
        log = master.broker.parts.store.log
        master.send("T")
        had = log.end
        master.send("T")
        behind = log.end - had
        master.restart()
        replica = FakeReplica(master)
        replica.report(had)
        assert self.lag(master)[:2] == (1, behind)
        replica.report(had + behind)
        assert self.lag(master) == (1, 0, 0)

    @staticmethod
    def lag(master: BrokerHarness) -> tuple[int, int, int]:
        state = json.loads(master.ask_code(RequestCode.WMQ_REPLICATION_STATE).body)
        return state["replicas"], state["lag_bytes"], state["lag_ms"]
