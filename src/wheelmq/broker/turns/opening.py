"""Build the parts that serve the pipeline, each with what it uses."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from wheelmq.broker.admission.store_health import StoreHealth
from wheelmq.broker.holds import Holds
from wheelmq.broker.settings import BrokerSettings
from wheelmq.broker.steps import Steps
from wheelmq.broker.store_sizes import store_sizes
from wheelmq.broker.turns.committer import Committer
from wheelmq.broker.turns.coordinator import TurnCoordinator
from wheelmq.broker.turns.fallback import Fallback
from wheelmq.broker.turns.figures import TurnFigures
from wheelmq.broker.turns.lease import PipelineLease
from wheelmq.broker.turns.lease_watch import LeaseWatch
from wheelmq.broker.turns.mark_writer import MarkWriter
from wheelmq.broker.turns.pace import TurnPace
from wheelmq.broker.turns.plan_maker import PlanMaker
from wheelmq.delay.blocks.turns import BlockTurns
from wheelmq.delay.blocks.walk import BlockWalk
from wheelmq.delay.timer.mark import CheckFile
from wheelmq.delay.timer.portions import PortionReader
from wheelmq.delay.timer.timer import Timer
from wheelmq.store.store import Store
from wheelmq.system.workers import Workers


def open_turns(
    store: Store,
    timer: Timer,
    block_walk: BlockWalk,
    block_turns: BlockTurns,
    settings: BrokerSettings,
    *,
    workers: Workers,
    randomness: Random,
    health: StoreHealth,
    holds: Holds,
    steps: Steps,
    want_flush: Callable[[], None],
    has_burst: Callable[[], bool],
    earliest_in_hand_ms: Callable[[], int | None],
) -> TurnCoordinator:
    clock = store.clock
    watch, figures = LeaseWatch(clock.monotonic), TurnFigures()
    pace = TurnPace(timer, block_walk, settings, has_burst)
    check_file = CheckFile(store, workers.background)
    marks = MarkWriter(store, timer, check_file, workers.flushing, health, earliest_in_hand_ms)
    return TurnCoordinator(
        timer,
        clock,
        holds,
        steps,
        lease=PipelineLease(timer.turns, watch, clock, randomness, health),
        pace=pace,
        plan_maker=PlanMaker(store, timer, block_turns, pace, settings.broker.name, want_flush),
        committer=Committer(timer, block_turns, watch, figures, clock),
        marks=marks,
        fallback=Fallback(
            timer,
            workers.timers,
            clock.monotonic_ms(),
            save=marks.save,
            is_saving=marks.is_saving,
            want_flush=want_flush,
        ),
        figures=figures,
        reader=PortionReader(store.paths.root, store_sizes(settings)),
    )
