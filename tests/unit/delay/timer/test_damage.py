"""Flipped bits in the timer log and in bodies. Damaged messages are not delivered, and the others are on time."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from wheelmq.formats.disk.timer import TIMER_TOPIC, TIMER_UNIT
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.testing.clock import ManualClock
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import Done, PipelineModel

COUNT = 12
FIELD_BYTES = sorted(
    {TIMER_UNIT.position_of(field.name) for field in TIMER_UNIT.fields}
    | {TIMER_UNIT.position_of(field.name) - 1 for field in TIMER_UNIT.fields[1:]}
)
"""First and last byte of each field of a unit."""


def fill(folder: Path) -> int:
    """Make a store with indexed timers due after 6 or 14 s. It is killed after 4 s; returns the time then."""
    with BrokerHarness(folder) as harness:
        for i in range(COUNT):
            harness.send("T", b"%d" % i, delay_ms=6000 if i % 2 else 14_000)
        harness.advance(4000, PipelineModel(harness).work)
        assert harness.broker.parts.timer.indexed_to == COUNT
        harness.crash()
        return harness.clock.now_ms()


@pytest.mark.parametrize("at", FIELD_BYTES)
def test_a_flipped_bit_in_the_timer_log_loses_no_message(tmp_path: Path, at: int) -> None:
    now_ms = fill(tmp_path)
    [path] = (tmp_path / "timerlog").iterdir()
    raw = bytearray(path.read_bytes())
    raw[5 * TIMER_UNIT.size + at] ^= 0x04
    path.write_bytes(raw)
    with BrokerHarness(tmp_path, clock=ManualClock(now_ms)) as harness:
        harness.advance(12_000, PipelineModel(harness).work)
        assert sorted(harness.bodies("T")) == sorted(b"%d" % i for i in range(COUNT))


class TestDamagedBodies:
    def go_on(self, harness: BrokerHarness) -> None:
        """Send a later message, and wait for a checkpoint that covers all messages before it."""
        harness.advance(1000)
        harness.send("Other")
        harness.advance(4000)

    def damaged(self, folder: Path, body: bytes, *, walk: bool = True) -> None:
        """Flip a bit of `body`. If `walk` is true, the next start walks the whole log."""
        [path] = (folder / "commitlog").iterdir()
        raw = bytearray(path.read_bytes())
        raw[raw.index(body)] ^= 1
        path.write_bytes(raw)
        if walk:
            (folder / "config" / "snapshot").unlink(missing_ok=True)

    def test_a_damaged_message_is_logged_and_skipped(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        with BrokerHarness(tmp_path) as harness:
            for body in (b"first", b"second", b"third"):
                harness.send("T", body)
            position = harness.pull("T").records[1].position
            self.go_on(harness)
        self.damaged(tmp_path, b"second")
        with BrokerHarness(tmp_path) as harness:
            assert f"log position {position} has changed" in caplog.text
            assert harness.bodies("T") == [b"first", b"third"]
            assert harness.pull("T", 0, 1).next_offset == 3
            view = Command(code=RequestCode.VIEW_MESSAGE_BY_ID, ext={"offset": str(position)})
            assert harness.ask(view).code == 1

    @pytest.mark.parametrize("walk", [True, False], ids=["log walked", "snapshot"])
    def test_a_damaged_waiting_message_is_not_delivered(self, tmp_path: Path, walk: bool) -> None:
        with BrokerHarness(tmp_path) as harness:
            for body in (b"first", b"second", b"third"):
                harness.send("T", body, delay_ms=8000)
            self.go_on(harness)
            now_ms = harness.clock.now_ms()
        self.damaged(tmp_path, b"second", walk=walk)
        with BrokerHarness(tmp_path, clock=ManualClock(now_ms)) as harness:
            harness.advance(5000)
            assert harness.bodies("T") == [b"first", b"third"]

    def test_a_damaged_message_stays_set_aside_over_later_starts(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        with BrokerHarness(tmp_path) as harness:
            for body in (b"first", b"second", b"third"):
                harness.send("T", body)
            self.go_on(harness)
        self.damaged(tmp_path, b"second")
        for _ in range(2):
            with BrokerHarness(tmp_path) as harness:
                self.go_on(harness)
                assert harness.bodies("T") == [b"first", b"third"]
            assert "has changed since it was stored" in caplog.text
            caplog.clear()
        [path] = (tmp_path / "commitlog").iterdir()
        path.write_bytes(path.read_bytes().replace(b"recond", b"second"))
        with BrokerHarness(tmp_path) as harness:
            assert harness.bodies("T") == [b"first", b"second", b"third"]
        assert "not the damaged record of the snapshot" in caplog.text

    def test_a_search_by_time_reads_the_time_of_a_damaged_record(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path) as harness:
            first_ms = harness.clock.now_ms()
            for i in range(9):
                harness.send("T", b"message %d" % i)
                harness.advance(1000)
            self.go_on(harness)
        self.damaged(tmp_path, b"message 4")
        with BrokerHarness(tmp_path) as harness:
            assert len(harness.bodies("T")) == 8
            ext = {"topic": "T", "queueId": "0", "timestamp": str(first_ms)}
            answer = harness.ask(Command(code=RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, ext=ext))
            assert answer.ext["offset"] == "0"

    def test_a_damaged_message_does_not_roll(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        """A roll would store the damaged body with a matching checksum."""
        with BrokerHarness(tmp_path) as harness:
            for body in (b"first", b"second"):
                harness.send("T", body, delay_ms=65_000)
            position = harness.read_queue(TIMER_TOPIC)[1].position
            file = harness.broker.parts.store.log.files.file_at(position)
            file.array[bytes(file.view).index(b"second")] ^= 1
            harness.advance(40_000, PipelineModel(harness).work, 500)
            counts = harness.broker.parts.releaser.counts
            assert (counts["rolled"], counts["unreadable"]) == (1, 1)
            assert f"it has a damaged body at log position {position}" in caplog.text
            harness.advance(30_000, PipelineModel(harness).work, 500)
            assert harness.bodies("T") == [b"first"]


@pytest.mark.parametrize("queues", ["there", "made anew"])
@pytest.mark.parametrize("body", [b"first", b"second"])
@pytest.mark.parametrize("is_indexed", [True, False], ids=["indexed", "not indexed"])
@pytest.mark.parametrize("level", [0, 3], ids=["timer", "level"])
def test_a_parked_message_with_an_impossible_queue_offset_is_set_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, level: int, is_indexed: bool, body: bytes, queues: str
) -> None:
    """The message is set aside once. Later starts walk no log and keep no file for it, and turns skip it.

    Rebuilt queues have a blank in its place.
    """
    bodies = [b"first", b"second", b"third"]
    with BrokerHarness(tmp_path) as harness:
        for one in bodies:
            harness.send("T", one, **({"level": level} if level else {"delay_ms": 9000}))
        harness.advance(1000)
        harness.send("Other")
        harness.advance(3000, PipelineModel(harness).work if is_indexed else None)
        now_ms = harness.clock.now_ms()
    [path] = (tmp_path / "commitlog").iterdir()
    raw = bytearray(path.read_bytes())
    at = raw.index(body) - 88
    raw[at + 20 : at + 28] = (1 << 40 | 1).to_bytes(8, "big")
    path.write_bytes(raw)
    (tmp_path / "config" / "snapshot").unlink()
    if queues == "made anew":
        shutil.rmtree(tmp_path / "consumequeue")
    bodies.remove(body)
    with BrokerHarness(tmp_path, clock=ManualClock(now_ms)) as harness:
        assert f"log position {at} has changed" in caplog.text
        turns: set[Done] = set()
        model = PipelineModel(harness)
        harness.advance(4000, lambda: turns.add(model.work()))
        if not level:
            assert harness.broker.parts.timer.indexed_to == 3
        harness.advance(6000, lambda: turns.add(model.work()))
        assert Done.BROKEN not in turns
        assert harness.bodies("T") == bodies
        assert harness.broker.parts.timer.needed_from() == harness.broker.parts.store.log.end
    caplog.clear()
    with BrokerHarness(tmp_path, clock=ManualClock(now_ms + 10_000)) as harness:
        assert f"log position {at} has changed" in caplog.text and "deletes the snapshot" not in caplog.text
        assert harness.bodies("T") == bodies
