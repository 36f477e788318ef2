"""When the driver gives a query up. The broker is real; the query is one that hangs, which Spark's do not on demand."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.errors import CallError
from wheelmq.pipeline import broker_turns
from wheelmq.pipeline.broker_turns import QUIET_S, RENEW_S, BrokerTurns
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel


class HangingQuery:
    """It is active until it is stopped, and does nothing."""

    def __init__(self) -> None:
        self.isActive = True

    def stop(self) -> None:
        self.isActive = False


class Wire:
    """A link to the broker of a harness, as long as that is not away."""

    def __init__(self, harness: BrokerHarness) -> None:
        self._harness = harness
        self.is_away = False

    def call(self, command: Command) -> Command:
        if self.is_away:
            raise CallError("nobody answers")
        return self._harness.ask(command)


class Driver:
    """The turns of the harness' broker, in a step of which nothing but the query is not what it is."""

    def __init__(self, harness: BrokerHarness) -> None:
        self.said: list[dict[str, Any]] = []
        self.query = HangingQuery()
        self.wire = Wire(harness)
        self._harness = harness
        self._turns = BrokerTurns(
            cast(Any, None),
            "broker",
            "driver",
            lambda what, **more: self.said.append(more),
            "source",
            holder_id="id of driver",
        )
        turns = cast(Any, self._turns)
        turns._link, turns._query = self.wire, self.query
        turns._epoch = PipelineModel(harness, "driver").open()
        turns._renewed_s = harness.clock.monotonic()

    def turned(self) -> None:
        """The query has committed a turn."""
        self._turns._turned("turn 1")

    def given_up_after(self, most_s: float) -> float | None:
        """Let seconds pass until the query is stopped, and tell how many; None when it is not within `most_s`."""
        began_s = self._harness.clock.monotonic()
        while self._harness.clock.monotonic() - began_s <= most_s:
            self._turns._step()
            if not self.query.isActive:
                return self._harness.clock.monotonic() - began_s
            self._harness.clock.advance(100)
        return None


@pytest.fixture
def driver(harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch) -> Driver:
    monkeypatch.setattr(broker_turns, "time", SimpleNamespace(monotonic=harness.clock.monotonic))
    return Driver(harness)


def restart(harness: BrokerHarness) -> None:
    harness.restart()


def lose_to_another(harness: BrokerHarness) -> None:
    harness.ask_code(RequestCode.WMQ_PIPELINE_OPEN, name="driver", holderId="id of driver")


@pytest.mark.parametrize("over", [restart, lose_to_another])
def test_its_lease_is_over(harness: BrokerHarness, driver: Driver, over: Callable[[BrokerHarness], None]) -> None:
    over(harness)
    after_s = driver.given_up_after(QUIET_S)
    assert after_s is not None and after_s <= RENEW_S + 0.1
    assert "given up: " in driver.said[-1]["why"] and "STALE" in driver.said[-1]["why"]


@pytest.mark.parametrize("is_away", [False, True])
def test_nothing_is_heard_of_its_turn(driver: Driver, is_away: bool) -> None:
    """The broker says so, or does not answer."""
    driver.wire.is_away = is_away
    assert driver.given_up_after(QUIET_S + 2 * RENEW_S) is None, "the first turn of all has more time"
    driver.turned()
    assert driver.given_up_after(2 * RENEW_S) is not None
    assert "given up: nothing was heard of its turn" in driver.said[-1]["why"]


def test_a_broker_that_was_away_for_a_moment(driver: Driver) -> None:
    driver.turned()
    for _ in range(3):
        driver.wire.is_away = True
        assert driver.given_up_after(QUIET_S - 2 * RENEW_S) is None
        driver.wire.is_away = False
        driver._harness.broker.pipeline.stir()
        assert driver.given_up_after(RENEW_S) is None
