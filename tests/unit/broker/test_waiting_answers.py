"""Answers of worker threads and of slices: they wait for a full connection, and end with their client."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from wheelmq.broker.answers import Deferred, PeerError, reply
from wheelmq.broker.request import Request
from wheelmq.broker.turns.rejections import turn_rejection
from wheelmq.delay.timer.turns import LeaseHeld, Stale, TurnRejected
from wheelmq.delay.timer.view import TIMER_QUEUE
from wheelmq.formats.disk.queue_unit import QUEUE_UNIT
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.portions import RANGE
from wheelmq.testing.connection import FakeConnection
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel, lease_token
from wheelmq.testing.workers import HeldWorker

DONE = reply(remark="done")


def late() -> Command:
    return reply(ResponseCode.SYSTEM_BUSY, "late")


class Waiting:
    """A request that a part answers, and the answers that its dispatcher got."""

    def __init__(self, harness: BrokerHarness) -> None:
        self.connection: FakeConnection = harness.connect()
        self.answer = Deferred()
        self.got: list[object] = []
        request = Request(Command(code=RequestCode.WMQ_FIND_TIMERS), self.connection)
        held = harness.broker.parts.holds.with_deadline(request, self.answer, 1000, late)
        assert held.is_accepted  # the request counts as served
        held.when_given(self.got.append)


@pytest.fixture
def waiting(harness: BrokerHarness) -> Waiting:
    return Waiting(harness)


def test_an_answer_waits_until_its_connection_has_drained(harness: BrokerHarness, waiting: Waiting) -> None:
    waiting.connection.is_full = True
    waiting.answer.give(DONE)
    harness.tick()
    assert waiting.got == []
    waiting.connection.is_full = False
    harness.tick()
    assert waiting.got == [DONE] and not len(harness.broker.parts.holds)


def test_an_answer_that_waits_for_its_connection_leaves_at_the_deadline(
    harness: BrokerHarness, waiting: Waiting
) -> None:
    waiting.connection.is_full = True
    waiting.answer.give(DONE)
    harness.advance(1000)
    assert waiting.got == [DONE]


def test_an_exception_waits_for_the_connection_too(harness: BrokerHarness, waiting: Waiting) -> None:
    error = PeerError(ResponseCode.NO_PERMISSION, "not you")
    waiting.connection.is_full = True
    waiting.answer.fail(error)
    assert waiting.got == []
    waiting.connection.is_full = False
    harness.tick()
    assert waiting.got == [error]


def end_by_deadline(harness: BrokerHarness, waiting: Waiting) -> None:
    harness.advance(1000)
    assert waiting.got == [late()]


def end_by_loss(harness: BrokerHarness, waiting: Waiting) -> None:
    harness.lose(waiting.connection)
    assert waiting.got == [None]


@pytest.mark.parametrize("end", [end_by_deadline, end_by_loss])
def test_no_answer_is_computed_for_an_ended_request(
    harness: BrokerHarness, waiting: Waiting, end: Callable[[BrokerHarness, Waiting], None]
) -> None:
    computed: list[int] = []

    def make(result: int) -> Command:
        computed.append(result)
        return DONE

    take = waiting.answer.callback(make)
    end(harness, waiting)
    take(1)
    assert computed == [] and len(waiting.got) == 1


def test_the_answer_of_a_worker_waits_for_a_full_connection(tmp_path: Path) -> None:
    """The pipeline reads ranges of the store."""
    reading = HeldWorker()
    with BrokerHarness(tmp_path, reading=reading) as harness:
        model = PipelineModel(harness)
        model.open()
        harness.send("T", delay_ms=3000)
        harness.advance(1000)
        plan = model.plan()
        assert plan is not None
        token = lease_token(harness)
        ext = headers.texts(epoch=plan.epoch, turn=plan.turn, kind="queue", name=TIMER_QUEUE, token=token)
        body = np.array([(0, QUEUE_UNIT.size)], RANGE).tobytes()
        asked = harness.submit(Command(code=RequestCode.WMQ_PIPELINE_READ, ext=ext, body=body), harness.connect())
        harness.tick()
        asked.connection.is_full = True
        assert reading.run() == 1
        harness.tick()
        assert asked.answer is None
        asked.connection.is_full = False
        harness.tick()
        assert asked.answer is not None and len(asked.answer.body) == QUEUE_UNIT.size


def test_a_plan_of_a_stale_lease_counts_as_served(harness: BrokerHarness) -> None:
    model = PipelineModel(harness)
    model.open()
    before = dict(harness.broker.dispatch.counts)
    ext = {"epoch": "1", "turn": "1", "timeoutMs": "1000"}
    answer = harness.ask(Command(code=RequestCode.WMQ_PIPELINE_PLAN, ext=ext))
    assert (answer.remark or "").startswith("STALE: ")
    assert harness.broker.dispatch.counts == {**before, "served": before["served"] + 1}


@pytest.mark.parametrize(
    ("kind", "code", "word"),
    [
        (LeaseHeld, ResponseCode.NO_PERMISSION, "LEASE_HELD"),
        (Stale, ResponseCode.INVALID_PARAMETER, "STALE"),
        (TurnRejected, ResponseCode.ILLEGAL_OPERATION, "TURN_REFUSED"),
    ],
)
def test_a_subclass_of_a_rejection_has_its_answer(kind: type[Exception], code: ResponseCode, word: str) -> None:
    narrow = type("Narrow", (kind,), {})
    assert issubclass(narrow, (LeaseHeld, Stale, TurnRejected))
    answer = turn_rejection(narrow("why"))
    assert (answer.code, answer.remark) == (code, f"{word}: why")
