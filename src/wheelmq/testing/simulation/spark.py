"""Spark's behaviour around the pipeline: attempts, lost answers, late uploads, drivers that die and come back.

The pure code is that of the pipeline. Spark only decides which code runs, how often, and when.
"""

from __future__ import annotations

from enum import StrEnum
from random import Random
from typing import Final, NamedTuple

from wheelmq.delay.timer.turns import Part, TurnPlan
from wheelmq.delay.timer.view import StoreUnreadable
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.errors import CallError, Refused
from wheelmq.testing.pipeline_model import Fault, PipelineModel, Task
from wheelmq.testing.simulation.world import World


class Driver(StrEnum):
    """The behaviour of the drivers of a run."""

    PRESENT = "present"
    NEVER = "never"
    AWAY = "away"
    """Drivers are away for minutes, repeatedly."""
    HUNG = "hung"
    """Drivers keep the lease for minutes and upload, but do not commit. Some of these turns commit much later."""
    CRASHING = "crashing"
    """For minutes, drivers open a lease, ask for a plan and die before they commit, repeatedly."""


TIMES: Final = (Driver.AWAY, Driver.HUNG, Driver.CRASHING)
"""Behaviours with times of presence and of absence."""
PRESENT_MS: Final = (3000, 20_000)
ABSENT_MS: Final = (20_000, 240_000)
"""Shortest and longest time for which drivers are present, and absent or hung."""
MISHAPS: Final = (
    Fault.LOSE_REQUEST,
    Fault.LOSE_ANSWER,
    Fault.LOSE_ANSWER,
    Fault.REPEAT,
    Fault.DELAY,
)
PROPOSALS_KEPT: Final = 6


class _Proposal(NamedTuple):
    """The uncommitted work of a driver when it was assumed dead."""

    plan: TurnPlan
    tasks: list[Task]
    winners: list[Part]


class Spark:
    """Two applications that want the lease. The second one gets it when the first is silent."""

    def __init__(self, world: World, driver: Driver, chances: Random) -> None:
        r = world.randomness
        self._world = world
        self._driver = driver
        self._chances = chances
        """The generator for times of absence. It is separate from the world's, so that other runs do not change."""
        self._is_absent = driver is Driver.NEVER
        self._changes_ms = 0
        self._models = [
            PipelineModel(
                world.harness,
                name,
                index_parts=r.randint(1, 3),
                walk_parts=r.randint(1, 3),
                chunk_rows=r.choice((1, 3, 1000)),
                attempts=r.randint(1, 2),
                over_the_wire=r.random() < 0.5,
            )
            for name in ("one", "two")
        ]
        self._mishaps = r.choice((0.0, 0.0, 0.05, 0.3))
        self._deaths = r.choice((0.0, 0.05, 0.3))
        """Share of the turns in which a driver is assumed dead before it commits."""
        self._zombies: list[_Proposal] = []

    def calm(self) -> None:
        """End all faults. Delayed requests are lost, and drivers restart, if any come in this run."""
        self._mishaps = self._deaths = 0.0
        self._zombies.clear()
        self._is_absent = self._driver is not Driver.PRESENT
        self._driver = Driver.NEVER if self._is_absent else Driver.PRESENT
        for model in self._models:
            model.delayed.clear()
            model.terms = None

    def turn(self, who: int = 0) -> None:
        model, world = self._models[who], self._world
        self._come_or_go()
        if self._is_absent and self._driver not in (Driver.HUNG, Driver.CRASHING):
            return
        model.fault = self._fault
        try:
            told = self._drive(model)
        except Refused as refused:
            model.terms = None
            told = "waits" if refused.code == ResponseCode.NO_PERMISSION else f"was rejected: {refused}"
        except (CallError, StoreUnreadable) as error:
            model.terms = None
            told = f"ends: {error}"
        if self._is_absent:
            self._crash(model)
        if told:
            world.trace.note(f"  driver {model.name} {told}")

    def _crash(self, model: PipelineModel) -> None:
        if self._driver is Driver.CRASHING:
            model.terms = None

    def come(self) -> None:
        if self._driver in TIMES:
            self._is_absent, self._changes_ms = True, 0
            self._come_or_go()

    def go(self) -> None:
        if self._driver in TIMES:
            self._is_absent, self._changes_ms = False, 0
            self._come_or_go()

    def _come_or_go(self) -> None:
        now_ms = self._world.harness.clock.monotonic_ms()
        if self._driver in TIMES and now_ms >= self._changes_ms:
            self._is_absent = not self._is_absent
            self._changes_ms = now_ms + self._chances.randint(*(ABSENT_MS if self._is_absent else PRESENT_MS))

    def other_turn(self) -> None:
        self.turn(1)

    def _drive(self, model: PipelineModel) -> str:
        world = self._world
        if model.terms is None:
            model.open()
        plan = model.plan()
        if plan is None:
            return ""
        if world.chance(0.1):
            self._time_passes()
        tasks = model.read(plan)
        winners = [model.hand_over(plan, task) for task in tasks]
        if self._is_absent:
            self._zombies = [*self._zombies, _Proposal(plan, tasks, winners)][-PROPOSALS_KEPT:]
            return f"hangs in turn {plan.turn}"
        if world.chance(self._deaths):
            self._zombies = [*self._zombies, _Proposal(plan, tasks, winners)][-PROPOSALS_KEPT:]
            model.terms = None
            return f"dies before it commits turn {plan.turn}"
        if world.chance(0.1):
            self._time_passes()
        try:
            model.commit(plan, winners)
        except CallError:
            if world.chance(0.5):
                raise
            model.commit(plan, winners)  # a driver without an answer repeats its commit
        world.counts["turns"] += 1
        assert world.harness.broker.parts.timer.turns.turn >= plan.turn, (
            f"turn {plan.turn} is committed, but not counted"
        )
        return f"committed turn {plan.turn}: {plan.index_from}..{plan.index_to}, {plan.walk_rows} walked"

    def zombie(self) -> None:
        """Let a driver that was assumed dead continue: its tasks upload, and it commits."""
        if not self._zombies:
            return
        world = self._world
        model = self._models[world.randomness.randrange(2)]
        plan, tasks, winners = world.randomness.choice(self._zombies)
        try:
            if world.chance(0.5):
                winners = [model.upload(plan, task) for task in tasks]
            model.commit(plan, winners)
            world.trace.note(f"  a zombie committed turn {plan.turn} of epoch {plan.epoch}")
        except (Refused, CallError) as error:
            world.trace.note(f"  a zombie: {error}")
        world.counts["zombies"] += 1

    def late(self) -> None:
        for model in self._models:
            model.deliver_delayed()

    def die(self) -> None:
        """Kill and restart the application. It has lost its state."""
        self._models[0].terms = None

    def _time_passes(self) -> None:
        self._world.harness.advance(self._world.randomness.randint(1, 400))

    def _fault(self, code: RequestCode, command: Command) -> Fault:
        if not self._world.chance(self._mishaps):
            return Fault.DELIVER
        self._world.counts["mishaps"] += 1
        return self._world.randomness.choice(MISHAPS)
