"""The tasks of a broker: their order, their times, their failures, and their ends."""

from __future__ import annotations

import logging

import pytest

from wheelmq.broker.steps import Steps
from wheelmq.broker.task_list import TaskList, TickTask, TickTime, every, resting
from wheelmq.formats.units import Millis
from wheelmq.testing.clock import ManualClock

NOW = TickTime(Millis(50_000), 1000)


def list_of(*tasks: TickTask) -> TaskList:
    return TaskList(tasks, Steps(lambda: 0.0))


class TestRun:
    def test_tasks_run_in_their_order(self) -> None:
        ran: list[str] = []
        tasks = list_of(*(TickTask(name, lambda time, name=name: ran.append(name)) for name in "abc"))  # type: ignore[misc]
        tasks.run(NOW)
        assert ran == ["a", "b", "c"]

    def test_a_run_returns_the_sum_of_what_its_tasks_return(self) -> None:
        assert (
            list_of(TickTask("a", lambda time: 3), TickTask("b", lambda time: None), TickTask("c", lambda time: 4)).run(
                NOW
            )
            == 7
        )

    def test_a_task_that_fails_does_not_stop_the_next(self, caplog: pytest.LogCaptureFixture) -> None:
        def fail(time: TickTime) -> None:
            raise ValueError("broken")

        steps = Steps(lambda: 0.0)
        with caplog.at_level(logging.WARNING):
            assert TaskList([TickTask("bad", fail), TickTask("good", lambda time: 1)], steps).run(NOW) == 1
        assert steps.failures == {"bad": 1} and "broken" in caplog.text

    def test_an_added_task_runs_last(self) -> None:
        ran: list[str] = []
        tasks = list_of(TickTask("first", lambda time: ran.append("first")))
        tasks.add(TickTask("added", lambda time: ran.append("added")))
        tasks.run(NOW)
        assert ran == ["first", "added"]


class TestNext:
    @pytest.mark.parametrize(
        ("times", "expected"), [((), None), ((None,), None), ((7, 5, None), 5), ((None, 1000), 1000)]
    )
    def test_the_next_tick_is_that_of_the_first_task(self, times: tuple[int | None, ...], expected: int | None) -> None:
        tasks = [TickTask("a", next_ms=lambda time, at=at: at) for at in times]  # type: ignore[misc]
        assert list_of(*tasks, TickTask("without a time")).next_ms(NOW) == expected

    def test_a_wall_time_becomes_a_monotonic_time(self) -> None:
        assert NOW.after_wall_ms(50_300) == 1300 and NOW.after_wall_ms(None) is None


class TestEvery:
    def test_a_function_runs_once_an_interval(self) -> None:
        clock, calls = ManualClock(), []
        start_ms = clock.monotonic_ms()
        tasks = list_of(every("name", 100, lambda: calls.append(clock.monotonic_ms()), clock))
        for _ in range(25):
            time = TickTime(clock.now_ms(), clock.monotonic_ms())
            assert tasks.run(time) == 0
            assert tasks.next_ms(time) == start_ms + 100 * (len(calls) + 1)
            clock.advance(10)
        assert calls == [start_ms + 100, start_ms + 200]

    def test_a_function_that_fails_runs_again_after_its_interval(self) -> None:
        clock, calls = ManualClock(), []

        def fail() -> None:
            calls.append(clock.monotonic_ms())
            raise ValueError("no")

        tasks, start_ms = list_of(every("name", 100, fail, clock)), clock.monotonic_ms()
        for _ in range(25):
            tasks.run(TickTime(clock.now_ms(), clock.monotonic_ms()))
            clock.advance(10)
        assert calls == [start_ms + 100, start_ms + 200]


class TestClose:
    def closed(self, *, fails_at: str | None) -> list[str]:
        """Return the tasks that a stop closes, if the broker fails when it closes `fails_at`."""
        ended: list[str] = []
        names = ("before", "tables", "store")
        list_of(
            *(
                TickTask(name, close=lambda name=name: ended.append(name), closes_after_failure=name == "tables")  # type: ignore[misc]
                for name in names
            ),
            TickTask("no end"),
        ).close(lambda: fails_at == "start" or fails_at in ended)
        return ended

    def test_tasks_close_in_their_order(self) -> None:
        assert self.closed(fails_at=None) == ["before", "tables", "store"]

    def test_after_a_failure_only_some_tasks_close(self) -> None:
        assert self.closed(fails_at="start") == ["tables"]

    def test_a_failure_during_the_stop_counts_at_once(self) -> None:
        assert self.closed(fails_at="before") == ["before", "tables"]


class TestResting:
    def test_a_tick_in_the_rest_skips_the_task_and_asks_for_a_tick_at_its_end(self) -> None:
        clock, ran = ManualClock(), 0

        def run(time: TickTime) -> None:
            nonlocal ran
            ran += 1

        tasks = list_of(resting(TickTask("rests", run), 10, clock))
        start_ms = clock.monotonic_ms()

        def tick(*, by_event: bool = False) -> int | None:
            time = TickTime(clock.now_ms(), clock.monotonic_ms(), by_event=by_event)
            tasks.run(time)
            return tasks.next_ms(time)

        assert tick() is None and ran == 1, "it ran, and needs no tick"
        clock.advance(4)
        assert tick() == start_ms + 10 and ran == 1
        clock.advance(6)
        assert tick() is None and ran == 2
        assert tick(by_event=True) is None and ran == 3, "an event ends the rest"

    def test_a_task_that_asks_for_a_tick_gets_it_after_its_rest(self) -> None:
        clock = ManualClock()
        start_ms = clock.monotonic_ms()
        for asked_ms, expected_ms in ((3, 10), (25, 25), (None, None)):
            asked = None if asked_ms is None else start_ms + asked_ms
            task = TickTask("rests", lambda time: 1, lambda time, asked=asked: asked)  # type: ignore[misc]
            tasks, time = list_of(resting(task, 10, clock)), TickTime(clock.now_ms(), clock.monotonic_ms())
            assert tasks.run(time) == 1
            assert tasks.next_ms(time) == (None if expected_ms is None else start_ms + expected_ms)

    def test_a_task_that_fails_is_tried_again_after_its_rest(self) -> None:
        clock = ManualClock()

        def fail(time: TickTime) -> None:
            raise ValueError("broken")

        tasks, time = list_of(resting(TickTask("bad", fail), 10, clock)), TickTime(clock.now_ms(), clock.monotonic_ms())
        tasks.run(time)
        assert tasks.next_ms(time) == clock.monotonic_ms() + 10
