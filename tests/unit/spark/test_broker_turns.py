"""The driver stops a query that hangs. The broker is real. The query is fake, as Spark's do not hang on demand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from py4j.protocol import Py4JError

from wheelmq.broker.handlers.metrics import pipeline_metrics
from wheelmq.formats.wire.frame import Command
from wheelmq.net.errors import CallError
from wheelmq.pipeline.progress import LOOK_S, Progress, answer_of
from wheelmq.pipeline.session import SETTINGS
from wheelmq.spark.broker_turns import LEFT_BEHIND_MAX, POLL_S, QUIET_S, RENEW_S, BrokerTurns
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import open_lease


class HangingQuery:
    """A query that is active until it is stopped, and does nothing. A test reports its turns by `turned`."""

    def __init__(self, turned: Callable[[str], None]) -> None:
        self.is_active = True
        self.turned = turned
        self.has_files = True
        self.while_it_stops: Callable[[], None] = lambda: None

    def problem(self) -> str:
        return "the query failed"

    def stop(self) -> None:
        self.while_it_stops()
        self.is_active = False

    def remove_checkpoint(self) -> None:
        self.has_files = False


class Wire:
    """A link to the broker of a harness. It fails while `is_away` is true."""

    def __init__(self, harness: BrokerHarness) -> None:
        self._harness = harness
        self.is_away = False

    def call(self, command: Command) -> Command:
        if self.is_away:
            raise CallError("nobody answers")
        self._harness.broker.parts.pipeline_key.sign(command)
        return self._harness.ask(command)

    def close(self) -> None:
        """Do nothing."""


class Driver:
    """The turns for the broker of a harness. Only their queries are fake."""

    def __init__(self, harness: BrokerHarness) -> None:
        self.said: list[dict[str, Any]] = []
        self.wire = Wire(harness)
        self.queries: list[HangingQuery] = []
        self._harness = harness
        self._turns = BrokerTurns(
            "broker",
            self.wire,
            self._start_query,
            lambda what, **more: self.said.append({"what": what} | more),
            name="driver",
            holder_id="id of driver",
            now_s=harness.clock.monotonic,
        )
        self.step()

    def _start_query(self, lease: bytes, turned: Callable[[str], None]) -> HangingQuery:
        self.queries.append(HangingQuery(turned))
        return self.query

    @property
    def query(self) -> HangingQuery:
        """The last query that was started."""
        return self.queries[-1]

    def step(self) -> None:
        self._turns.step()

    def turned(self) -> None:
        """Report that the query has committed a turn."""
        self.query.turned("turn 1")

    def stopped_after(self, most_s: float) -> float | None:
        """Let time pass until the query is stopped. Returns the seconds, or None after `most_s` without a stop."""
        began_s = self._harness.clock.monotonic()
        while self._harness.clock.monotonic() - began_s <= most_s:
            self.step()
            if not self.query.is_active:
                return self._harness.clock.monotonic() - began_s
            self._harness.clock.advance(100)
        return None


@pytest.fixture
def driver(harness: BrokerHarness) -> Driver:
    return Driver(harness)


def restart(harness: BrokerHarness) -> None:
    harness.restart()


def lose_to_another(harness: BrokerHarness) -> None:
    harness.ask(open_lease(harness, "driver", "id of driver"))


@pytest.mark.parametrize("over", [restart, lose_to_another])
def test_a_query_is_stopped_when_its_lease_is_over(
    harness: BrokerHarness, driver: Driver, over: Callable[[BrokerHarness], None]
) -> None:
    over(harness)
    after_s = driver.stopped_after(QUIET_S)
    assert after_s is not None and after_s <= RENEW_S + 0.1
    assert "stopped: " in driver.said[-1]["why"] and "STALE" in driver.said[-1]["why"]


@pytest.mark.parametrize("is_away", [False, True])
def test_a_query_without_progress_is_stopped(driver: Driver, is_away: bool) -> None:
    """The broker reports no progress, or it does not answer."""
    driver.wire.is_away = is_away
    assert driver.stopped_after(QUIET_S + 2 * RENEW_S) is None, "the first turn of all has more time"
    driver.turned()
    assert driver.stopped_after(2 * RENEW_S) is not None
    assert "stopped: its turn made no progress" in driver.said[-1]["why"]


def test_a_broker_that_is_away_for_a_moment_stops_no_query(driver: Driver) -> None:
    driver.turned()
    for _ in range(3):
        driver.wire.is_away = True
        assert driver.stopped_after(QUIET_S - 2 * RENEW_S) is None
        driver.wire.is_away = False
        driver._harness.broker.parts.pipeline.lease.note_progress()
        assert driver.stopped_after(RENEW_S) is None


def test_a_query_that_ended_is_replaced_under_another_lease(driver: Driver) -> None:
    driver.query.is_active = False
    driver.step()
    assert driver.said[-1]["what"] == "query ended" and driver.said[-1]["why"] == "the query failed"
    assert not driver.query.has_files
    driver.step()
    assert [one.is_active for one in driver.queries] == [False, True]
    opened = [event["epoch"] for event in driver.said if event["what"] == "turning"]
    assert len(opened) == 2 and opened[0] < opened[1]


def test_the_driver_ends_after_too_many_queries_that_do_not_stop(driver: Driver, harness: BrokerHarness) -> None:
    def hang() -> None:
        raise Py4JError("no answer")

    for _ in range(LEFT_BEHIND_MAX):
        driver.query.while_it_stops = hang
        lose_to_another(harness)
        while driver.said[-1]["what"] != "query ended":
            harness.clock.advance(100)
            driver.step()
        driver.step()
        assert driver.said[-1]["what"] == "turning"
    driver.query.while_it_stops = hang
    lose_to_another(harness)
    harness.clock.advance(round(1000 * RENEW_S))
    with pytest.raises(RuntimeError, match="hang and cannot be stopped"):
        driver.step()


STOP_S = float(SETTINGS["spark.sql.streaming.stopTimeout"].removesuffix("s"))
ANSWER_S = 0.01
"""Time that a broker takes to answer the supervisor. Checks are a little more than LOOK_S apart."""


def test_a_query_may_stop_slowly_after_a_restart_of_its_broker(harness: BrokerHarness, driver: Driver) -> None:
    """The supervisor must not kill a driver that waits for Spark's stopTimeout."""
    progress, clock = Progress("driver"), harness.clock
    turning, verdicts, next_look_s = {"broker"}, list[str | None](), 0.0

    def check_progress() -> None:
        nonlocal next_look_s
        now_s = clock.monotonic()
        if now_s < next_look_s:
            return
        next_look_s = now_s + LOOK_S + ANSWER_S
        answers = {"broker": answer_of(pipeline_metrics(harness.broker.parts.metric_sources))}
        verdicts.append(progress.problem(now_s, answers, turning=turning, has_session=True))

    def stop() -> None:
        for _ in range(round(STOP_S * 100)):
            clock.advance(10)
            check_progress()

    driver.turned()
    driver.query.while_it_stops = stop
    driver.step()  # renews the lease: the next renewal is RENEW_S away, the worst case
    restart(harness)
    while driver.query.is_active:
        check_progress()
        clock.advance(10)
        if round(clock.monotonic() * 1000) % round(1000 * POLL_S) == 0:
            driver.step()
    turning.clear()  # as the supervisor does once the driver has reported the end of the query
    check_progress()
    assert len(verdicts) > STOP_S / LOOK_S and set(verdicts) == {None}
    assert "stopped: " in driver.said[-1]["why"]
