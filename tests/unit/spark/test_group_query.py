"""The thread of a group replaces a query that ends or hangs. The query is fake, as Spark's do not hang on demand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from py4j.protocol import Py4JError

from wheelmq.spark.broker_turns import LEFT_BEHIND_MAX, QUIET_FIRST_S, QUIET_S
from wheelmq.spark.group_query import GroupTurns

WAIT_S = 3.0


class FakeGroup:
    """A group with a member, whose quiet time a test sets."""

    def __init__(self) -> None:
        self.members: dict[str, object] = {"a": object()}
        self.wait_s = WAIT_S
        self.has_turned = False
        self.silence_s = 0.0
        self.failed: list[str] = []

    def note_progress(self) -> None:
        self.silence_s = 0.0

    def quiet_s(self) -> float:
        return self.silence_s

    def fail(self, why: str) -> None:
        self.failed.append(why)
        self.has_turned = False


class FakeQuery:
    def __init__(self) -> None:
        self.is_active = True
        self.has_files = True
        self.while_it_stops: Callable[[], None] = lambda: None

    def problem(self) -> str:
        return "the query failed"

    def stop(self) -> None:
        self.is_active = False
        self.while_it_stops()

    def remove_checkpoint(self) -> None:
        self.has_files = False


class Driver:
    def __init__(self) -> None:
        self.group = FakeGroup()
        self.queries: list[FakeQuery] = []
        self.now_s = 100.0
        self.turns = GroupTurns(
            "group 1",
            self.group,  # type: ignore[arg-type]
            self._start,
            lambda function, *arguments: function(*arguments),
            is_wanted=lambda: bool(self.group.members),
            has_turned=lambda: False,
            now_s=lambda: self.now_s,
        )

    def _start(self) -> Any:
        self.queries.append(FakeQuery())
        return self.queries[-1]

    def step(self) -> None:
        self.now_s += 1.0
        self.turns.step()


def test_a_group_without_members_has_no_query() -> None:
    driver = Driver()
    driver.group.members.clear()
    driver.step()
    assert driver.queries == []
    driver.group.members["a"] = object()
    driver.step()
    assert len(driver.queries) == 1


def test_a_query_that_ended_is_replaced_and_its_batch_fails() -> None:
    driver = Driver()
    driver.step()
    driver.queries[0].is_active = False
    driver.step()
    assert driver.group.failed == ["the query failed"] and not driver.queries[0].has_files
    driver.step()
    assert [one.is_active for one in driver.queries] == [False, True]


def test_a_silent_query_is_stopped_and_the_limit_doubles() -> None:
    driver = Driver()
    driver.step()
    driver.group.silence_s = QUIET_FIRST_S
    driver.step()
    assert driver.group.failed == [], "the first turn of all has more time"
    for doublings in range(3):
        driver.group.has_turned = doublings == 0
        limit_s = WAIT_S + (QUIET_S if doublings == 0 else QUIET_FIRST_S * 2**doublings)
        for silence_s, stopped in ((limit_s, doublings), (limit_s + 0.1, doublings + 1)):
            driver.group.silence_s = silence_s
            driver.step()
            assert len(driver.group.failed) == stopped
        driver.step()
    assert all("made no progress" in why for why in driver.group.failed)


def test_the_driver_ends_after_too_many_queries_that_do_not_stop() -> None:
    def hang() -> None:
        raise Py4JError("no answer")

    driver = Driver()
    for attempt in range(LEFT_BEHIND_MAX + 1):
        driver.step()
        driver.queries[-1].while_it_stops = hang
        driver.group.silence_s = 100 * QUIET_FIRST_S
        if attempt < LEFT_BEHIND_MAX:
            driver.step()
        else:
            with pytest.raises(RuntimeError, match="hang and cannot be stopped"):
                driver.step()
