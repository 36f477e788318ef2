"""Timers under faults of every kind, compared with an oracle.

The machine sends, cancels, lets time pass, sets the clock and stops the broker in three ways. Its pipelines lose,
repeat and delay their steps. The invariants hold between ticks, and no message ever leaves early. At the end each
message that was sent and not cancelled is in its queue once.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from hypothesis import assume, note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from wheelmq.delay.timer.turns import Part, TurnPlan
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import Record
from wheelmq.formats.wire.codes import ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.errors import CallError, Refused
from wheelmq.testing import invariants
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import Done, Fault, PipelineModel, Task
from wheelmq.testing.workers import HeldWorker

from .profiles import profile
from .stages import BENDS, SHIFT_MS_MAX, bent

TOPIC = "T"
QUEUES = 2
WINDOW_SLOTS = 8
SECOND_MS = 1000
CLOCK_ERROR_MS_MAX = 25_000


@dataclass
class Sent:
    """The oracle's knowledge of one message."""

    body: bytes
    queue_id: int
    due_ms: int
    may_be_missing: bool = False
    """Its send was never answered."""
    is_cancelled: bool = False
    may_be_cancelled: bool = False
    """Its cancel was never answered."""


@dataclass
class Oracle:
    """Every message ever sent, by body."""

    sent: dict[bytes, Sent] = field(default_factory=dict)

    def check(self, records: list[Record]) -> None:
        """Check `records`, all messages delivered until now."""
        bodies = [record.message.body for record in records]
        assert len(bodies) == len(set(bodies)), f"twice: {[body for body in set(bodies) if bodies.count(body) > 1]}"
        for record in records:
            sent = self.sent[record.message.body]
            assert record.message.queue_id == sent.queue_id
            left_ms = int(record.message.properties[props.TIMER_DEQUEUE_MS])
            assert left_ms >= sent.due_ms, f"{sent.body!r} left {sent.due_ms - left_ms} ms early"
            assert not sent.is_cancelled, f"{sent.body!r} was cancelled"

    def check_complete(self, records: list[Record]) -> None:
        """Check `records`, all messages that will ever be delivered."""
        self.check(records)
        delivered = {record.message.body for record in records}
        for body, sent in self.sent.items():
            optional = sent.may_be_missing or sent.may_be_cancelled or sent.is_cancelled
            assert optional or body in delivered, f"lost: {sent}"


delays_ms = st.one_of(
    st.integers(1, 50),
    st.integers(1, 3000),
    st.integers(1, 20).map(lambda seconds: seconds * SECOND_MS),
    st.integers(3000, 3 * WINDOW_SLOTS * SECOND_MS),
)
faults = st.lists(
    st.sampled_from(
        [
            Fault.DELIVER,
            Fault.DELIVER,
            Fault.LOSE_REQUEST,
            Fault.LOSE_ANSWER,
            Fault.REPEAT,
            Fault.DELAY,
        ]
    ),
    max_size=8,
)


class Timers(RuleBasedStateMachine):
    """The machine. In half of the runs, worker jobs wait until a rule runs them. In the others, sends wait for the
    disk and the power may be cut."""

    harness_type = BrokerHarness

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="wheelmq-")
        self.oracle = Oracle()
        self.proposed: list[tuple[TurnPlan, list[Part]]] = []
        self.clock_error_ms = 0

    @initialize(
        held=st.booleans(),
        precision_ms=st.sampled_from([1000, 1000, 100]),
        lead_ms=st.sampled_from([2000, 5000]),
        index_parts=st.integers(1, 3),
        walk_parts=st.integers(1, 3),
        attempts=st.integers(1, 2),
        chunk_rows=st.sampled_from([1, 3, 1000]),
    )
    def begin(
        self,
        held: bool,
        precision_ms: int,
        lead_ms: int,
        index_parts: int,
        walk_parts: int,
        attempts: int,
        chunk_rows: int,
    ) -> None:
        self.held = held
        self.harness = self.harness_type(
            Path(self.folder.name),
            worker=HeldWorker() if held else None,
            flush_mode="ASYNC_FLUSH" if held else "SYNC_FLUSH",
            timer_precision_ms=precision_ms,
            timer_roll_window_slots=WINDOW_SLOTS * 1000 // precision_ms,
            timer_slots=8 * WINDOW_SLOTS * 1000 // precision_ms,
            timer_lead_ms=lead_ms,
            timer_log_file_bytes=52 * 20 + 16,
            queue_file_bytes=20 * 16,
            recall_enable=True,
            block_log_file_bytes=2048,
            block_queue_file_bytes=24 * 4,
            block_length_seconds=5,
            clean_resource_interval_ms=2000,
        )
        options = {"index_parts": index_parts, "walk_parts": walk_parts, "attempts": attempts, "chunk_rows": chunk_rows}
        self.models = [PipelineModel(self.harness, "one", **options), PipelineModel(self.harness, "two")]

    # Clients -------------------------------------------------------------------------------------------------------

    def _command(self, delay_ms: int, queue_id: int, *, in_block: bool = False) -> tuple[Sent, Command]:
        key = f"K{len(self.oracle.sent)}"
        if in_block:
            seconds = -(-delay_ms // SECOND_MS)
            sent = self.oracle.sent[key.encode()] = Sent(
                key.encode(), queue_id, self.harness.now_ms + seconds * SECOND_MS
            )
            properties = {props.UNIQ_KEY: key, props.DELAY_IN_SECONDS: str(seconds)}
            return sent, self.harness.send_command(TOPIC, sent.body, queue_id=queue_id, properties=properties)
        sent = self.oracle.sent[key.encode()] = Sent(key.encode(), queue_id, self.harness.now_ms + delay_ms)
        properties = {props.UNIQ_KEY: key}
        return sent, self.harness.send_command(
            TOPIC, sent.body, queue_id=queue_id, delay_ms=delay_ms, properties=properties
        )

    @rule(delay_ms=delays_ms, count=st.integers(1, 4), queue_id=st.integers(0, QUEUES - 1), in_block=st.booleans())
    def send(self, delay_ms: int, count: int, queue_id: int, in_block: bool) -> None:
        """Send messages with one due time. All are accepted, unless the clock was set back into a deleted block."""
        for _ in range(count):
            sent, command = self._command(delay_ms, queue_id, in_block=in_block)
            answer = self.harness.ask(command)
            if answer.code == ResponseCode.SERVICE_NOT_AVAILABLE and in_block:
                assert "is deleting the block" in (answer.remark or "")
                sent.may_be_missing = True
                return
            assert answer.code == ResponseCode.SUCCESS, answer
            assert answer.ext["transactionId"] == sent.body.decode()

    @rule(delays=st.lists(delays_ms, min_size=1, max_size=3), clean=st.booleans(), in_block=st.booleans())
    def send_and_die(self, delays: list[int], clean: bool, in_block: bool) -> None:
        """Stop the broker in the tick or right after it, before a client sees an answer."""
        for delay_ms in delays:
            sent, command = self._command(delay_ms, 0, in_block=in_block)
            sent.may_be_missing = True
            self.harness.submit(command)
        if clean:
            self.harness.tick()
        self.harness.restart(clean=False)

    def _cancel_command(self, sent: Sent) -> Command:
        properties = {props.TIMER_DEL_UNIQKEY: f"{TOPIC}+{sent.body.decode()}"}
        return self.harness.send_command(TOPIC, b"cancel", delay_ms=5000, properties=properties)

    @precondition(lambda self: not all(sent.may_be_missing for sent in self.oracle.sent.values()))
    @rule(data=st.data(), dies=st.sampled_from([False, False, False, True]))
    def cancel(self, data: st.DataObject, dies: bool) -> None:
        sent = data.draw(st.sampled_from([sent for sent in self.oracle.sent.values() if not sent.may_be_missing]))
        if dies:
            sent.may_be_cancelled = True
            self.harness.submit(self._cancel_command(sent))
            self.harness.restart(clean=False)
            return
        delivered = {record.message.body for record in self._delivered()}
        answer = self.harness.ask(self._cancel_command(sent))
        assert answer.code == ResponseCode.SUCCESS, answer
        match answer.ext["cancelResult"]:
            case "cancelled":
                assert sent.body not in delivered and not sent.is_cancelled
                sent.is_cancelled = True
            case "already delivered or cancelled" | "not found":  # the key index drops settled messages
                assert sent.body in delivered or sent.is_cancelled or sent.may_be_cancelled
            case other:
                raise AssertionError(f"{sent}: {other}")

    # Time ----------------------------------------------------------------------------------------------------------

    @rule(ms=st.one_of(st.integers(1, 300), st.integers(1, 5000)), works=st.booleans())
    def advance(self, ms: int, works: bool) -> None:
        self.harness.advance(ms, self.models[0].work if works else None, 500)

    @rule(ms=st.one_of(st.integers(-5000, 5000), st.sampled_from([-20_000, 15_000])))
    def set_clock(self, ms: int) -> None:
        """Set the wall clock. The total change is less than the wheel's length minus the longest delay."""
        assume(abs(self.clock_error_ms + ms) <= CLOCK_ERROR_MS_MAX)
        self.clock_error_ms += ms
        self.harness.clock.step(ms)
        self.harness.tick()

    # The pipeline --------------------------------------------------------------------------------------------------

    @rule(who=st.integers(0, 1), chosen=faults, patient=st.booleans())
    def work(self, who: int, chosen: list[Fault], patient: bool) -> None:
        """Run a turn of one of two pipelines, with a fault for each of its first requests."""
        model = self.models[who]
        left = list(chosen)
        model.fault = lambda code, command: left.pop(0) if left else Fault.DELIVER
        model.is_patient = patient
        done = model.work()
        note(f"{model.name}: {done}")
        model.fault, model.is_patient = lambda code, command: Fault.DELIVER, True

    @rule(who=st.integers(0, 1))
    def propose(self, who: int) -> None:
        """Plan, read and upload a turn, and keep its commit for later."""
        model = self.models[who]
        try:
            if model.terms is None:
                model.open()
            plan = model.plan()
            assume(plan is not None)
            assert plan is not None
            self.proposed.append((plan, [model.hand_over(plan, task) for task in model.read(plan)]))
        except (Refused, CallError):
            model.terms = None

    @precondition(lambda self: self.proposed)
    @rule(data=st.data(), who=st.integers(0, 1))
    def commit_late(self, data: st.DataObject, who: int) -> None:
        """Commit an earlier proposal, perhaps under an expired lease, perhaps for the second time."""
        plan, winners = data.draw(st.sampled_from(self.proposed))
        try:
            self.models[who].commit(plan, winners)
        except (Refused, CallError) as error:
            note(f"{error}")

    @rule(skew_ms=st.integers(-3000, 3000))
    def work_with_wrong_times(self, skew_ms: int) -> None:
        """Run a turn whose rows have wrong fire times."""

        def bend(task: Task) -> Task:
            rows = task.rows.copy()
            rows["fire_ms"] += skew_ms
            return task._replace(rows=rows)

        self.models[0].bend = bend
        self.models[0].work()
        self.models[0].bend = lambda task: task

    @rule(seed=st.integers(0, 1 << 16), what=st.sampled_from(sorted(BENDS)))
    def work_with_stage(self, seed: int, what: str) -> None:
        """Run a turn with a stage that delays messages, or does something that it may not do."""
        randomness = Random(seed)
        self.models[0].bend = lambda task: task._replace(rows=bent(task, BENDS[what], randomness))
        self.models[0].work()
        self.models[0].bend = lambda task: task

    @rule(who=st.integers(0, 1))
    def deliver_delayed(self, who: int) -> None:
        self.models[who].deliver_delayed()

    @precondition(lambda self: self.held)
    @rule(count=st.integers(1, 3), tells=st.booleans())
    def run_jobs(self, count: int, tells: bool) -> None:
        worker = self.harness.worker
        assert isinstance(worker, HeldWorker)
        if tells:
            self.harness.run_jobs(count)
        else:
            worker.work(count)

    # Stops ---------------------------------------------------------------------------------------------------------

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        self.harness.restart(clean=clean)

    @precondition(lambda self: not self.held)
    @rule(keep=st.sampled_from([0.0, 0.5, 1.0]))
    def cut_power(self, keep: float) -> None:
        self.harness.cut_power(keep)
        self.harness.start()

    # Invariants ----------------------------------------------------------------------------------------------------

    def _delivered(self) -> list[Record]:
        return [record for queue_id in range(QUEUES) for record in self.harness.read_queue(TOPIC, queue_id)]

    @invariant()
    def holds(self) -> None:
        if self.harness.broker.parts.health.failure is not None:
            raise AssertionError("the broker failed") from self.harness.broker.parts.health.failure
        invariants.check(self.harness.broker)
        self.oracle.check(self._delivered())

    def teardown(self) -> None:
        if not hasattr(self, "models"):
            return
        try:
            last_ms = max((sent.due_ms for sent in self.oracle.sent.values()), default=0)
            self.harness.advance(6000)  # any held lease expires
            for _ in range(50):
                self.harness.advance(max(2000, last_ms - self.harness.now_ms), self._finish, 500)
                if self.harness.now_ms > last_ms:
                    break
            self.harness.advance(4000 + SHIFT_MS_MAX, self._finish, 500)
            self.holds()
            self.oracle.check_complete(self._delivered())
        finally:
            if self.harness.is_running:
                self.harness.crash()
            self.folder.cleanup()

    def _finish(self) -> None:
        assert self.models[0].work() is not Done.WAITING
        self.harness.run_jobs()


TestTimersAgainstAnOracle = Timers.TestCase
TestTimersAgainstAnOracle.settings = profile(examples=25, steps=30)
