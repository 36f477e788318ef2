"""The turn protocol on the broker's side: lease, plan, upload, and every rejection of the check."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest

from wheelmq.delay.timer import turns as module
from wheelmq.delay.timer.rows import TurnRows
from wheelmq.delay.timer.turns import LEASE_MS, Holder, LeaseHeld, Part, Stale, TurnPlan, TurnRejected, Turns
from wheelmq.formats.disk.origin import level_origin, level_stream, timer_origin
from wheelmq.formats.disk.turn_row import KIND_INDEX, KIND_QUEUE, KIND_WALK, TURN_ROW

S = 1_800_000_000_000
P, Q = Holder("p", "1", "10.0.0.1:1"), Holder("q", "2")
UNITS = np.array([1, 0, 2], np.int32)
"""The numbers of units in the three slots that the plan scans."""


def rows(offsets: list[int], slots: list[int] | None = None, fires: list[int] | None = None) -> TurnRows:
    """Make rows in fire order. `order` leads to queue order."""
    made = np.zeros(len(offsets), TURN_ROW)
    made["origin"] = timer_origin(0) + np.array(offsets, np.int64)
    made["slot_ms"] = S + 1000 if slots is None else slots
    made["fire_ms"] = fires or 0
    made["order"] = np.argsort(offsets, kind="stable")
    return made


def plan(
    turns: Turns, index: tuple[int, int] = (10, 14), slots: int = 3, queues: tuple[tuple[int, int, int], ...] = ()
) -> TurnPlan:
    return TurnPlan(
        broker="b",
        epoch=turns.epoch,
        turn=turns.turn + 1,
        write_ms=S,
        index_from=index[0],
        index_to=index[1],
        walk_after_ms=S,
        walk_through_ms=S + 1000 * slots,
        walk_rows=3,
        timer_log_end=0,
        queues=list(queues),
    )


class Pipeline:
    """Uploads to a `Turns`, each part as a new attempt."""

    def __init__(self) -> None:
        self.turns = Turns(4, 7)
        self.epoch = self.turns.open(P, 0)
        self.attempts = 0

    def begin(self, **options: Any) -> TurnPlan:
        made = plan(self.turns, **options)
        self.turns.begin(made)
        return made

    def upload(self, kind: str, part: int, what: TurnRows, *, chunk_rows: int = 2) -> Part:
        self.attempts += 1
        raw = what.tobytes()
        size = chunk_rows * TURN_ROW.itemsize
        chunks = [raw[at : at + size] for at in range(0, len(raw), size)]
        turn = self.turns.turn + 1
        for i, chunk in enumerate(chunks):
            self.turns.upload(self.epoch, turn, (kind, part, self.attempts), i, chunk)
        return Part(kind, part, self.attempts, len(chunks), len(what), zlib.crc32(raw))

    def check(self, winners: list[Part], units: Any = UNITS) -> Any:
        return self.turns.check(self.epoch, self.turns.turn + 1, winners, units, 1000)


WALK = [S + 1000, S + 3000, S + 3000]


@pytest.fixture
def pipeline() -> Pipeline:
    made = Pipeline()
    made.begin()
    return made


class TestLease:
    def test_each_open_takes_a_new_epoch(self) -> None:
        turns = Turns(4, 0)
        assert [turns.open(P, 0), turns.open(P, 10)] == [5, 6]
        assert turns.holder == "p"

    def test_a_start_resumes_the_epoch(self) -> None:
        turns = Turns(0, 0)
        turns.resume(8, 3)
        assert (turns.open(P, 0), turns.turn) == (9, 3)

    def test_another_pipeline_waits_until_the_lease_lapses(self) -> None:
        turns = Turns(0, 0)
        epoch = turns.open(P, 0)
        with pytest.raises(LeaseHeld, match=r"'p' at 10.0.0.1:1 holds the lease and renewed it 4999 ms ago"):
            turns.open(Q, LEASE_MS - 1)
        turns.renew(epoch, 4000)
        with pytest.raises(LeaseHeld):
            turns.open(Q, 4000 + LEASE_MS - 1)
        assert turns.is_held(4000 + LEASE_MS - 1) and not turns.is_held(4000 + LEASE_MS)
        assert turns.open(Q, 4000 + LEASE_MS) == epoch + 1
        assert turns.holder == "q"

    def test_a_holder_with_the_same_name_gets_no_lease(self) -> None:
        turns = Turns(0, 0)
        epoch = turns.open(P, 0)
        for other in (Holder("p", "2"), Holder("p", "")):
            with pytest.raises(LeaseHeld, match=r"'p' at 10.0.0.1:1 holds the lease"):
                turns.open(other, LEASE_MS - 1)
        turns.renew(epoch, LEASE_MS - 1)

    def test_a_holder_without_an_id_waits_for_its_own_lease(self) -> None:
        turns, old = Turns(0, 0), Holder("p", "")
        turns.open(old, 0)
        with pytest.raises(LeaseHeld):
            turns.open(old, LEASE_MS - 1)
        assert turns.open(old, LEASE_MS) == 2

    @pytest.mark.parametrize("change", [-1, 1])
    def test_a_renewal_of_another_epoch_is_stale(self, change: int) -> None:
        turns = Turns(0, 0)
        epoch = turns.open(P, 0)
        with pytest.raises(Stale, match=f"the last epoch is {epoch}"):
            turns.renew(epoch + change, 1)

    def test_a_lease_that_was_never_opened_cannot_be_renewed(self) -> None:
        turns = Turns(3, 0)
        assert not turns.is_held(0)
        with pytest.raises(Stale):
            turns.renew(3, 0)

    def test_the_holder_may_renew_a_lapsed_lease_that_is_free(self) -> None:
        turns = Turns(0, 0)
        turns.renew(turns.open(P, 0), 10 * LEASE_MS)
        assert turns.is_held(10 * LEASE_MS)

    def test_an_open_drops_the_plan_and_the_uploads(self, pipeline: Pipeline) -> None:
        pipeline.upload(KIND_INDEX, 0, rows([10, 11]))
        old = pipeline.epoch
        pipeline.epoch = pipeline.turns.open(P, 1)
        assert pipeline.turns.plan is None
        with pytest.raises(Stale):
            pipeline.upload(KIND_INDEX, 0, rows([10, 11]))
        with pytest.raises(Stale):
            pipeline.turns.check(old, 8, [], UNITS, 1000)


class TestUpload:
    @pytest.mark.parametrize(("epoch", "turn"), [(4, 8), (6, 8), (5, 7), (5, 9)])
    def test_an_upload_to_another_turn_is_stale(self, pipeline: Pipeline, epoch: int, turn: int) -> None:
        with pytest.raises(Stale, match="is not the running turn"):
            pipeline.turns.upload(epoch, turn, (KIND_INDEX, 0, 1), 0, rows([10]).tobytes())

    def test_an_upload_without_a_plan_is_stale(self) -> None:
        pipeline = Pipeline()
        with pytest.raises(Stale):
            pipeline.upload(KIND_INDEX, 0, rows([10]))

    @pytest.mark.parametrize("count", [1, TURN_ROW.itemsize - 1, TURN_ROW.itemsize + 1])
    def test_an_upload_of_incomplete_rows_is_rejected(self, pipeline: Pipeline, count: int) -> None:
        with pytest.raises(TurnRejected, match="not whole rows"):
            pipeline.turns.upload(pipeline.epoch, 8, (KIND_INDEX, 0, 1), 0, bytes(count))

    def test_uploads_above_the_limit_are_rejected(self, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "UPLOAD_BYTES_MAX", 3 * TURN_ROW.itemsize)
        pipeline.upload(KIND_INDEX, 0, rows([10, 11, 12]))
        with pytest.raises(TurnRejected, match="exceed"):
            pipeline.upload(KIND_INDEX, 1, rows([13]))

    def test_a_repeated_chunk_counts_once(self, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "UPLOAD_BYTES_MAX", 4 * TURN_ROW.itemsize)
        raw = rows([10, 11]).tobytes()
        for _ in range(3):
            pipeline.turns.upload(pipeline.epoch, 8, (KIND_INDEX, 0, 1), 0, raw)
        pipeline.turns.upload(pipeline.epoch, 8, (KIND_INDEX, 1, 1), 0, rows([12, 13]).tobytes())


class TestCheck:
    def test_complete_parts_pass_the_check(self, pipeline: Pipeline) -> None:
        index = pipeline.upload(KIND_INDEX, 0, rows([12, 10, 13, 11]))
        walk = pipeline.upload(KIND_WALK, 1, rows([3, 1, 2], WALK))
        proposal = pipeline.check([walk, index])
        assert [(part["origin"] - timer_origin(0)).tolist() for part in proposal.index_parts] == [[12, 10, 13, 11]]
        assert [(part["origin"] - timer_origin(0)).tolist() for part in proposal.walk_parts] == [[3, 1, 2]]
        pipeline.turns.finish()
        assert (pipeline.turns.turn, pipeline.turns.plan) == (8, None)

    def test_parts_of_several_attempts_pass_the_check(self, pipeline: Pipeline) -> None:
        pipeline.upload(KIND_INDEX, 0, rows([10]))  # an attempt that lost
        winners = [
            pipeline.upload(KIND_INDEX, 1, rows([13, 12])),
            pipeline.upload(KIND_INDEX, 0, rows([10, 11]), chunk_rows=1),
            pipeline.upload(KIND_WALK, 3, rows([5, 6], WALK[1:])),
            pipeline.upload(KIND_WALK, 2, rows([4], WALK[:1])),
        ]
        proposal = pipeline.check(winners)
        assert [(part["origin"] - timer_origin(0)).tolist() for part in proposal.index_parts] == [[10, 11], [13, 12]]

    def test_a_part_without_rows_passes_the_check(self, pipeline: Pipeline) -> None:
        winners = [
            pipeline.upload(KIND_INDEX, 0, rows([10, 11, 12, 13])),
            pipeline.upload(KIND_WALK, 1, rows([1, 2, 3], WALK)),
            Part(KIND_WALK, 2, 99, 0, 0, 0),
        ]
        pipeline.check(winners)

    @pytest.mark.parametrize(
        "offsets",
        [
            [],
            [10, 11, 12],
            [11, 12, 13],
            [10, 11, 12, 13, 14],
            [10, 11, 11, 13],
            [10, 10, 11, 12],
            [9, 10, 11, 12],
            [10, 12, 13, 14],
            [0, 1, 2, 3],
        ],
    )
    def test_missing_or_repeated_queue_offsets_are_rejected(self, pipeline: Pipeline, offsets: list[int]) -> None:
        winners = [
            pipeline.upload(KIND_INDEX, 0, rows(offsets)),
            pipeline.upload(KIND_WALK, 1, rows([1, 2, 3], WALK)),
        ]
        with pytest.raises(TurnRejected, match="index: the rows"):
            pipeline.check(winners)

    def test_overlapping_parts_are_rejected(self, pipeline: Pipeline) -> None:
        walk = pipeline.upload(KIND_WALK, 2, rows([1, 2, 3], WALK))
        first = pipeline.upload(KIND_INDEX, 0, rows([10, 11, 12]))
        for second in ([12, 13], [13], [11, 12, 13]):
            winners = [walk, first, pipeline.upload(KIND_INDEX, 1, rows(second))]
            if second == [13]:
                pipeline.check(winners)
            else:
                with pytest.raises(TurnRejected):
                    pipeline.check(winners)

    @pytest.mark.parametrize("order", [[0, 1, 2, 4], [-1, 1, 2, 3], [1, 0, 2, 3], [0, 0, 1, 2]])
    def test_a_wrong_order_is_rejected(self, pipeline: Pipeline, order: list[int]) -> None:
        wrong = rows([10, 11, 12, 13])
        wrong["order"] = order
        winners = [pipeline.upload(KIND_INDEX, 0, wrong), pipeline.upload(KIND_WALK, 1, rows([1, 2, 3], WALK))]
        with pytest.raises(TurnRejected, match="index"):
            pipeline.check(winners)

    @pytest.mark.parametrize(
        "slots",
        [
            [],
            WALK[:2],
            [*WALK, S + 1000],
            [S + 1000, S + 2000, S + 3000],
            [S, S + 3000, S + 3000],
            [S + 1000, S + 3000, S + 4000],
            [S + 1000, S + 3000, S - 10**15],
        ],
    )
    def test_slots_with_a_wrong_number_of_rows_are_rejected(self, pipeline: Pipeline, slots: list[int]) -> None:
        winners = [
            pipeline.upload(KIND_INDEX, 0, rows([10, 11, 12, 13])),
            pipeline.upload(KIND_WALK, 1, rows(list(range(len(slots))), slots)),
        ]
        with pytest.raises(TurnRejected, match="walk"):
            pipeline.check(winners)

    def test_a_part_named_twice_is_rejected(self, pipeline: Pipeline) -> None:
        index = pipeline.upload(KIND_INDEX, 0, rows([10, 11, 12, 13]))
        walk = pipeline.upload(KIND_WALK, 1, rows([1, 2, 3], WALK))
        for winners in ([index, walk, walk], [index, index, walk]):
            with pytest.raises(TurnRejected):
                pipeline.check(winners)

    @pytest.mark.parametrize("change", [{"crc": 1}, {"rows": 3}, {"rows": 5}, {"chunks": 1}, {"chunks": 3}])
    def test_a_winner_that_differs_from_its_upload_is_rejected(
        self, pipeline: Pipeline, change: dict[str, int]
    ) -> None:
        index = pipeline.upload(KIND_INDEX, 0, rows([10, 11, 12, 13]))
        walk = pipeline.upload(KIND_WALK, 1, rows([1, 2, 3], WALK))
        fields = {name: getattr(index, name) for name in index.__struct_fields__}
        wrong = Part(**{**fields, **change})
        with pytest.raises(TurnRejected):
            pipeline.check([wrong, walk])
        pipeline.check([index, walk])  # the rejection changed nothing

    def test_a_winner_without_an_upload_is_rejected(self, pipeline: Pipeline) -> None:
        with pytest.raises(TurnRejected, match="attempt 99 uploaded nothing"):
            pipeline.check([Part(KIND_INDEX, 0, 99, 1, 4, 0)])

    def test_chunks_with_a_gap_are_rejected(self, pipeline: Pipeline) -> None:
        key = (KIND_INDEX, 0, 5)
        for chunk, what in ((0, rows([10, 11])), (2, rows([12, 13]))):
            pipeline.turns.upload(pipeline.epoch, 8, key, chunk, what.tobytes())
        raw = rows([10, 11]).tobytes() + rows([12, 13]).tobytes()
        with pytest.raises(TurnRejected):
            pipeline.check([Part(*key, 2, 4, zlib.crc32(raw))])

    @pytest.mark.parametrize(("epoch", "turn"), [(4, 8), (6, 8), (5, 7), (5, 9)])
    def test_a_check_of_another_turn_is_stale(self, pipeline: Pipeline, epoch: int, turn: int) -> None:
        with pytest.raises(Stale):
            pipeline.turns.check(epoch, turn, [], UNITS, 1000)

    def test_a_plan_without_slots_rejects_walk_rows(self) -> None:
        pipeline = Pipeline()
        pipeline.begin(slots=0)
        index = pipeline.upload(KIND_INDEX, 0, rows([10, 11, 12, 13]))
        pipeline.check([index], np.zeros(0, np.int32))
        walk = pipeline.upload(KIND_WALK, 1, rows([1], [S + 1000]))
        with pytest.raises(TurnRejected):
            pipeline.check([index, walk], np.zeros(0, np.int32))


class TestQueues:
    """Ranges of two levels: [7, 9) of level 1 and [0, 3) of level 3."""

    QUEUES = ((level_stream(1), 7, 9), (level_stream(3), 0, 3))
    ALL = (level_origin(1, 7), level_origin(1, 8), level_origin(3, 0), level_origin(3, 1), level_origin(3, 2))

    @pytest.fixture
    def pipeline(self) -> Pipeline:
        made = Pipeline()
        made.begin(index=(10, 10), slots=0, queues=self.QUEUES)
        return made

    def of(self, *origins: int) -> TurnRows:
        made = rows(list(range(len(origins))), fires=[0] * len(origins))
        made["origin"] = origins
        made["order"] = np.argsort(made["origin"], kind="stable")
        return made

    @pytest.mark.parametrize("cut", range(6))
    def test_complete_queue_parts_pass_the_check(self, pipeline: Pipeline, cut: int) -> None:
        """The rows come in two parts, and in any order within a part."""
        parts = [self.of(*self.ALL[:cut][::-1]), self.of(*self.ALL[cut:][::-1])]
        winners = [pipeline.upload(KIND_QUEUE, i, part) for i, part in enumerate(parts)]
        proposal = pipeline.check(winners, UNITS[:0])
        assert [len(part) for part in proposal.queue_parts] == [cut, 5 - cut]

    @pytest.mark.parametrize(
        "origins",
        [
            (),
            ALL[:4],
            ALL[1:],
            (*ALL, level_origin(3, 3)),
            (*ALL[:2], *ALL[3:], level_origin(3, 3)),
            (*ALL[:4], ALL[3]),
            (timer_origin(7), timer_origin(8), *ALL[2:]),
        ],
    )
    def test_incomplete_or_foreign_queue_rows_are_rejected(self, pipeline: Pipeline, origins: tuple[int, ...]) -> None:
        winner = pipeline.upload(KIND_QUEUE, 0, self.of(*origins))
        with pytest.raises(TurnRejected, match=KIND_QUEUE):
            pipeline.check([winner], UNITS[:0])

    @pytest.mark.parametrize("order", [-1, 5, 0])
    def test_a_wrong_order_of_queue_rows_is_rejected(self, pipeline: Pipeline, order: int) -> None:
        wrong = self.of(*self.ALL)
        wrong["order"][4] = order
        with pytest.raises(TurnRejected, match=KIND_QUEUE):
            pipeline.check([pipeline.upload(KIND_QUEUE, 0, wrong)], UNITS[:0])

    def test_queue_parts_in_another_order_are_rejected(self, pipeline: Pipeline) -> None:
        winners = [
            pipeline.upload(KIND_QUEUE, i, self.of(*part)) for i, part in enumerate((self.ALL[2:], self.ALL[:2]))
        ]
        with pytest.raises(TurnRejected, match=KIND_QUEUE):
            pipeline.check(winners, UNITS[:0])

    def test_an_unknown_kind_is_rejected(self, pipeline: Pipeline) -> None:
        with pytest.raises(TurnRejected, match="'other' is not a kind"):
            pipeline.check([Part("other", 0, 1, 0, 0, 0)], UNITS[:0])
