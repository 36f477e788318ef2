"""The requests of a replica of blocks, and the answers of sends that wait for it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from tests.unit.broker.block_pairs import SYNC, Pair, code_of, later, waiting
from tests.unit.broker.test_blocks import blocks, send
from tests.unit.broker.test_replication_requests import state_of
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.block_replication import (
    BLOCK_PLACE,
    BLOCK_PROGRESS,
    BlockPlace,
    VerdictKind,
    pack_all,
    read_parts,
    read_verdicts,
)
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.headers import ReadBlocksHeader
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.replication import SLAVE
from wheelmq.testing.workers import HeldWorker


class TestSyncMaster:
    def test_a_send_is_answered_once_a_replica_has_the_message(self, tmp_path: Path) -> None:
        pair = Pair(tmp_path, **SYNC)
        pair.copy.run()
        asked = later(pair.master)
        assert code_of(asked) is None
        assert pair.copy.step() and code_of(asked) is None and waiting(pair.replica) == 0
        pair.copy.step()  # the request after the append acknowledges it
        assert waiting(pair.replica) == 1
        assert code_of(asked) == ResponseCode.SUCCESS

    def test_without_a_replica_the_answer_says_so_at_once(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path, **SYNC) as harness:
            assert code_of(later(harness)) == ResponseCode.SLAVE_NOT_AVAILABLE
            assert waiting(harness) == 1

    def test_a_replica_of_the_log_alone_does_not_count(self, tmp_path: Path) -> None:
        pair = Pair(tmp_path, **SYNC)
        assert code_of(later(pair.master)) == ResponseCode.SLAVE_NOT_AVAILABLE
        pair.copy.run()
        assert code_of(later(pair.master)) is None
        pair.copy.close()
        assert code_of(later(pair.master)) == ResponseCode.SLAVE_NOT_AVAILABLE

    def test_a_slow_replica_is_a_timeout(self, tmp_path: Path) -> None:
        pair = Pair(tmp_path, **SYNC)
        pair.copy.run()
        asked = later(pair.master)
        pair.master.advance(699)
        assert code_of(asked) is None
        pair.master.advance(1)
        assert code_of(asked) == ResponseCode.FLUSH_SLAVE_TIMEOUT

    def test_a_send_waits_no_more_once_no_replica_is_needed(self, tmp_path: Path) -> None:
        pair = Pair(tmp_path, block_length_seconds=60, **SYNC)
        pair.copy.run()
        asked = later(pair.master)
        pair.master.broker.parts.configuration.update(b"inSyncReplicas=1")
        pair.master.tick()
        assert code_of(asked) == ResponseCode.SUCCESS

    def test_a_replica_that_lags_too_much_is_not_available(self, tmp_path: Path) -> None:
        pair = Pair(tmp_path, ha_gap_not_in_sync=1000, **SYNC)
        pair.copy.run()
        codes = [code_of(later(pair.master, note="x" * 100)) for _ in range(5)]
        assert codes[:2] == [None, None] and codes[-1] == ResponseCode.SLAVE_NOT_AVAILABLE
        pair.copy.run()
        assert code_of(later(pair.master)) is None

    def test_a_sender_that_does_not_wait_is_answered_at_once(self, tmp_path: Path) -> None:
        pair = Pair(tmp_path, **SYNC)
        pair.copy.run()
        assert code_of(later(pair.master, WAIT="false")) == ResponseCode.SUCCESS

    def test_with_synchronous_flush_both_must_have_it(self, tmp_path: Path) -> None:
        for disk_first in (True, False):
            worker = HeldWorker()
            pair = Pair(tmp_path / str(disk_first), worker, flush_mode="SYNC_FLUSH", **SYNC)
            pair.copy.run()
            asked = later(pair.master)
            for step in range(2):
                assert code_of(asked) is None
                if disk_first == (step == 0):
                    pair.master.tick()
                    worker.run()
                    pair.master.tick()
                else:
                    pair.copy.run()
            assert code_of(asked) == ResponseCode.SUCCESS

    def test_an_asynchronous_master_waits_for_no_replica(self, pair: Pair) -> None:
        pair.copy.run()
        assert code_of(later(pair.master)) == ResponseCode.SUCCESS and waiting(pair.replica) == 0

    def test_a_master_that_hands_over_ends_the_waits(self, tmp_path: Path) -> None:
        pair = Pair(tmp_path, **SYNC)
        pair.copy.run()
        asked = later(pair.master)
        pair.master.broker.parts.replication.hand_over("h:1")
        pair.master.tick()
        assert code_of(asked) == ResponseCode.FLUSH_SLAVE_TIMEOUT


class TestRequests:
    def read(self, harness: BrokerHarness, body: bytes = b"", **fields: Any) -> Command:
        epoch = harness.broker.parts.replication.epoch
        header = ReadBlocksHeader(**{"replica_id": 1, "epoch": epoch, "bytes_max": 1 << 20, **fields})
        return harness.ask(Command(code=RequestCode.WMQ_READ_BLOCKS, ext=headers.write(header), body=body))

    def test_a_check_compares_the_last_record(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path) as harness:
            for _ in range(3):
                send(harness, 30)
            (block,) = blocks(harness)
            unit, epoch = block.queue.read(2, 1)[0], blocks(harness).epoch
            place = BlockPlace(1, block.start_ms, 3, 2, unit["position"], unit["size"], epoch)
            places = [place, place._replace(epoch=epoch - 1), place._replace(number=9), place._replace(start_ms=0)]
            body = pack_all(BLOCK_PLACE, places)
            answer = harness.ask(Command(code=RequestCode.WMQ_CHECK_BLOCKS, body=body))
            found = [(VerdictKind(one.verdict), one.last_index) for one in read_verdicts(bytes(answer.body))]
            assert found == [
                (VerdictKind.AGREES, -1),
                (VerdictKind.SHORTER, -1),
                (VerdictKind.GONE, -1),
                (VerdictKind.SHORTER, -1),
            ]

    def test_an_answer_has_about_the_bytes_that_are_asked_for(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path, block_log_file_bytes=1 << 20) as harness:
            for _ in range(20):
                send(harness, 30, b"x" * 1000)
            answer = self.read(harness, bytes_max=5000)
            parts = list(read_parts(bytes(answer.body)))
            assert sum(len(one.data) for one in parts) <= 5000 + 2 * 1300
            tiny = self.read(harness, bytes_max=1, session=answer.ext["session"])
            assert [len(one.units) for one in read_parts(bytes(tiny.body))] == [1]

    def test_a_read_is_held_until_there_is_more(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path) as harness:
            first = self.read(harness)
            header = ReadBlocksHeader(
                replica_id=1,
                epoch=harness.broker.parts.replication.epoch,
                session=int(first.ext["session"]),
                bytes_max=1 << 20,
                timeout_ms=4000,
            )
            request = Command(code=RequestCode.WMQ_READ_BLOCKS, ext=headers.write(header))
            asked = harness.submit(request)
            harness.advance(3000)
            assert asked.answer is None
            send(harness, 30)
            assert asked.answer is not None and len(list(read_parts(bytes(asked.answer.body)))) == 1
            asked = harness.submit(request)
            harness.advance(4000)
            assert asked.answer is not None and not asked.answer.body

    def test_a_replica_whose_read_is_held_is_not_forgotten(self, tmp_path: Path) -> None:
        """With a short ha_silence_ms_max, the master ends the wait before it counts the replica as silent."""
        with BrokerHarness(tmp_path, ha_silence_ms_max=1000, ha_heartbeat_ms=500) as harness:
            session = int(self.read(harness).ext["session"])
            epoch = harness.broker.parts.replication.epoch
            header = ReadBlocksHeader(replica_id=1, epoch=epoch, session=session, bytes_max=1 << 20, timeout_ms=5000)
            asked = harness.submit(Command(code=RequestCode.WMQ_READ_BLOCKS, ext=headers.write(header)))
            harness.advance(1000)
            assert asked.answer is not None and asked.answer.code == ResponseCode.SUCCESS
            assert len(harness.broker.parts.block_source) == 1

    @pytest.mark.parametrize(
        ("fields", "body"),
        [
            ({"epoch": 7}, b""),
            ({"session": 77}, b""),
            ({}, b"x"),
            ({}, BLOCK_PROGRESS.pack(1, 1)),
            ({}, BLOCK_PROGRESS.pack(1 << 21, 0)),
        ],
    )
    def test_a_wrong_read_is_rejected(self, tmp_path: Path, fields: dict[str, Any], body: bytes) -> None:
        with BrokerHarness(tmp_path) as harness:
            send(harness, 30)
            (block,) = blocks(harness)
            block.queue.cut(0)
            assert self.read(harness, body, **fields).code == ResponseCode.INVALID_PARAMETER

    def test_a_slave_gives_no_blocks(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path, **SLAVE) as harness:
            assert self.read(harness).code == ResponseCode.SLAVE_NOT_AVAILABLE
            answer = harness.ask(Command(code=RequestCode.WMQ_CHECK_BLOCKS))
            assert answer.code == ResponseCode.SLAVE_NOT_AVAILABLE

    def test_a_silent_replica_is_forgotten(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        with BrokerHarness(tmp_path, ha_silence_ms_max=7000, ha_heartbeat_ms=1000) as harness:
            self.read(harness)
            assert len(harness.broker.parts.block_source) == 1
            harness.advance(10_000)
            assert len(harness.broker.parts.block_source) == 0 and "copies the blocks no more" in caplog.text

    def test_the_state_counts_what_a_replica_lacks(self, pair: Pair) -> None:
        assert state_of(pair.master).lacking == {} and not state_of(pair.master).has_blocks
        pair.copy.run()
        send(pair.master, 30)
        assert state_of(pair.master).lacking == {"1": 1} and state_of(pair.master).has_blocks
        pair.copy.run()
        assert state_of(pair.master).lacking == {"1": 0}
