"""A store that is read over the wire gives the same rows as its files, or none."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from wheelmq.broker.store_sizes import store_sizes
from wheelmq.delay.timer import portions, staging
from wheelmq.delay.timer.portions import OnDisk, PortionReader, read_portion
from wheelmq.delay.timer.turns import TurnPlan
from wheelmq.delay.timer.view import TIMER_QUEUE, ReadView, StoreUnreadable, StoreView, sees_store
from wheelmq.delay.timer.wire_view import Segment, WireView
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.portions import RANGE, FileKind, PortionError, Ranges, ranges_of
from wheelmq.system.workers import InlineWorker
from wheelmq.testing import invariants
from wheelmq.testing.disk import SimulatedDisk
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel, lease_token
from wheelmq.testing.workers import HeldWorker

V6 = bytes(range(16))


@pytest.fixture
def model(harness: BrokerHarness) -> PipelineModel:
    made = PipelineModel(harness, over_the_wire=True)
    made.open()
    return made


def rows_of(view: ReadView, plan: TurnPlan, precision_ms: int = 1000) -> list[Any]:
    """Return all rows that the tasks of a plan read."""
    some = {"write_ms": plan.write_ms, "turn": plan.turn}
    index = staging.read_index(view, plan.index_from, plan.index_to, **some)
    span = {"log_end": plan.timer_log_end, "precision_ms": precision_ms, **some}
    walk = staging.read_walk(view, plan.walk_after_ms, plan.walk_through_ms, **span)
    return [index.tolist(), walk.tolist()]


def some_sends(harness: BrokerHarness, random: Random) -> None:
    """Send parked messages of all sizes from several addresses, among messages that are not parked."""
    connections = [harness.connect(), harness.connect(V6)]
    for _ in range(random.randrange(1, 40)):
        body = random.randbytes(random.choice([0, 1, 20, 300, 5000]))
        delay_ms = random.choice([None, 2500, 4000, 9_000, 15_000, 70_000])
        extra = {"TIMER_DEL_UNIQKEY": "T+K"} if delay_ms and random.random() < 0.1 else {}
        command = harness.send_command("T", body, queue_id=random.randrange(4), delay_ms=delay_ms, properties=extra)
        harness.submit(command, random.choice(connections))
    harness.tick()


@given(seed=st.integers(0, 1 << 30), portion_bytes=st.sampled_from([6000, 20_000, 1 << 20]))
@settings(max_examples=15, deadline=None)
def test_the_wire_gives_the_rows_of_the_files(
    tmp_path_factory: pytest.TempPathFactory, seed: int, portion_bytes: int
) -> None:
    random = Random(seed)
    with (
        pytest.MonkeyPatch.context() as patch,
        BrokerHarness(tmp_path_factory.mktemp("store"), seed=seed) as harness,
    ):
        patch.setattr(portions, "PORTION_BYTES_MAX", portion_bytes)
        model = PipelineModel(harness)
        model.open()
        rows, turns = [0, 0], 0
        while turns < 6:
            some_sends(harness, random)
            harness.advance(1000)
            plan = model.plan()
            if plan is None:
                continue
            wire = rows_of(model.wire_view(plan.turn), plan)
            assert wire == rows_of(model.view(), plan)
            rows = [rows[0] + len(wire[0]), rows[1] + len(wire[1])]
            model.commit(plan, [model.hand_over(plan, task) for task in model.read(plan)])
            turns += 1
        assert rows[0]
        event(f"walked some: {rows[1] > 0}")
        assert model.portions, "they came over the wire"


def test_turns_over_the_wire_deliver_messages(harness: BrokerHarness, model: PipelineModel) -> None:
    for i in range(40):
        harness.send("T", b"%d" % i + bytes(2000), delay_ms=1000 * (i % 20 + 2))
    harness.advance(25_000, model.work, 500)
    assert sorted(body.rstrip(b"\0") for body in harness.bodies("T")) == sorted(b"%d" % i for i in range(40))
    assert model.committed and model.portions
    assert harness.broker.parts.pipeline.reader.bytes_read > 0
    invariants.check(harness.broker)


def test_bodies_are_not_sent_over_the_wire(harness: BrokerHarness, model: PipelineModel) -> None:
    for _ in range(20):
        harness.send("T", bytes(20_000), delay_ms=9000)
    harness.advance(4000, model.work, 500)
    assert model.committed == 1
    assert 20 * 100 < harness.broker.parts.pipeline.reader.bytes_read < 20 * 500


KINDS = [kind for kind in FileKind if kind is not FileKind.BLOCK]
"""The kinds of files that a turn over the timer needs. tests/unit/delay/blocks covers those of blocks."""


class TestInvalidAnswers:
    """A damaged, short or unrelated answer fails the task."""

    @pytest.fixture
    def plan(self, harness: BrokerHarness) -> TurnPlan:
        """A plan that indexes thirty rows and scans the same rows."""
        for i in range(30):
            harness.send("T", b"%d" % i, delay_ms=9000 + i)
        harness.advance(4000, PipelineModel(harness).work, 500)
        timer = harness.broker.parts.timer
        assert timer.indexed_to == 30
        now_ms = harness.now_ms // 1000 * 1000
        return TurnPlan("", 2, 2, now_ms, 0, 30, now_ms, now_ms + 9000, 30, timer.log.end)

    @staticmethod
    def view(harness: BrokerHarness, plan: TurnPlan, bend: Any) -> WireView:
        """Return a view over answers that `bend` changes."""
        chosen = harness.broker.parts.settings
        sizes = store_sizes(chosen)
        files = StoreView(chosen.store.path, sizes)

        def ask(kind: FileKind, name: str, ranges: Ranges) -> Segment:
            found = read_portion(files, kind, name, ranges, OnDisk(files.log.end, plan.timer_log_end))
            told = Segment(found.body, found.covered, zlib.crc32(found.body), files.log.start, files.log.end)
            return bend(kind, told) if len(ranges) else told

        return WireView(ask, sizes)

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_flipped_bit_is_detected(self, harness: BrokerHarness, plan: TurnPlan, kind: FileKind) -> None:
        whole = rows_of(self.view(harness, plan, lambda _, told: told), plan)
        assert len(whole[0]) == len(whole[1]) == 30

        def flip(of: FileKind, told: Segment) -> Segment:
            at = len(told.body) // 2
            changed = told.body[:at] + bytes([told.body[at] ^ 1]) + told.body[at + 1 :]
            return told._replace(body=changed) if of == kind else told

        with pytest.raises(StoreUnreadable, match="do not have the crc"):
            rows_of(self.view(harness, plan, flip), plan)

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("cut", [1, 7, 8, 60, -1])
    def test_a_body_of_another_length_is_rejected(
        self, harness: BrokerHarness, plan: TurnPlan, kind: FileKind, cut: int
    ) -> None:
        def shorten(of: FileKind, told: Segment) -> Segment:
            body = told.body[:-cut] if cut > 0 else told.body + b"\0"
            return told._replace(body=body, crc=zlib.crc32(body)) if of == kind else told

        with pytest.raises(StoreUnreadable):
            rows_of(self.view(harness, plan, shorten), plan)

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("more", [-1000, 1, 1000])
    def test_a_wrong_count_of_covered_ranges_is_rejected(
        self, harness: BrokerHarness, plan: TurnPlan, kind: FileKind, more: int
    ) -> None:
        def lie(of: FileKind, told: Segment) -> Segment:
            return told._replace(covered=told.covered + more) if of == kind else told

        with pytest.raises(StoreUnreadable):
            rows_of(self.view(harness, plan, lie), plan)

    def test_an_answer_that_omits_more_than_a_body_is_rejected(self, harness: BrokerHarness, plan: TurnPlan) -> None:
        def swell(of: FileKind, told: Segment) -> Segment:
            if of != FileKind.RECORD:
                return told
            body = told.body[:4] + (1 << 20).to_bytes(4, "little") + told.body[8:]
            return told._replace(body=body, crc=zlib.crc32(body))

        with pytest.raises(StoreUnreadable, match="more bytes of a record"):
            rows_of(self.view(harness, plan, swell), plan)

    def test_rows_that_were_not_fetched_are_unreadable(self, harness: BrokerHarness, plan: TurnPlan) -> None:
        view = self.view(harness, plan, lambda _, told: told)
        view.need = lambda *_: None  # type: ignore[method-assign, assignment, misc]
        with pytest.raises(StoreUnreadable):
            staging.read_index(view, 0, 3, write_ms=0, turn=1)


class TestReadRequests:
    def ask(self, harness: BrokerHarness, kind: str, ranges: list[tuple[int, int]], **fields: Any) -> Any:
        raw = np.array(ranges, RANGE).tobytes() if ranges else b""
        named = {
            "epoch": harness.broker.parts.timer.turns.epoch,
            "turn": 1,
            "kind": kind,
            "name": TIMER_QUEUE,
            "token": lease_token(harness),
            **fields,
        }
        return harness.ask_code(RequestCode.WMQ_PIPELINE_READ, raw, **named)

    @pytest.fixture(autouse=True)
    def planned(self, harness: BrokerHarness, model: PipelineModel) -> None:
        for _ in range(3):
            harness.send("T", delay_ms=3000)
        harness.advance(1000)
        assert model.plan() is not None

    def test_requests_of_another_turn_are_stale(self, harness: BrokerHarness, model: PipelineModel) -> None:
        assert self.ask(harness, "queue", [(0, 20)]).code == ResponseCode.SUCCESS
        for fields in ({"turn": 0}, {"turn": 2}, {"epoch": 1}):
            answer = self.ask(harness, "queue", [(0, 20)], **fields)
            assert (answer.code, answer.remark[:6]) == (ResponseCode.INVALID_PARAMETER, "STALE:")
        model.work()
        assert self.ask(harness, "queue", [(0, 20)]).remark.startswith("STALE")

    @pytest.mark.parametrize(
        ("kind", "ranges", "why"),
        [
            ("queue", [(0, 19)], "not whole units"),
            ("queue", [(0, 0)], "not whole units"),
            ("queue", [(6000 - 20, 40)], "not within one file"),
            ("queue", [(1 << 40, 20)], "not within one file"),
            ("queue", [(0, 2 << 20)], "exceed the limit"),
            ("queue", [(-20, 20)], "negative"),
            ("record", [((1 << 63) - 20, 100)], "is out of range"),
            ("queue", [((1 << 63) - 20, 100)], "is out of range"),
            ("wheel", [(1 << 40, 32)], "not in a wheel"),
            ("record", [(0, 87)], "are not records"),
            ("record", [(0, 1 << 30)], "not on disk"),
            ("record", [(1 << 40, 100)], "not on disk"),
            ("chain", [(1 << 40, 0)], "no file exists"),
            ("chain", [(0, 0)], "no file exists"),  # nothing was indexed yet
            ("body", [(0, 20)], "body"),
            ("queue", [(0, 20)] * 5000, "are not whole ranges"),
        ],
    )
    def test_ranges_out_of_reach_are_rejected(
        self, harness: BrokerHarness, kind: str, ranges: list[tuple[int, int]], why: str
    ) -> None:
        answer = self.ask(harness, kind, ranges)
        assert answer.code == ResponseCode.ILLEGAL_OPERATION
        assert why in answer.remark

    @pytest.mark.parametrize("kind", ["queue", "block"])
    @pytest.mark.parametrize(
        "name",
        ["", "x", "x/y", "T/0", "evil/0", "../evil/0", "../../../evil/0", "/evil/0", "\0/0", "evil\0/0", "link/0"],
    )
    def test_names_of_other_folders_are_rejected(
        self, harness: BrokerHarness, tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str, name: str
    ) -> None:
        """Neither other stores nor other queues of this store can be read."""
        queues = harness.broker.parts.paths.consume_queue("T", 0).parent.parent
        for folder in (tmp_path / "evil" / "0", queues.parent / "evil" / "0", queues / "evil" / "0"):
            folder.mkdir(parents=True)
            (folder / ("0" * 20)).write_bytes(b"SECRET".ljust(6000))
        (queues / "link").symlink_to(tmp_path / "evil")
        caplog.clear()
        answer = self.ask(harness, kind, [(0, 20)], name=name)
        assert answer.code == ResponseCode.ILLEGAL_OPERATION
        assert answer.remark.startswith("UNREADABLE: ") and repr(name) in answer.remark
        assert b"SECRET" not in bytes(answer.body)
        assert not [record for record in caplog.records if record.exc_info]

    def test_expired_records_are_reported_as_moved(self, harness: BrokerHarness) -> None:
        for _ in range(300):  # they fill the first log file
            harness.submit(harness.send_command("Other", bytes(4000)))
        harness.tick()
        assert self.ask(harness, "record", [(0, 100)]).code == ResponseCode.SUCCESS
        remove = harness.broker.parts.store.log.files.drop_before(1 << 20)
        assert remove is not None
        remove()
        harness.broker.parts.pipeline.reader = PortionReader(
            harness.broker.parts.paths.root, store_sizes(harness.broker.parts.settings)
        )
        assert self.ask(harness, "record", [(0, 100)]).code == ResponseCode.PULL_OFFSET_MOVED

    def test_a_turn_that_is_planned_again_reads_new_files(self, harness: BrokerHarness, model: PipelineModel) -> None:
        """The next lease has the same turn, over files that did not exist when the turn was planned first."""
        assert model.plan() is not None
        assert self.ask(harness, "queue", [(0, 20)]).code == ResponseCode.SUCCESS
        for _ in range(400):  # they begin another file of the timer queue
            harness.submit(harness.send_command("T", delay_ms=30_000))
        harness.advance(4000)
        model.open()
        plan = model.plan()
        assert plan is not None and plan.index_to > 400
        last = [(20 * (plan.index_to - 1), 20)]
        assert self.ask(harness, "queue", last, epoch=plan.epoch).code == ResponseCode.SUCCESS

    def test_the_size_of_an_answer_is_limited(self, harness: BrokerHarness, model: PipelineModel) -> None:
        answer = self.ask(harness, "wheel", [(0, 32)] * 4096)
        assert (int(answer.ext["count"]), len(answer.body)) == (4096, 4096 * 32)
        answer = self.ask(harness, "wheel", [(0, 3000)] * 4096)
        assert len(answer.body) <= 1 << 20
        assert int(answer.ext["count"]) == (1 << 20) // 3000

    def test_a_request_is_read_off_the_loop_and_may_time_out(self, tmp_path: Path) -> None:
        held = HeldWorker()
        with BrokerHarness(tmp_path, background=held, worker=InlineWorker()) as harness:
            model = PipelineModel(harness)
            model.open()
            harness.send("T", delay_ms=3000)
            harness.advance(1000)
            assert model.plan() is not None
            asked = harness.submit(self.command(harness, [(0, 20)]))
            harness.tick()
            assert asked.answer is None, "it is read off the loop"
            harness.run_jobs()
            assert asked.answer is not None and asked.answer.code == 0
            late = harness.submit(self.command(harness, [(0, 20)]))
            harness.advance(harness.broker.parts.settings.requests.response_timeout_ms)
            assert late.answer is not None and late.answer.code == ResponseCode.SYSTEM_BUSY

    @staticmethod
    def command(harness: BrokerHarness, ranges: list[tuple[int, int]]) -> Any:
        from wheelmq.formats.wire import headers
        from wheelmq.formats.wire.frame import Command

        epoch, token = harness.broker.parts.timer.turns.epoch, lease_token(harness)
        ext = headers.texts(epoch=epoch, turn=1, kind="queue", name=TIMER_QUEUE, token=token)
        return Command(code=RequestCode.WMQ_PIPELINE_READ, ext=ext, body=np.array(ranges, RANGE).tobytes())


def test_only_flushed_records_and_units_are_sent(tmp_path: Path) -> None:
    """After a send without a flush, neither the record nor its unit can be read."""
    with BrokerHarness(tmp_path, worker=HeldWorker(), background=InlineWorker()) as harness:
        model = PipelineModel(harness)
        model.open()
        harness.send("T", delay_ms=3000)
        harness.advance(1000)
        plan = model.plan()
        assert plan is not None
        harness.send("T", delay_ms=3000)
        log = harness.broker.parts.store.log
        assert log.synced < log.end
        view = model.wire_view(plan.turn)
        assert len(staging.read_index(view, 0, 1, write_ms=0, turn=1)) == 1
        with pytest.raises(StoreUnreadable, match="not on disk"):
            staging.read_index(view, 0, 2, write_ms=0, turn=1)
        start = np.array([log.synced])
        with pytest.raises(StoreUnreadable, match="not on disk"):
            view.need(FileKind.RECORD, start, np.array([log.end]) - start)


def test_units_that_are_not_on_disk_are_rejected(tmp_path: Path) -> None:
    with BrokerHarness(tmp_path) as harness:
        model = PipelineModel(harness)
        model.open()
        harness.send("T", delay_ms=3000)
        harness.advance(4000, model.work, 500)
        view = model.view()
        newest = ranges_of(np.array([0]), np.array([0]))
        assert read_portion(view, FileKind.CHAIN, "", newest, OnDisk(1 << 20, 52)).covered == 1
        with pytest.raises(PortionError, match="on disk up to 0"):
            read_portion(view, FileKind.CHAIN, "", newest, OnDisk(1 << 20, 0))


class TestStoreIdentity:
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Path]:
        (tmp_path / "store").mkdir()
        (tmp_path / "store" / "lock").write_bytes(b"lock")
        yield tmp_path / "store"

    def test_the_store_of_the_broker_is_recognized(self, store: Path) -> None:
        identity = SimulatedDisk().identity(store / "lock")
        assert sees_store(store, identity)
        assert sees_store(store.parent / "." / "store", identity)

    def test_another_store_is_rejected(self, store: Path) -> None:
        identity = SimulatedDisk().identity(store / "lock")
        (store / "lock").rename(store / "old")
        assert not sees_store(store, identity)
        (store / "lock").write_bytes((store / "old").read_bytes())
        assert not sees_store(store, identity)

    def test_a_missing_store_is_rejected(self, tmp_path: Path) -> None:
        assert not sees_store(tmp_path / "store", SimulatedDisk().identity(tmp_path / "store" / "lock"))
        assert not sees_store(tmp_path, "1-2-3")
