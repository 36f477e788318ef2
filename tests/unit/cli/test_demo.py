"""The demonstration's criteria for success."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from wheelmq.cli.demo_run import Planned, Run
from wheelmq.cli.demo_view import PlainView, outcome, parts, summary
from wheelmq.cli.stack import Stack, StackSettings
from wheelmq.client.results import CancelResult
from wheelmq.testing.clock import ManualClock

DUE = 1_800_000_000_000


def metrics(turn: int, *, is_turning: bool = True) -> dict[str, Any]:
    return {"pipeline": {"turn": turn, "is_turning": is_turning}}


@pytest.fixture
def stack(tmp_path: Path) -> Stack:
    return Stack(StackSettings(home=tmp_path), clock=ManualClock(), tell=lambda text: None)


@pytest.fixture
def run(stack: Stack) -> Run:
    """Return a run without problems."""
    made = Run(stack, ManualClock())
    made.planned = [
        Planned(1000, DUE, "a", arrivals_ms=[DUE + 2]),
        Planned(5000, DUE + 4000, "b", arrivals_ms=[DUE + 4000]),
        Planned(9000, DUE + 8000, "c", is_cancelled=True),
    ]
    made.cancel_result = CancelResult.CANCELLED
    made.turns_before = 3
    made.note(metrics(5))
    return made


def test_a_good_run_has_no_problems(run: Run) -> None:
    assert run.problems() == []
    assert "2 of 2 messages arrived" in summary(run, [])[0]
    assert "2 turns" in summary(run, [])[2]


@pytest.mark.parametrize(
    ("index", "arrivals_ms", "told"),
    [
        (0, [], "the message of 1 s did not arrive"),
        (0, [DUE, DUE + 1], "the message of 1 s arrived 2 times"),
        (1, [DUE + 3999], "the message of 5 s arrived 1 ms early"),
        (2, [DUE + 8000], "the message of 9 s was cancelled and arrived"),
    ],
)
def test_a_missing_repeated_or_early_message_is_a_problem(
    run: Run, index: int, arrivals_ms: list[int], told: str
) -> None:
    run.planned[index].arrivals_ms = arrivals_ms
    assert run.problems() == [told]
    assert summary(run, run.problems()) == [f"PROBLEM: {told}"]


def test_a_failed_cancel_is_a_problem(run: Run) -> None:
    run.cancel_result = CancelResult.NOT_FOUND
    assert run.problems() == ["the cancel was answered by not found"]


def test_a_pipeline_without_a_turn_is_a_problem(run: Run) -> None:
    run.note(metrics(3))
    assert run.problems() == ["the pipeline made no turn within 60 s of the last message"]


class StackOfMetrics(Stack):
    """Returns prepared metrics of the broker in order, while time passes."""

    def __init__(self, home: Path, clock: ManualClock, turns: list[int]) -> None:
        super().__init__(StackSettings(home=home), clock=clock, tell=lambda text: None)
        self._turns, self._time = turns, clock

    async def metrics(self) -> dict[str, Any] | None:
        self._time.advance(30_000)
        return metrics(self._turns.pop(0) if len(self._turns) > 1 else self._turns[0])


@pytest.mark.parametrize(("turns", "problems"), [([3, 4], 0), ([3], 1)])
def test_the_demo_waits_for_the_first_turn(run: Run, tmp_path: Path, turns: list[int], problems: int) -> None:
    clock = ManualClock()
    waiting = Run(StackOfMetrics(tmp_path, clock, turns), clock)
    waiting.planned, waiting.cancel_result, waiting.turns_before = run.planned, run.cancel_result, 3
    asyncio.run(waiting.wait_for_turn())
    assert len(waiting.problems()) == problems
    assert not waiting.awaits_turn


def test_the_view_shows_once_that_the_demo_waits_for_a_turn(
    run: Run, stack: Stack, capsys: pytest.CaptureFixture[str]
) -> None:
    run.awaits_turn = True
    view = PlainView(run, stack, [])
    view.update()
    view.update()
    assert capsys.readouterr().out.count("Waiting up to 60 s for the first turn") == 1


def test_each_message_has_an_outcome() -> None:
    waiting = Planned(1000, DUE, "a")
    assert (outcome(waiting, DUE - 1), outcome(waiting, DUE)) == ("waits", "overdue")
    assert outcome(Planned(1000, DUE, "a", arrivals_ms=[DUE]), DUE) == "arrived"
    assert outcome(Planned(1000, DUE, "a", arrivals_ms=[DUE - 1]), DUE) == "early"
    assert outcome(Planned(1000, DUE, "a", is_cancelled=True), DUE) == "cancelled"


def test_the_view_shows_the_state_of_each_part(run: Run, stack: Stack) -> None:
    run.metrics = None
    assert [state for _, state in parts(run, stack)] == ["starting", "starting", "down, 0 turns so far", "starting"]
    run.note(metrics(7))
    stack.namesrv.came_up()
    found = dict(parts(run, stack))
    assert found["name server"] == f"up on {stack.namesrv_address}"
    assert found["broker"] == f"up on {stack.broker_address}"
    assert found["pipeline"] == "turning, 7 turns so far"
    stack.dashboard_url = "http://127.0.0.1:1/"
    assert dict(parts(run, stack))["dashboard"] == "up on http://127.0.0.1:1/"
