"""A few kills in every test run (`make crash` runs all of them), and faults planted in the resulting store.

The verdict over a store must find each planted fault and name it.
"""

from __future__ import annotations

import asyncio
import copy
import shutil
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from tests.crash.load import Load, Mix
from tests.crash.notes import TOPICS, Fate, Kind, Notes
from tests.crash.records import COLUMNS, KIND_BLOCK, Records
from tests.crash.run import NOTHING_EXPIRES, Outcome, Plan, Run, report
from tests.crash.verdict import Verdict, judge

SHORT = Mix(delays_ms=((0.4, 50, 1000), (0.3, 1000, 4000), (0.3, 4000, 7000)))
RATE = 800.0
PENDING_MIN = 200
"""The same relation to the rate as in `make crash`."""
SETTINGS = {
    "log_file_bytes": 1 << 20,
    "queue_file_bytes": 20 * 3000,
    "timer_log_file_bytes": 52 * 5000 + 16,
    "timer_slots": 20,
    "timer_roll_window_slots": 5,
    "block_length_seconds": 60,
    "block_log_file_bytes": 1 << 17,
    "block_queue_file_bytes": 24 * 500,
    "clean_resource_interval_ms": 600_000,  # so that the store keeps blocks
    **NOTHING_EXPIRES,
}
LATE_P99_MAX_MS = 5000.0
TURNING_MAX_S = 120.0
SHARE_MIN = 0.05
"""Weak limits. `make crash` measures times; here a slow machine may have other work."""


def execute(home: Path, **chosen: object) -> tuple[Outcome, Notes]:
    """Run a plan. Returns its outcome and the sender's notes."""
    plan = Plan(
        seed=1,
        home=home,
        mix=SHORT,
        settings=SETTINGS,
        late_p99_max_ms=LATE_P99_MAX_MS,
        turning_max_s=TURNING_MAX_S,
        share_min=SHARE_MIN,
        rate=RATE,
        pending_min=PENDING_MIN,
        **chosen,  # type: ignore[arg-type]
    )
    run = Run(plan, print)
    outcome = asyncio.run(run.execute())
    print("\n".join(report(outcome)))
    return outcome, run.load.notes


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome, Notes]:
    """Return a store whose broker was killed four times: by hand, and at failpoints."""
    home = tmp_path_factory.mktemp("alone")
    only = ("broker", "release.after", "send.appended", "block.synced")
    return home / "store", *execute(home, kills=4, spark=False, seconds_max=120.0, only=only)


@pytest.mark.timeout(180)
def test_kills_of_a_broker_alone_lose_no_messages(alone: tuple[Path, Outcome, Notes]) -> None:
    _, outcome, _ = alone
    assert outcome.violations == []
    assert outcome.kills == 4
    assert outcome.counts["delivered"] > 2000 and outcome.counts["cancelled"] > 0
    assert outcome.counts["in blocks"] > 200 and outcome.counts["blocks"] > 0


@pytest.mark.spark
@pytest.mark.timeout(400)
def test_kills_of_broker_and_pipeline_lose_no_messages(tmp_path: Path) -> None:
    outcome, _ = execute(tmp_path, kills=2, seconds_max=300.0, only=("jvm", "broker"))
    assert outcome.violations == []
    assert outcome.kills == 2
    assert outcome.counts["rolled"] > 0


# Planted faults -------------------------------------------------------------------------------------------------------


class Copy:
    """A copy of the store to plant faults in."""

    def __init__(self, alone: tuple[Path, Outcome, Notes], folder: Path) -> None:
        source, _, notes = alone
        self.store = folder / "store"
        shutil.copytree(source, self.store)
        self.notes = copy.deepcopy(notes)
        self.records = Records(self.store / "commitlog", notes.key_prefix)

    def judge(self) -> Verdict:
        return judge(self.store, self.notes)

    def pick(self, *, delivered: bool) -> int:
        """Return the log row of a record in the middle: a delivered timer, or the parked record of one."""
        chosen = np.flatnonzero(
            self.is_delayed() & (self.is_parked() != delivered) & ((self.records.of("origin") >= 0) == delivered)
        )
        return int(chosen[len(chosen) // 2])

    def is_delayed(self) -> npt.NDArray[np.bool_]:
        """Return for each log row whether it is a message with a due time, and no cancel."""
        return (self.records.of("cancels") == -2) & (self.records.of("due_ms") > 0)

    def is_parked(self) -> npt.NDArray[np.bool_]:
        """Return for each log row whether it is a record on the timer topic."""
        is_timer = np.array([name == "rmq_sys_wheel_timer" for name in self.records.topics])
        return is_timer[self.records.of("topic")]

    def row(self, i: int) -> dict[str, int]:
        return {name: int(self.records.of(name)[i]) for name in COLUMNS}

    def bytes_of(self, i: int) -> tuple[Path, int, bytes]:
        """Return the file of a record, its place there, and its bytes."""
        row = self.row(i)
        size = SETTINGS["log_file_bytes"]
        path = self.store / "commitlog" / f"{row['position'] // size * size:020d}"
        at = row["position"] % size
        return path, at, path.read_bytes()[at : at + row["size"]]

    def put(self, path: Path, at: int, data: bytes) -> None:
        with path.open("r+b") as file:
            file.seek(at)
            file.write(data)


@pytest.fixture
def planted(alone: tuple[Path, Outcome, Notes], tmp_path: Path) -> Copy:
    return Copy(alone, tmp_path)


def test_a_good_store_has_no_violations(planted: Copy) -> None:
    assert planted.judge().violations == []


def test_a_missing_acknowledged_message_counts_as_lost(planted: Copy) -> None:
    number = planted.notes.add(Kind.DELAY_MS, topic=0, queue=0, asked_ms=1, delay_ms=1)
    planted.notes.answer(number, Fate.STORED, 2)
    assert planted.judge().counts["lost"] == 1


def test_a_record_of_an_unsent_message_counts_as_invented(planted: Copy) -> None:
    number = planted.row(planted.pick(delivered=True))["number"]
    planted.notes.count = number
    assert planted.judge().counts["invented"] > 0


def test_a_timer_that_bypassed_the_timer_is_found(planted: Copy) -> None:
    is_plain = (planted.records.of("origin") < 0) & (planted.records.of("due_ms") <= 0)
    is_mine = np.isin(planted.records.of("topic"), [planted.records.topic_row(name) for name in TOPICS])
    plain = np.flatnonzero(is_plain & is_mine & (planted.records.of("number") >= 0))
    numbers = [planted.row(int(row))["number"] for row in plain]  # a timer whose delay passed in a wait is plain too
    numbers = [number for number in numbers if planted.notes[number]["kind"] == Kind.PLAIN]
    number = numbers[len(numbers) // 2]
    planted.notes[number]["kind"], planted.notes[number]["delay_ms"] = Kind.DELAY_MS, 1
    assert planted.judge().counts["delivered past the timer"] == 1


def test_a_second_delivery_is_found(planted: Copy) -> None:
    path, _, raw = planted.bytes_of(planted.pick(delivered=True))
    row = planted.row(planted.pick(delivered=True))
    topic = planted.records.topics[row["topic"]]
    queue = planted.store / "consumequeue" / topic / str(row["queue_id"])
    file = max(path for path in queue.iterdir())
    units = np.frombuffer(file.read_bytes(), np.dtype([("position", ">i8"), ("size", ">i4"), ("tag", ">i8")]))
    written = int(np.count_nonzero(units["size"]))
    size = SETTINGS["log_file_bytes"]
    end = planted.records.end
    again = bytearray(raw)
    struct.pack_into(">qq", again, 20, int(file.name) // 20 + written, end)
    struct.pack_into(">q", again, 56, int(planted.records.of("store_ms")[-1]))
    planted.put(path.with_name(f"{end // size * size:020d}"), end % size, bytes(again))
    planted.put(file, written * 20, struct.pack(">qiq", end, len(again), 0))
    verdict = planted.judge()
    assert verdict.counts["twice"] == 1
    assert verdict.counts["origins settled twice"] == 1


def test_a_delivery_before_its_due_time_is_found(planted: Copy) -> None:
    i = planted.pick(delivered=True)
    path, at, _ = planted.bytes_of(i)
    planted.put(path, at + 56, struct.pack(">q", planted.row(i)["due_ms"] - 1))
    assert planted.judge().counts["early"] == 1


def test_a_due_time_other_than_requested_is_found(planted: Copy) -> None:
    numbers = planted.records.of("number")[planted.is_delayed() & planted.is_parked()]
    kinds = planted.notes.rows["kind"]
    number = next(int(number) for number in numbers if number >= 0 and kinds[number] == Kind.DELIVER_AT)
    planted.notes[number]["due_ms"] += 1
    assert planted.judge().counts["due at another time than asked for"] == 1


def test_a_message_that_stays_parked_is_found(planted: Copy) -> None:
    """Its release is removed from the log, with all records after it."""
    i = planted.pick(delivered=True)
    path, at, _ = planted.bytes_of(i)
    planted.put(path, at, bytes(8))
    verdict = planted.judge()
    assert verdict.counts["parked and never settled"] > 0 and verdict.counts["lost"] > 0
    assert any("units do not name" in text for text in verdict.violations)


def test_a_changed_body_is_found(planted: Copy) -> None:
    path, at, raw = planted.bytes_of(planted.pick(delivered=True))
    planted.put(path, at + 88, bytes([raw[88] ^ 1]))
    assert any("checksum" in text for text in planted.judge().violations)


def test_a_false_answer_to_a_cancel_is_found(planted: Copy) -> None:
    rows = planted.notes.rows
    cancels = np.flatnonzero((rows["kind"] == Kind.CANCEL) & (rows["fate"] == Fate.STORED))
    rows["outcome"][cancels[0]] = 3 if rows["outcome"][cancels[0]] == 1 else 1
    assert sum("says the answer" in text for text in planted.judge().violations) >= 1


# Blocks


def in_block(planted: Copy) -> int:
    """Return the number of an acknowledged and released message of a block."""
    rows = planted.notes.rows
    numbers = planted.records.of("number")[planted.records.of("origin") >> 60 == KIND_BLOCK]
    return int(next(number for number in numbers if number >= 0 and rows["origin"][number] >= 0))


def test_removed_blocks_are_judged_by_the_settling_records(planted: Copy) -> None:
    before = planted.judge().counts
    shutil.rmtree(planted.store / "scheduledtempdata")
    verdict = planted.judge()
    assert verdict.violations == []
    assert verdict.counts["blocks gone"] == before["blocks"] > 0 == verdict.counts["blocks"]
    planted.notes[in_block(planted)]["origin"] += 1 << 39
    assert planted.judge().counts["in a block elsewhere than the answer said"] == 1


def test_a_wrong_message_released_from_a_removed_block_is_found(planted: Copy) -> None:
    shutil.rmtree(planted.store / "scheduledtempdata")
    number = in_block(planted)
    planted.notes.rows["origin"][number - 1] = planted.notes[number]["origin"]
    planted.notes.rows["origin"][number] = -1
    assert planted.judge().counts["origins settled by another message"] == 1


def test_a_place_that_two_masters_gave_belongs_to_the_released_message(planted: Copy) -> None:
    """The other message at that place is lost, although it has a larger number."""
    shutil.rmtree(planted.store / "scheduledtempdata")
    number = in_block(planted)
    planted.notes.rows["origin"][number + 1] = planted.notes[number]["origin"]
    assert planted.judge().counts["origins settled by another message"] == 0


def test_a_message_at_another_place_in_its_block_is_found(planted: Copy) -> None:
    planted.notes[in_block(planted)]["origin"] += 1
    assert planted.judge().counts["in a block elsewhere than the answer said"] == 1


@pytest.mark.parametrize("byte", [7, 19], ids=["position", "due time"])
def test_a_block_unit_without_a_record_is_found(planted: Copy, byte: int) -> None:
    path = next((planted.store / "scheduledtempdata").glob("*/queue/0*0"))
    planted.put(path, byte, bytes([path.read_bytes()[byte] ^ 1]))
    assert any("units do not name its" in text for text in planted.judge().violations)


def test_a_released_flag_without_a_release_is_found(planted: Copy) -> None:
    """The release of the first flagged unit is removed from the log, with all records after it."""
    origin = next(int(one) for one in planted.records.of("origin") if one >> 60 == KIND_BLOCK)
    path, at, _ = planted.bytes_of(int(np.flatnonzero(planted.records.of("origin") == origin)[0]))
    planted.put(path, at, bytes(8))
    assert any("and not out" in text for text in planted.judge().violations)


def test_a_load_without_a_broker_sends_no_messages() -> None:
    async def attempt() -> int:
        load = Load("127.0.0.1:1", SHORT, 2000.0, 1)
        load.start()
        await load.stop()
        return load.notes.count

    assert asyncio.run(attempt()) == 0
