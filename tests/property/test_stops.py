"""A stop at every failpoint that a small scenario passes: send, cancel, turns, roll, release, clean stop, start.

After each stop the broker starts again and a pipeline continues. Every message is then in its queue once, and none
left before its due time.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import pytest

from wheelmq.formats.disk import properties as props
from wheelmq.testing import invariants
from wheelmq.testing.pipeline_model import PipelineModel
from wheelmq.testing.stops import Died, Stops

from .profiles import IS_LONG
from .twins import TwinHarness

DELAYS_MS = [30, 2500, 5100, 7000, 12_000]
"""One message for the near lane, one for a turn, one for a wheel scan and two that roll: the window is 6 s."""
CANCELLED = 3
END_MS = 15_000


class Life:
    """One run and its expected messages: timers, or messages of blocks if `in_blocks`."""

    def __init__(self, folder: Path, *, in_blocks: bool) -> None:
        self.in_blocks = in_blocks
        self.due_ms: dict[bytes, int] = {}
        self.answered: set[bytes] = set()
        self.cancel_is_answered = False
        self.harness = TwinHarness(
            folder,
            flush_mode="SYNC_FLUSH",
            timer_roll_window_slots=6,
            timer_lead_ms=3000,
            timer_log_file_bytes=52 * 3 + 16,
            queue_file_bytes=20 * 4,
            log_file_bytes=16_384,
            block_log_file_bytes=512,
            block_queue_file_bytes=24 * 2,
            block_length_seconds=5,
            clean_resource_interval_ms=2000,
        )

    def live(self) -> None:
        harness = self.harness
        model = PipelineModel(harness, index_parts=2)
        for delay_ms in DELAYS_MS:
            body = b"%d" % delay_ms
            properties = {props.UNIQ_KEY: body.decode()}
            if self.in_blocks:
                delay_ms = -(-delay_ms // 1000) * 1000
                properties[props.DELAY_IN_SECONDS] = str(delay_ms // 1000)
            self.due_ms[body] = harness.now_ms + delay_ms
            asked = None if self.in_blocks else delay_ms
            answer = harness.send("T", body, delay_ms=asked, properties=properties)
            assert answer.code == 0
            self.answered.add(body)
        harness.advance(3500, model.work, 500)
        key = f"T+{DELAYS_MS[CANCELLED]}"
        answer = harness.send("T", b"cancel", delay_ms=5000, properties={props.TIMER_DEL_UNIQKEY: key})
        assert answer.ext["cancelResult"] == "cancelled"
        self.cancel_is_answered = True
        harness.advance(1000, model.work, 500)
        harness.restart(clean=True)
        harness.advance(END_MS - 4500, model.work, 500)

    def check(self) -> None:
        invariants.check(self.harness.broker)
        records = self.harness.read_queue("T")
        bodies = [record.message.body for record in records]
        assert len(bodies) == len(set(bodies)), bodies
        cancelled = b"%d" % DELAYS_MS[CANCELLED]
        for record in records:
            left_ms = int(record.message.properties[props.TIMER_DEQUEUE_MS])
            assert left_ms >= self.due_ms[record.message.body]
        missing = self.answered - set(bodies)
        assert missing <= {cancelled}, missing
        assert not (self.cancel_is_answered and cancelled in bodies)

    def go_on(self) -> None:
        """Start again and release every message."""
        harness = self.harness
        harness.start()
        invariants.check(harness.broker)
        model = PipelineModel(harness, "another")
        harness.advance(END_MS + 6000, model.work, 500)
        self.check()


def passages(*, in_blocks: bool) -> list[str]:
    """Return the failpoints that an uninterrupted run passes."""
    with tempfile.TemporaryDirectory() as folder:
        life = Life(Path(folder), in_blocks=in_blocks)
        with Stops() as stops:
            life.live()
        life.check()
        life.harness.crash()
        return stops.passed


def chosen(passed: list[str], power: float | None) -> list[int]:
    """Return every passage in the long profile, else the first of each name, or the fourth if pages are kept."""
    number = 4 if power == 0.5 else 1
    seen: dict[str, int] = {}
    found = []
    for i, name in enumerate(passed):
        seen[name] = seen.get(name, 0) + 1
        if IS_LONG or seen[name] == number:
            found.append(i)
    return found


def test_a_run_passes_every_failpoint_of_the_timer() -> None:
    passed = set(passages(in_blocks=False))
    assert passed >= {
        "commit.before",
        "commit.units",
        "commit.armed",
        "mark.before",
        "mark.written",
        "plan.before",
        "plan.made",
        "release.before",
        "release.after",
        "roll.after",
        "cancel.appended",
        "recover.staged",
        "flush.log_synced",
        "snapshot.before",
        "snapshot.written",
    }, passed


def test_a_run_passes_every_failpoint_of_blocks() -> None:
    passed = set(passages(in_blocks=True))
    assert passed >= {
        "block.logged",
        "block.queued",
        "block.synced",
        "block.checkpoint",
        "block.recovered",
        "block.gone",
        "block.removed",
        "blocks.checked",
        "blocks.loaded",
        "blocks.recovered",
        "blocks.wheel",
        "commit.armed",
        "release.after",
        "cancel.appended",
    }, passed


@pytest.mark.parametrize("in_blocks", [False, True], ids=["timers", "blocks"])
@pytest.mark.parametrize("power", [None, 0.0, 0.5], ids=["killed", "power cut", "power cut, some pages kept"])
def test_messages_survive_a_stop_at_any_failpoint(power: float | None, in_blocks: bool) -> None:
    for die_at in chosen(passages(in_blocks=in_blocks), power):
        with tempfile.TemporaryDirectory() as folder:
            life = Life(Path(folder), in_blocks=in_blocks)
            with Stops(die_at) as stops, contextlib.suppress(Died):
                life.live()
            where = f"{die_at}: {stops.passed[-1]}"
            assert len(stops.passed) == die_at + 1, where
            try:
                if life.harness.is_running:
                    life.harness.crash()
                if power is not None:
                    life.harness.disk.cut_power(life.harness.randomness, power)
                life.go_on()
            except Exception as error:
                raise AssertionError(f"after a stop at {where}") from error
            finally:
                if life.harness.is_running:
                    life.harness.crash()
