"""Cancels find their message by the message index. Memory holds only the keys that are not indexed yet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from wheelmq.delay import keys
from wheelmq.delay.cancel import Cancelled
from wheelmq.formats.disk import index as index_format
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.index import INDEX_HEADER, INDEX_UNIT
from wheelmq.formats.disk.parked import delete_key, key_hash
from wheelmq.formats.disk.timer import TIMER_TOPIC
from wheelmq.formats.wire.codes import ResponseCode
from wheelmq.testing import invariants
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel
from wheelmq.testing.workers import HeldWorker

from .test_cancel import cancel, cancel_command, send

FRESH = 8
COUNT = 60


@pytest.fixture(autouse=True)
def small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "FRESH_KEYS", FRESH)


@pytest.fixture(params=["index", "no index"])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BrokerHarness]:
    """A broker with a message index of many files, or without an index."""
    chosen = {"max_index_num": 40} if request.param == "index" else {"message_index_enable": False}
    with BrokerHarness(tmp_path / "store", **chosen) as harness:
        yield harness


def fill(harness: BrokerHarness) -> None:
    for i in range(COUNT):
        send(harness, f"K{i}", 14_000, b"%d" % i)


def in_memory(harness: BrokerHarness) -> int:
    return harness.broker.parts.timer.pending.keys.count


def test_indexed_keys_leave_memory(harness: BrokerHarness) -> None:
    fill(harness)
    assert in_memory(harness) <= 2 * FRESH
    for clean in (True, False):
        harness.restart(clean=clean)
        assert in_memory(harness) == 0
        assert harness.broker.parts.timer.pending.counts.by_queue.sum() == COUNT
    assert [cancel(harness, f"K{i}") for i in range(0, COUNT, 7)] == [Cancelled.CANCELLED] * 9


def test_keys_stay_in_memory_without_an_index(tmp_path: Path) -> None:
    with BrokerHarness(tmp_path, message_index_enable=False) as harness:
        fill(harness)
        assert in_memory(harness) == COUNT
        harness.restart()
        assert in_memory(harness) == COUNT
        assert cancel(harness, "K3") == Cancelled.CANCELLED


def test_keys_of_blocks_leave_memory_with_their_messages(harness: BrokerHarness) -> None:
    """No row and no memory is left of released and cancelled messages."""
    for i in range(COUNT):
        properties = {props.UNIQ_KEY: f"B{i}", props.DELAY_IN_SECONDS: str(2 + i % 20)}
        harness.send("T", b"block", properties=properties)
    assert in_memory(harness) == COUNT
    harness.restart(clean=False)
    assert in_memory(harness) == COUNT
    assert cancel(harness, "B59") == Cancelled.CANCELLED
    harness.advance(25_000)
    assert len(harness.bodies("T")) == COUNT - 1
    assert in_memory(harness) == 0
    harness.send("T", b"block", properties={props.UNIQ_KEY: "again", props.DELAY_IN_SECONDS: "2"})
    assert in_memory(harness) == 1
    assert cancel(harness, "again") == Cancelled.CANCELLED
    assert in_memory(harness) == 0


def test_keys_stay_in_memory_while_the_index_lags(tmp_path: Path) -> None:
    background = HeldWorker()
    with BrokerHarness(tmp_path, background=background) as harness:
        fill(harness)
        assert in_memory(harness) == COUNT
        assert cancel(harness, "K3") == Cancelled.CANCELLED
        while background.run():
            harness.tick()
        send(harness, "last", 14_000)
        assert in_memory(harness) <= 2 * FRESH
        assert [cancel(harness, key) for key in ("K3", "K4", "last")] == [
            Cancelled.ALREADY_SETTLED,
            Cancelled.CANCELLED,
            Cancelled.CANCELLED,
        ]


def test_a_level_message_is_cancelled_after_a_restart(either: BrokerHarness) -> None:
    properties = {props.UNIQ_KEY: "K", props.DELAY: "3"}
    assert either.send("T", b"level", properties=properties).code == 0
    either.restart()
    assert cancel(either, "K") == Cancelled.CANCELLED
    either.advance(12_000)
    assert either.bodies("T") == []


def test_a_cancel_matches_no_cancel_and_no_word_of_keys(either: BrokerHarness) -> None:
    send(either, "K", 14_000)
    assert cancel(either, "K") == Cancelled.CANCELLED  # its own KEYS name K now
    either.send("T", delay_ms=14_000, properties={props.KEYS: "word", props.UNIQ_KEY: "other"})
    cancelling = {props.TIMER_DEL_UNIQKEY: "T+nobody", props.UNIQ_KEY: "mine"}
    either.send("T", delay_ms=1000, properties=cancelling)
    assert [cancel(either, key) for key in ("word", "mine", "")] == [Cancelled.NOT_FOUND] * 3
    assert cancel(either, "other") == Cancelled.CANCELLED


def test_a_shared_key_cancels_all_of_its_messages(either: BrokerHarness) -> None:
    for i in range(30):
        send(either, "shared", 14_000, b"%d" % i)
    assert cancel(either, "shared") == Cancelled.CANCELLED
    either.advance(16_000)
    assert either.bodies("T") == []
    invariants.check(either.broker)


def test_cancels_have_the_same_results_with_and_without_the_index(tmp_path: Path) -> None:
    """Random runs with the index and without: the same messages are cancelled and delivered."""
    outcomes = []
    for name, chosen in (("with", {"max_index_num": 30}), ("without", {"message_index_enable": False})):
        randomness = Random(7)
        with BrokerHarness(tmp_path / name, **chosen) as harness:
            model, seen = PipelineModel(harness), list[object]()
            for i in range(120):
                key = f"K{randomness.randrange(40)}"
                match randomness.randrange(8):
                    case 0 | 1 | 2:
                        send(harness, key, randomness.randrange(500, 40_000), b"%d" % i)
                    case 3 | 4:
                        seen.append((i, cancel(harness, key) == Cancelled.CANCELLED))
                    case 5:
                        harness.restart(clean=randomness.random() < 0.5)
                    case _:
                        harness.advance(randomness.randrange(3000), model.work, 500)
            harness.advance(45_000, model.work, 500)
            invariants.check(harness.broker)
            outcomes.append((seen, harness.bodies("T")))
    assert outcomes[0] == outcomes[1]
    assert sum(was for _, was in outcomes[0][0]) > 8


class TestDamagedIndexFiles:
    """Index files that are missing, incomplete or damaged."""

    @pytest.fixture
    def harness(self, tmp_path: Path) -> Iterator[BrokerHarness]:
        with BrokerHarness(tmp_path / "store", max_index_num=11, snapshot_ms=500, checkpoint_ms=100) as harness:
            yield harness

    def files(self, harness: BrokerHarness) -> list[Path]:
        return sorted(harness.broker.parts.paths.index.iterdir())

    @pytest.mark.parametrize("gone", [0, 2, -1])
    def test_a_missing_file_is_rebuilt(self, harness: BrokerHarness, gone: int) -> None:
        fill(harness)
        files = self.files(harness)
        assert len(files) > 4
        harness.stop()
        files[gone].unlink()
        harness.start()
        assert [cancel(harness, f"K{i}") for i in range(COUNT)] == [Cancelled.CANCELLED] * COUNT

    @pytest.mark.parametrize("keep", [0.0, 0.5, 1.0])
    def test_a_power_cut_resets_the_last_file_to_the_snapshot(
        self, tmp_path: Path, keep: float, caplog: pytest.LogCaptureFixture
    ) -> None:
        with BrokerHarness(tmp_path, snapshot_ms=500, checkpoint_ms=100, flush_mode="SYNC_FLUSH") as harness:
            fill(harness)
            harness.advance(2000)
            for i in range(COUNT, 2 * COUNT):
                send(harness, f"K{i}", 14_000)
            known = harness.broker.parts.file_upkeep.snapshots.index_mark
            assert known is not None and COUNT < known.next_unit < 2 * COUNT
            harness.cut_power(keep)
            harness.start()
            assert harness.broker.parts.store.index_mark == known
            assert "made anew" not in caplog.text
            assert [cancel(harness, f"K{i}") for i in range(2 * COUNT)] == [Cancelled.CANCELLED] * 2 * COUNT
            invariants.check(harness.broker)

    def test_a_damaged_file_rejects_the_cancel(self, tmp_path: Path) -> None:
        """The cancel is rejected for each flipped bit on the way to the message."""
        with BrokerHarness(tmp_path / "store") as harness:
            for i in range(4):
                send(harness, f"K{i}", 14_000)
            harness.restart()
            index = harness.broker.parts.index
            assert index is not None
            file, size = index._files[0].view, index._size
            slot_at = INDEX_HEADER.size + index_format.index_hash(TIMER_TOPIC, "K1") % size.slots * 4
            number = int.from_bytes(file[slot_at : slot_at + 4], "big")
            unit_at = size.units_at + number * INDEX_UNIT.size
            fields = [("hash", 4), ("position", 8), ("previous", 4)]
            places = [unit_at + INDEX_UNIT.position_of(name) + i for name, length in fields for i in range(length)]
            for at in (*range(slot_at, slot_at + 4), *places):
                for bit in (1, 4, 64, 128):
                    file[at] ^= bit
                    answer = harness.ask(cancel_command(harness, "K1"))
                    file[at] ^= bit
                    assert answer.code == ResponseCode.SYSTEM_ERROR, (at, bit, answer)
                    assert "cannot look up the message" in answer.remark
            assert cancel(harness, "K1") == Cancelled.CANCELLED

    def test_too_many_entries_in_one_slot_reject_the_cancel(
        self, harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for i in range(8):
            harness.send("T", delay_ms=14_000, properties={props.KEYS: "word", props.UNIQ_KEY: f"U{i}"})
        monkeypatch.setattr("wheelmq.store.index.STEPS_MAX", 5)
        answer = harness.ask(cancel_command(harness, "word"))
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL and "more than 5" in answer.remark
        assert harness.broker.parts.timer.pending.counts.by_queue.sum() == 8


def test_keys_with_the_same_hash_are_distinguished(harness: BrokerHarness) -> None:
    """Java's hash is the same for Aa and BB. The record distinguishes them."""
    assert key_hash(delete_key("T", "Aa")) != key_hash(delete_key("T", "BB"))
    assert index_format.index_hash("T", "Aa") == index_format.index_hash("T", "BB")
    send(harness, "Aa", 14_000, b"Aa")
    harness.restart()
    assert cancel(harness, "BB") == Cancelled.NOT_FOUND
    assert cancel(harness, "Aa") == Cancelled.CANCELLED
