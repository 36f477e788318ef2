"""Tasks that run at intervals."""

from __future__ import annotations

import pytest

from wheelmq.broker.periodic_tasks import PeriodicTasks
from wheelmq.testing.clock import ManualClock


def test_a_task_runs_once_per_interval() -> None:
    clock, ran = ManualClock(), []
    tasks = PeriodicTasks(clock)
    tasks.every(100, lambda: ran.append("short"))
    tasks.every(250, lambda: ran.append("long"))
    for _ in range(50):
        clock.advance(10)
        tasks.run_due(clock.monotonic_ms())
    assert ran.count("short") == 5 and ran.count("long") == 2
    assert ran[:3] == ["short", "short", "long"]


def test_the_waits_are_those_of_the_tasks() -> None:
    clock = ManualClock()
    tasks = PeriodicTasks(clock)
    tasks.every(100, lambda: None)
    tasks.every(250, lambda: None)
    clock.advance(70)
    assert tasks.waits_ms(clock.monotonic_ms()) == [30, 180]


def test_an_interval_of_0_turns_a_task_off() -> None:
    clock, ran = ManualClock(), []
    tasks = PeriodicTasks(clock)
    tasks.every(0, lambda: ran.append(1))
    tasks.run_due(clock.monotonic_ms() + 1000)
    assert not ran and not tasks.waits_ms(clock.monotonic_ms())


def test_a_failed_task_waits_for_its_next_interval_and_delays_no_other() -> None:
    clock, ran = ManualClock(), []
    tasks = PeriodicTasks(clock)
    tasks.every(100, lambda: 1 // 0)
    tasks.every(100, lambda: ran.append(1))
    clock.advance(100)
    with pytest.raises(ZeroDivisionError):
        tasks.run_due(clock.monotonic_ms())
    tasks.run_due(clock.monotonic_ms())
    assert ran == [1]
