"""The slot of a row, compared with TimerMessageStore.doEnqueue, and the rows that tasks read from the files."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wheelmq.delay.refs import LONG_DELAY_MS
from wheelmq.delay.timer import staging
from wheelmq.delay.timer.staging import decide
from wheelmq.delay.timer.view import StoreUnreadable
from wheelmq.formats.disk.origin import INDEX_MASK, NO_ORIGIN, level_origin, level_stream, timer_origin
from wheelmq.formats.disk.timer import MAGIC_DELETE, MAGIC_ROLL, TIMER_SLOT, TIMER_UNIT
from wheelmq.formats.disk.turn_row import INDEX, QUEUE, STAGED_ROW, WALK
from wheelmq.formats.wire.portions import FileKind
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel

W = 1_800_000_000_000
"""The write time of the turn."""


def staged(*rows: dict[str, int]) -> Any:
    made = np.zeros(len(rows), STAGED_ROW)
    made["magic"], made["write_ms"], made["store_ms"] = 1, W, W - 500
    for i, row in enumerate(rows):
        for name, value in row.items():
            made[i][name] = value
    return made


def apache_slot(out_ms: int, write_ms: int, window_slots: int, precision_ms: int) -> tuple[int, bool]:
    """Return slot time and roll as doEnqueue of 5.3.3 computes them."""
    if out_ms - write_ms < window_slots * precision_ms:
        return out_ms, False
    if out_ms - write_ms - window_slots * precision_ms < window_slots // 3 * precision_ms:
        return write_ms + window_slots // 2 * precision_ms, True
    return write_ms + window_slots * precision_ms, True


@pytest.mark.parametrize(
    ("out_s", "slot_s", "rolls"),
    [
        (-5, -5, False),
        (0, 0, False),
        (19, 19, False),
        (20, 10, True),  # exactly the window: it rolls by half, to leave time for the next roll
        (25, 10, True),
        (26, 20, True),
        (1000, 20, True),
    ],
)
def test_a_window_of_20_slots_determines_slot_and_roll(out_s: int, slot_s: int, rolls: bool) -> None:
    due_ms = W + 1000 * out_s + 250
    (row,) = decide(staged({"out_ms": W + 1000 * out_s, "due_ms": due_ms}), 20_000, 1000)
    assert row["slot_ms"] == W + 1000 * slot_s
    assert bool(row["magic"] & MAGIC_ROLL) is rolls
    assert row["fire_ms"] == (W + 1000 * slot_s + 1 if rolls else due_ms)
    assert (row["slot_ms"], rolls) == apache_slot(W + 1000 * out_s, W, 20, 1000)


@settings(max_examples=200, deadline=None)
@given(
    out=st.integers(-50, 400),
    window_slots=st.integers(1, 60),
    precision_ms=st.sampled_from([100, 200, 500, 1000]),
)
def test_slots_and_rolls_follow_the_rule_of_apache(out: int, window_slots: int, precision_ms: int) -> None:
    out_ms = W + out * precision_ms
    (row,) = decide(staged({"out_ms": out_ms, "due_ms": out_ms + 1}), window_slots * precision_ms, precision_ms)
    assert (row["slot_ms"], bool(row["magic"] & MAGIC_ROLL)) == apache_slot(out_ms, W, window_slots, precision_ms)


def test_a_walked_row_keeps_its_slot_and_its_magic() -> None:
    rows = staged(
        {"kind": WALK, "out_ms": W + 90_000, "due_ms": W + 90_500},
        {"kind": WALK, "out_ms": W + 1000, "due_ms": W + 90_500, "magic": 1 | MAGIC_ROLL},
    )
    rolling, plain = decide(rows, 20_000, 1000)
    assert (rolling["slot_ms"], rolling["fire_ms"], rolling["magic"]) == (W + 1000, W + 1001, 3)
    assert (plain["slot_ms"], plain["fire_ms"], plain["magic"]) == (W + 90_000, W + 90_500, 1)


def test_a_delete_rolls_like_its_message() -> None:
    (row,) = decide(staged({"out_ms": W + 90_000, "magic": 1 | MAGIC_DELETE}), 20_000, 1000)
    assert row["magic"] == 1 | MAGIC_ROLL | MAGIC_DELETE


def test_rows_are_sorted_by_fire_time_and_have_their_queue_order() -> None:
    rows = staged(
        *({"origin": i, "out_ms": W, "due_ms": due} for i, due in enumerate([W + 30, W + 10, W + 30, W + 20]))
    )
    made = decide(rows, 20_000, 1000)
    assert made["fire_ms"].tolist() == [W + 10, W + 20, W + 30, W + 30]
    assert made["origin"].tolist() == [1, 3, 0, 2]
    assert made["origin"][made["order"]].tolist() == [0, 1, 2, 3]
    assert made["delay_ms"].tolist() == [510, 520, 530, 530]


def test_no_rows_are_decided_as_no_rows() -> None:
    assert len(decide(staged(), 20_000, 1000)) == 0


class Unreadable:
    """A log that cannot be read."""

    file_bytes = 1 << 20
    end = 1 << 62

    def __init__(self, start: int) -> None:
        self.start = start

    def file_at(self, position: int) -> Any:
        raise AssertionError(position)

    def read(self, position: int, size: int) -> Any:
        raise AssertionError(position)


class TestReading:
    @pytest.fixture
    def model(self, harness: BrokerHarness) -> PipelineModel:
        made = PipelineModel(harness)
        made.open()
        return made

    def test_index_rows_have_the_fields_of_their_records(self, harness: BrokerHarness, model: PipelineModel) -> None:
        delays = [100, 7_250, 90_000]
        for i, delay_ms in enumerate(delays):
            harness.send("T", delay_ms=delay_ms, queue_id=i)
        read = staging.read_index(model.view(), 0, 3, write_ms=W, turn=9)
        assert (read["origin"] & INDEX_MASK).tolist() == [0, 1, 2]
        assert read["due_ms"].tolist() == [harness.now_ms + delay_ms for delay_ms in delays]
        assert read["out_ms"].tolist() == [(harness.now_ms + delay_ms) // 1000 * 1000 for delay_ms in delays]
        assert set(read["store_ms"].tolist()) == {harness.now_ms}
        assert set(read["topic_hash"].tolist()) == {ord("T")}
        assert (read["write_ms"].tolist(), read["turn"].tolist()) == ([W] * 3, [9] * 3)
        assert (read["kind"] == INDEX).all() and read["magic"].tolist() == [1, 1, 1]
        part = staging.read_index(model.view(), 1, 3, write_ms=W, turn=9)
        assert (part == read[1:]).all()

    def test_a_cancel_has_the_delete_flag(self, harness: BrokerHarness, model: PipelineModel) -> None:
        harness.send("T", delay_ms=5000, properties={"TIMER_DEL_UNIQKEY": "T+K"})
        assert staging.read_index(model.view(), 0, 1, write_ms=W, turn=1)["magic"].tolist() == [5]

    def test_index_rows_are_read_across_queue_files(self, harness: BrokerHarness, model: PipelineModel) -> None:
        for _ in range(310):
            harness.submit(harness.send_command("T", delay_ms=50_000))
        harness.tick()
        read = staging.read_index(model.view(), 290, 310, write_ms=W, turn=1)
        assert (read["origin"] & INDEX_MASK).tolist() == list(range(290, 310))

    def test_walk_rows_are_those_of_the_scanned_slots(self, harness: BrokerHarness, model: PipelineModel) -> None:
        for i in range(250):  # over the border of a timer log file
            harness.submit(harness.send_command("T", delay_ms=10_000 + i % 3 * 1000))
        harness.advance(4000, model.work, 500)
        assert model.committed == 1
        out_ms = (harness.now_ms - 4000 + 10_000) // 1000 * 1000
        options = {"log_end": harness.broker.parts.timer.log.end, "precision_ms": 1000, "write_ms": W, "turn": 1}
        read = staging.read_walk(model.view(), out_ms - 1000, out_ms + 1000, **options)
        assert len(read) == 84 + 83
        assert sorted((read["origin"] & INDEX_MASK).tolist()) == [i for i in range(250) if i % 3 < 2]
        assert (read["kind"] == WALK).all() and set(read["out_ms"].tolist()) == {out_ms, out_ms + 1000}
        assert len(staging.read_walk(model.view(), out_ms - 5000, out_ms - 1000, **options)) == 0
        cut = staging.read_walk(model.view(), out_ms - 1000, out_ms + 1000, **{**options, "log_end": 52 * 3})
        assert sorted((cut["origin"] & INDEX_MASK).tolist()) == [0, 1]

    @pytest.mark.parametrize("over_the_wire", [False, True])
    @pytest.mark.parametrize("older", [None, 1, 3], ids=["details", "no details", "some details"])
    def test_a_walk_reads_records_only_for_units_without_a_detail(
        self, harness: BrokerHarness, over_the_wire: bool, older: int | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        start_ms = harness.now_ms
        delays_ms = [7000 + 321 * i for i in range(30)]
        for delay_ms in delays_ms:
            harness.send("TU"[delay_ms % 2], delay_ms=delay_ms)
        harness.send("T", deliver_ms=start_ms + 40_123)  # it rolls
        harness.send("T", delay_ms=9000, properties={"TIMER_DEL_UNIQKEY": "T+K"})
        harness.advance(4000, PipelineModel(harness).work, 500)
        model = PipelineModel(harness, over_the_wire=over_the_wire)
        if older is not None:
            log = harness.broker.parts.timer.log
            [(_, units)] = log.chunks(0, log.end)
            units["reserved"][::older] = 0
        harness.advance(20_000)
        model.open()
        plan = model.plan()
        view = model.wire_view(plan.turn) if over_the_wire and plan is not None else model.view()
        needed: list[FileKind] = []
        need = view.need

        def noted(kind: FileKind, positions: Any, sizes: Any, name: str = "") -> None:
            needed.append(kind)
            need(kind, positions, sizes, name)

        monkeypatch.setattr(view, "need", noted)
        if older is None:
            monkeypatch.setattr(view, "log", Unreadable(view.log.start))
        options = {"log_end": 1 << 40, "precision_ms": 1000, "write_ms": W, "turn": 1}
        read = staging.read_walk(view, start_ms - 1000, start_ms + 60_000, **options)
        assert (FileKind.RECORD in needed) is (older is not None)
        rows = {int(row["origin"]) & INDEX_MASK: row for row in read}
        assert len(rows) == len(read) == 32
        assert [int(rows[i]["due_ms"]) for i in range(30)] == [start_ms + delay_ms for delay_ms in delays_ms]
        assert [int(rows[i]["topic_hash"]) for i in range(30)] == [ord("TU"[delay_ms % 2]) for delay_ms in delays_ms]
        is_long = read["due_ms"] - read["store_ms"] > LONG_DELAY_MS
        assert is_long.all() and rows[30]["magic"] == 1 | MAGIC_ROLL and rows[31]["magic"] == 1 | MAGIC_DELETE
        made = {int(row["origin"]) & INDEX_MASK: row for row in decide(read, 20_000, 1000)}
        assert [int(made[i]["fire_ms"]) for i in range(30)] == [start_ms + delay_ms for delay_ms in delays_ms]
        assert made[30]["fire_ms"] == rows[30]["out_ms"] + 1

    @pytest.mark.parametrize("over_the_wire", [False, True])
    def test_queue_rows_have_the_due_times_of_their_levels(self, harness: BrokerHarness, over_the_wire: bool) -> None:
        harness.restart(timer_lead_ms=15_000)
        model = PipelineModel(harness, over_the_wire=over_the_wire)
        model.open()
        due_ms = []
        for i in range(6):
            harness.send("T", b"%d" % i, properties={"DELAY": str(2 + i % 2)})
            due_ms.append(harness.now_ms + (5000, 10_000)[i % 2])
            harness.advance(10)
        plan = model.plan()
        assert plan is not None and plan.queues == [(level_stream(2), 0, 3), (level_stream(3), 0, 3)]
        assert model.terms is not None
        options = {"now_ms": plan.now_ms, "levels_ms": model.terms["levels_ms"], "turn": 4}
        view = model.wire_view(plan.turn) if over_the_wire else model.view()
        read = staging.read_queues(view, plan.queues, **options)
        assert read["origin"].tolist() == [level_origin(level, i) for level in (2, 3) for i in range(3)]
        assert read["due_ms"].tolist() == due_ms[::2] + due_ms[1::2]
        assert (read["store_ms"] - read["due_ms"]).tolist() == [-5000] * 3 + [-10_000] * 3
        assert set(read["topic_hash"].tolist()) == {ord("T")} and set(read["kind"].tolist()) == {QUEUE}
        made = decide(read, 2 * 24 * 3_600_000, 1000)
        assert made["fire_ms"].tolist() == sorted(due_ms) and set(made["magic"].tolist()) == {1}
        (part,) = staging.read_queues(view, [(level_stream(3), 1, 2)], **options)
        assert part == read[4]
        cut = staging.read_queues(view, [(level_stream(2), 0, 1)], **{**options, "now_ms": plan.now_ms - 1_000_000})
        assert cut["due_ms"].tolist() == [plan.now_ms - 1_000_000]  # due later than its level allows

    def test_ranges_of_queues_are_split_into_pieces(self) -> None:
        queues = [(1, 10, 13), (2, 0, 5), (3, 7, 8)]
        assert staging.pieces(queues, 0, 9) == queues
        assert staging.pieces(queues, 2, 5) == [(1, 12, 13), (2, 0, 2)]
        assert staging.pieces(queues, 8, 9) == [(3, 7, 8)]
        assert staging.pieces(queues, 3, 3) == []

    @pytest.mark.parametrize("listed", ["before", "after"])
    def test_a_walk_has_rows_for_expired_records(
        self, harness: BrokerHarness, model: PipelineModel, listed: str
    ) -> None:
        harness.send("T", b"gone", delay_ms=10_000)
        harness.send("Other", b"creates the topic")
        for _ in range(300):  # they fill the first log file
            harness.submit(harness.send_command("Other", bytes(4000)))
        harness.send("T", b"there", delay_ms=10_000)
        harness.advance(4000, model.work, 500)
        out_ms = (harness.now_ms - 4000 + 10_000) // 1000 * 1000
        view = model.view()
        remove = harness.broker.parts.store.log.files.drop_before(1 << 20)
        assert remove is not None
        remove()
        if listed == "after":
            view = model.view()
        options = {"log_end": 1 << 40, "precision_ms": 1000, "write_ms": W, "turn": 1}
        read = staging.read_walk(view, out_ms - 2000, out_ms, **options)
        expired = timer_origin(0) if listed == "before" else NO_ORIGIN  # its detail still names it
        assert read["origin"].tolist() == [expired, timer_origin(1)]
        with pytest.raises(StoreUnreadable, match="is before the start of the log"):
            staging.read_index(view, 0, 1, write_ms=W, turn=1)

    def test_a_slot_of_another_round_is_ignored(self, harness: BrokerHarness, model: PipelineModel) -> None:
        harness.send("T", delay_ms=10_000)
        harness.advance(4000, model.work, 500)
        out_ms = (harness.now_ms - 4000 + 10_000) // 1000 * 1000 + 120_000  # the wheel has 120 slots
        options = {"log_end": 1 << 40, "precision_ms": 1000, "write_ms": W, "turn": 1}
        assert len(staging.read_walk(model.view(), out_ms - 1000, out_ms, **options)) == 0

    def test_a_record_that_differs_from_its_unit_is_unreadable(
        self, harness: BrokerHarness, model: PipelineModel
    ) -> None:
        harness.send("T", delay_ms=10_000)
        harness.send("T", delay_ms=10_000)
        view = model.view()
        unit = np.frombuffer(harness.broker.parts.timer.queue.files.file_at(0).view, staging.QUEUE_UNIT.dtype, 2)
        harness.broker.parts.store.log.files.file_at(0).view[4] = 0
        with pytest.raises(StoreUnreadable, match="has no record"):
            staging.read_index(view, 0, 1, write_ms=W, turn=1)
        at = int(unit[1]["position"])
        harness.broker.parts.store.log.files.file_at(0).view[at + 28 : at + 36] = bytes(8)
        with pytest.raises(StoreUnreadable, match="has another record"):
            staging.read_index(view, 1, 2, write_ms=W, turn=1)

    def test_a_broken_chain_is_unreadable(self, harness: BrokerHarness, model: PipelineModel) -> None:
        harness.send("T", delay_ms=10_000)
        harness.send("T", delay_ms=10_000)
        harness.advance(4000, model.work, 500)
        harness.broker.parts.timer.log.files.file_at(0).view[3] = 51
        out_ms = (harness.now_ms - 4000 + 10_000) // 1000 * 1000
        with pytest.raises(StoreUnreadable, match="broken"):
            staging.read_walk(
                model.view(), out_ms - 1000, out_ms, log_end=1 << 40, precision_ms=1000, write_ms=W, turn=1
            )

    @pytest.mark.kernels
    @pytest.mark.parametrize("link", ["to the newest unit", "to itself", "to a place that cannot be"])
    def test_a_cycle_of_links_is_unreadable(self, harness: BrokerHarness, model: PipelineModel, link: str) -> None:
        harness.send("T", delay_ms=10_000)
        harness.send("T", delay_ms=10_000)
        harness.advance(4000, model.work, 500)
        target = {"to the newest unit": TIMER_UNIT.size, "to itself": 0, "to a place that cannot be": -7}[link]
        at = TIMER_UNIT.position_of("previous_position")
        harness.broker.parts.timer.log.files.file_at(0).view[at : at + 8] = target.to_bytes(8, "big", signed=True)
        out_ms = (harness.now_ms - 4000 + 10_000) // 1000 * 1000
        for log_end in (1 << 40, 0):
            with pytest.raises(StoreUnreadable, match="broken"):
                staging.units_of_slots(model.view(), out_ms // 1000 - 1, out_ms // 1000, log_end)

    def test_a_wheel_of_another_size_is_rejected(self, harness: BrokerHarness, model: PipelineModel) -> None:
        assert model.terms is not None
        model.terms["timer_slots"] += 1
        with pytest.raises(OSError, match=f"where {122 * TIMER_SLOT.size} are expected"):
            model.view()
