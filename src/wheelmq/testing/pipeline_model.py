"""The pipeline without Spark: the steps of the driver and the tasks of `wheelmq.spark`, one call at a time.

    model = PipelineModel(harness)
    model.work()        open a lease if there is none, and do a turn if one is due

A turn is plan, read, upload and commit. It uses the broker's own request handlers and reads the files of the store as a
task does. A test can call each step alone, split it into parts and attempts, or change it by `fault`, which decides the
outcome of each request.
"""

from __future__ import annotations

import itertools
import zlib
from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from wheelmq.delay.blocks.staging import read_blocks
from wheelmq.delay.timer import staging
from wheelmq.delay.timer.rows import TurnRows
from wheelmq.delay.timer.turns import Part, TurnPlan
from wheelmq.delay.timer.view import ReadView, StoreSizes, StoreUnreadable, StoreView
from wheelmq.delay.timer.wire_view import UNREADABLE, Segment, WireView, segment_of
from wheelmq.formats.disk.turn_row import KIND_BLOCKS, KIND_INDEX, KIND_QUEUE, KIND_WALK, TURN_ROW
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.portions import FileKind, Ranges
from wheelmq.net.errors import CallError, Refused
from wheelmq.testing.connection import FakeConnection
from wheelmq.testing.harness import BrokerHarness

PLAN_TRIES = 3
"""A plan may first need a flush of the log. The model then asks again in the next tick."""
ATTEMPTS_MAX = 4
"""Attempts of a task before the query ends, as in Spark."""


class Fault(Enum):
    DELIVER = auto()
    LOSE_REQUEST = auto()
    LOSE_ANSWER = auto()
    REPEAT = auto()
    """The request arrives twice; the second answer counts."""
    DELAY = auto()
    """The request arrives when `deliver_delayed` is called. Its answer is not awaited."""


Chooser = Callable[[RequestCode, Command], Fault]


class Done(Enum):
    COMMITTED = auto()
    IDLE = auto()
    """No turn was due."""
    WAITING = auto()
    """Another pipeline has the lease."""
    BROKEN = auto()
    """A step was lost or rejected. The model drops the lease, and the next call opens another one."""


class Task(NamedTuple):
    kind: str
    part: int
    rows: TurnRows


class PipelineModel:
    """One pipeline of a broker.

    `index_parts`, `walk_parts` and `queue_parts` split a turn's work; `chunk_rows` splits uploads. Each part is
    uploaded by `attempts` attempts; the last one wins.
    """

    def __init__(
        self,
        harness: BrokerHarness,
        name: str = "model",
        *,
        index_parts: int = 1,
        walk_parts: int = 1,
        queue_parts: int = 1,
        chunk_rows: int = 100_000,
        attempts: int = 1,
        over_the_wire: bool = False,
        holder_id: str | None = None,
    ) -> None:
        self.harness = harness
        self.name = name
        self.holder_id = f"id of {name}" if holder_id is None else holder_id
        self.index_parts = index_parts
        self.walk_parts = walk_parts
        self.queue_parts = queue_parts
        self.chunk_rows = chunk_rows
        self.attempts = attempts
        self.over_the_wire = over_the_wire
        """Whether tasks request the store's bytes from the broker instead of mapping the files."""
        self.portions = 0
        self.fault: Chooser = lambda code, command: Fault.DELIVER
        self.bend: Callable[[Task], Task] = lambda task: task
        """Applied to the output of a task before its upload."""
        self.is_patient = True
        """Whether held jobs of the broker run while an answer waits for them."""
        self.delayed: deque[Command] = deque()
        self.terms: dict[str, Any] | None = None
        """The broker's answer with the lease; None without a lease."""
        self.committed = 0
        self._attempt = 0
        self._connection: FakeConnection | None = None

    # The driver ----------------------------------------------------------------------------------------------------

    def work(self) -> Done:
        """Act as the driver once: open a lease if there is none, then do a turn if one is due."""
        try:
            if self.terms is None:
                self.open()
            return Done.COMMITTED if self.turn() else Done.IDLE
        except Refused as refused:
            self.terms = None
            return Done.WAITING if refused.code == ResponseCode.NO_PERMISSION else Done.BROKEN
        except (CallError, StoreUnreadable):
            self.terms = None
            return Done.BROKEN

    def turn(self) -> bool:
        """Do a turn if one is due. Returns whether one was. Raises Refused, CallError."""
        plan = self.plan()
        if plan is None:
            return False
        winners = [self.hand_over(plan, task) for task in self.read(plan)]
        self.commit(plan, winners)
        return True

    def open(self) -> int:
        """Open a lease and return its epoch. Raises Refused while another pipeline holds the lease, and CallError."""
        answer = self._ask(RequestCode.WMQ_PIPELINE_OPEN, name=self.name, holderId=self.holder_id)
        self.terms = msgspec.json.decode(answer.body)
        return self.epoch

    @property
    def epoch(self) -> int:
        assert self.terms is not None
        return int(self.terms["epoch"])

    def plan(self, epoch: int | None = None) -> TurnPlan | None:
        """Return the plan of the next turn; None if no turn is due. Raises Refused, CallError."""
        for _ in range(PLAN_TRIES):
            try:
                answer = self._ask(
                    RequestCode.WMQ_PIPELINE_PLAN, epoch=self.epoch if epoch is None else epoch, timeoutMs=0
                )
            except Refused as refused:
                if refused.code != ResponseCode.PULL_NOT_FOUND:
                    raise
                if self.is_patient:
                    self.harness.run_jobs()
            else:
                return msgspec.json.decode(answer.body, type=TurnPlan)
        return None

    def renew(self) -> None:
        self._ask(RequestCode.WMQ_PIPELINE_RENEW, epoch=self.epoch)

    def commit(self, plan: TurnPlan, winners: list[Part]) -> None:
        """Commit the turn. Raises Refused, CallError."""
        body = msgspec.json.encode(winners)
        self._ask(RequestCode.WMQ_PIPELINE_COMMIT, body, epoch=plan.epoch, turn=plan.turn)
        self.committed += 1

    # The tasks -----------------------------------------------------------------------------------------------------

    def view(self) -> StoreView:
        assert self.terms is not None
        return StoreView(Path(self.terms["store_path"]), msgspec.convert(self.terms, StoreSizes))

    def wire_view(self, turn: int) -> WireView:
        """Return the broker's store as seen by a task of this turn over the wire."""
        assert self.terms is not None

        def ask(kind: FileKind, name: str, ranges: Ranges) -> Segment:
            self.portions += 1
            try:
                ext = {"epoch": self.epoch, "turn": turn, "kind": kind, "name": name}
                return segment_of(self._ask(RequestCode.WMQ_PIPELINE_READ, ranges.tobytes(), **ext))
            except Refused as refused:
                if refused.code not in UNREADABLE:
                    raise
                return segment_of(refused.answer)

        return WireView(ask, msgspec.convert(self.terms, StoreSizes))

    def read(self, plan: TurnPlan) -> list[Task]:
        """Return the output of the tasks of a plan. Raises StoreUnreadable."""
        assert self.terms is not None
        precision_ms = int(self.terms["precision_ms"])
        window_ms = int(self.terms["roll_window_slots"]) * precision_ms
        view: ReadView = self.wire_view(plan.turn) if self.over_the_wire else self.view()
        tasks: list[Task] = []
        for first, end in _shares(plan.index_from, plan.index_to, self.index_parts, 1):
            staged = staging.read_index(view, first, end, write_ms=plan.write_ms, turn=plan.turn)
            tasks.append(Task(KIND_INDEX, len(tasks), staging.decide(staged, window_ms, precision_ms)))
        walk_to = plan.walk_through_ms if plan.walk_rows else plan.walk_after_ms
        for first, end in _shares(plan.walk_after_ms, walk_to, self.walk_parts, precision_ms):
            staged = staging.read_walk(
                view,
                first,
                end,
                log_end=plan.timer_log_end,
                precision_ms=precision_ms,
                write_ms=plan.write_ms,
                turn=plan.turn,
            )
            if len(staged):  # as with Spark: a partition without rows uploads nothing and names no winner
                tasks.append(Task(KIND_WALK, len(tasks), staging.decide(staged, window_ms, precision_ms)))
        rows = sum(end - first for _, first, end in plan.queues)
        for first, end in _shares(0, rows, self.queue_parts, 1):
            staged = staging.read_queues(
                view,
                staging.pieces(plan.queues, first, end),
                now_ms=plan.now_ms,
                levels_ms=self.terms["levels_ms"],
                turn=plan.turn,
            )
            tasks.append(Task(KIND_QUEUE, len(tasks), staging.decide(staged, window_ms, precision_ms)))
        if plan.blocks is not None:
            window = msgspec.to_builtins(plan.blocks)
            staged = read_blocks(view, window, write_ms=plan.write_ms, turn=plan.turn)
            tasks.append(Task(KIND_BLOCKS, len(tasks), staging.decide(staged, window_ms, precision_ms)))
        return [self.bend(task) for task in tasks]

    def hand_over(self, plan: TurnPlan, task: Task) -> Part:
        """Upload a task's rows by `attempts` attempts, and repeat lost ones. The last attempt wins."""
        winner: Part | None = None
        lost = 0
        done = 0
        while done < self.attempts:
            try:
                winner = self.upload(plan, task)
                done += 1
            except CallError:
                lost += 1
                if lost == ATTEMPTS_MAX:
                    raise
        assert winner is not None
        return winner

    def upload(self, plan: TurnPlan, task: Task) -> Part:
        """Run one attempt of a task. Raises Refused, CallError."""
        attempt = self._attempt
        self._attempt += 1
        raw = task.rows.tobytes()
        size = self.chunk_rows * TURN_ROW.itemsize
        chunks = range(0, len(raw), size)
        for chunk, at in enumerate(chunks):
            self._ask(
                RequestCode.WMQ_PIPELINE_UPLOAD,
                raw[at : at + size],
                epoch=plan.epoch,
                turn=plan.turn,
                kind=task.kind,
                part=task.part,
                attempt=attempt,
                chunk=chunk,
            )
        return Part(task.kind, task.part, attempt, len(chunks), len(task.rows), zlib.crc32(raw))

    # Requests ------------------------------------------------------------------------------------------------------

    def deliver_delayed(self, count: int | None = None) -> list[Command | None]:
        """Deliver the first `count` delayed requests, or all. Returns their answers."""
        answers = []
        for _ in range(len(self.delayed) if count is None else min(count, len(self.delayed))):
            asked = self.harness.submit(self.delayed.popleft(), self._connect())
            self.harness.tick()
            answers.append(asked.answer)
        return answers

    def _ask(self, code: RequestCode, body: bytes = b"", **fields: object) -> Command:
        """Send a request with the pipeline's signature if it opens a lease, and with the token of the lease else."""
        command = Command(code=code, ext=headers.texts(**fields), body=body)
        if code == RequestCode.WMQ_PIPELINE_OPEN:
            self.harness.broker.parts.pipeline_key.sign(command)
        elif self.terms is not None:
            command.ext["token"] = self.terms["token"]
        match self.fault(code, command):
            case Fault.LOSE_REQUEST:
                raise CallError(f"{code.name} was lost")
            case Fault.DELAY:
                self.delayed.append(command)
                raise CallError(f"{code.name} is delayed")
            case Fault.LOSE_ANSWER:
                self._send(command)
                raise CallError(f"the answer to {code.name} was lost")
            case Fault.REPEAT:
                self._send(Command(code=code, ext=dict(command.ext), body=body))
        answer = self._send(command)
        if answer is None:
            raise CallError(f"{code.name} was not answered")
        if answer.code != ResponseCode.SUCCESS:
            raise Refused(answer)
        return answer

    def _send(self, command: Command) -> Command | None:
        asked = self.harness.submit(command, self._connect())
        self.harness.tick()
        while asked.answer is None and self.is_patient and self.harness.run_jobs():
            pass
        return asked.answer

    def _connect(self) -> FakeConnection:
        if self._connection is None or not self._connection.is_open:
            self._connection = self.harness.connect()
        return self._connection


def _shares(first: int, end: int, parts: int, grain: int) -> list[tuple[int, int]]:
    """Split [first, end) into at most `parts` shares, none empty. Bounds are multiples of `grain` from `first`."""
    count = (end - first) // grain
    bounds = np.unique([first + count * i // parts * grain for i in range(parts + 1)]).tolist()
    return [(a, b) for a, b in itertools.pairwise(bounds) if b > a]


def open_lease(harness: BrokerHarness, name: str = "p", holder_id: str = "") -> Command:
    """Return the signed request that opens a lease."""
    ext = headers.texts(name=name, holderId=holder_id)
    command = Command(code=RequestCode.WMQ_PIPELINE_OPEN, ext=ext)
    harness.broker.parts.pipeline_key.sign(command)
    return command


def lease_token(harness: BrokerHarness) -> str:
    """Return the token of the last lease."""
    return harness.broker.parts.pipeline.lease.token
