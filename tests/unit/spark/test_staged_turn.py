"""When a stage is used: after failures in a row, after a turn that never ended, and for each broker alone."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from wheelmq.spark.staged_turn import FAILURES_MAX, StageTrial
from wheelmq.spark.stages import InOrder, RateLimit, stage_of_broker


@pytest.fixture
def said() -> list[dict[str, Any]]:
    return []


@pytest.fixture
def trial(said: list[dict[str, Any]]) -> StageTrial:
    return StageTrial(lambda rows: rows, "broker", lambda event, **fields: said.append({"event": event, **fields}))


def fail(trial: StageTrial) -> None:
    assert trial.begin()
    trial.note_failure(RuntimeError("the stage raises"))


def test_a_stage_is_off_after_failures_in_a_row(
    trial: StageTrial, said: list[dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(FAILURES_MAX - 1):
        fail(trial)
    assert trial.begin()
    trial.note_success()
    for _ in range(FAILURES_MAX):
        assert trial.is_used
        fail(trial)
    assert not trial.is_used and not trial.begin()
    assert [one["is_used"] for one in said] == [True] * (2 * FAILURES_MAX - 2) + [False]
    assert all(one["event"] == "stage failed" and "the stage raises" in one["why"] for one in said)
    (alarm,) = [record.message for record in caplog.records if record.levelno == logging.CRITICAL]
    assert alarm.startswith("ALARM: broker: the stage failed 2 times in a row.")


def test_a_stage_that_hangs_is_off_too(trial: StageTrial, said: list[dict[str, Any]]) -> None:
    """The driver stops the query of a turn that hangs, so the stage never ends."""
    for _ in range(FAILURES_MAX):
        assert trial.begin()
    assert not trial.begin()
    assert [one["is_used"] for one in said] == [True] * (FAILURES_MAX - 1) + [False]


def test_a_failure_of_the_lease_does_not_count(trial: StageTrial, said: list[dict[str, Any]]) -> None:
    for _ in range(FAILURES_MAX + 1):
        assert trial.begin()
        trial.note_other_failure()
    assert trial.is_used and said == []


def test_each_broker_has_the_memory_of_its_own_stage() -> None:
    limit = RateLimit({"T": 1})
    of_a, of_b = stage_of_broker(limit, "a"), stage_of_broker(InOrder(limit), "b")
    assert isinstance(of_a, RateLimit) and of_a is not limit
    assert isinstance(of_b, InOrder) and of_b._stages[0] not in (limit, of_a)

    def plain(rows: Any) -> Any:
        return rows

    assert stage_of_broker(plain, "a") is plain
