"""One run: a broker and its environment under one seed. First come faults, then a calm that delivers all messages."""

from __future__ import annotations

import tempfile
import traceback
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Final

from wheelmq.delay.timer.mark import MarkFile
from wheelmq.formats.disk.paths import StorePaths
from wheelmq.testing import invariants
from wheelmq.testing.clock import ManualClock
from wheelmq.testing.disk import SimulatedDisk
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.simulation.choices import WINDOW_MS, pick_blocks, pick_settings, quiet
from wheelmq.testing.simulation.consumer import Consumer
from wheelmq.testing.simulation.faults import Faults
from wheelmq.testing.simulation.names import Names
from wheelmq.testing.simulation.oracle import Oracle
from wheelmq.testing.simulation.producer import SimulatedProducer
from wheelmq.testing.simulation.run_result import RunResult
from wheelmq.testing.simulation.spark import Driver, Spark
from wheelmq.testing.simulation.times import (
    CALM_MS,
    CHECK_EVERY,
    DRIVER_WEIGHTS,
    EXACT_FROM_MS,
    LAPSE_MS,
    MINUTES_MS,
    OVERDUE_MS,
    TICKS_MS,
)
from wheelmq.testing.simulation.trace import Trace
from wheelmq.testing.simulation.world import World
from wheelmq.testing.stops import Died, Stops
from wheelmq.testing.workers import HeldWorker

STEPS: Final = 150


class Simulation:
    """A run of `steps` steps under `seed`. `show` gets each line of the trace."""

    def __init__(
        self,
        seed: int,
        *,
        steps: int = STEPS,
        show: Callable[[str], None] | None = None,
        driver: Driver | None = None,
    ) -> None:
        """Create a run. `driver` is the behaviour of drivers; None draws it from the seed."""
        self.seed = seed
        self._driver_chances = Random(f"drivers of {seed}")
        drawn = self._driver_chances.choices(list(Driver), DRIVER_WEIGHTS)[0]
        self._driver = drawn if driver is None else driver
        self._steps = steps
        self._show = show
        self._stops = Stops()
        self._tempers: dict[str, int] = {}
        """For each event, its factor in this run over its usual frequency."""

    def run(self) -> RunResult:
        """Run to the end, or to the first violation. All files are temporary."""
        outcome = RunResult(self.seed)
        with quiet(), tempfile.TemporaryDirectory(prefix="wheelmq-sim-") as folder, self._stops:
            try:
                self._begin(Path(folder))
                for step in range(self._steps):
                    self._do_a_step(step)
                self._calm()
                outcome.digest = self._world.trace.digest
            except Exception as error:
                outcome.violation = f"{type(error).__name__}: {error}"
                outcome.trace = [*self._world.trace.last, *traceback.format_exc().splitlines()[-24:]]
            finally:
                outcome.counts = self._world.counts
                if self._harness.is_running:
                    self._harness.crash()
        return outcome

    def _begin(self, folder: Path) -> None:
        r = Random(self.seed)
        self._disk, clock = SimulatedDisk(), ManualClock()
        held = r.random() < 0.6
        settings = pick_settings(r)
        block_share = pick_blocks(self.seed, settings)
        self._paths = StorePaths(folder / "store")
        self._harness = BrokerHarness(
            self._paths.root,
            clock=clock,
            disk=self._disk,
            worker=HeldWorker() if held else None,
            background=HeldWorker() if held else None,
            tables=HeldWorker() if held else None,
            seed=r.getrandbits(32),
            **settings,
        )
        trace = Trace(clock.now_ms, folder, self._show)
        names, oracle = Names(folder / "names", clock), Oracle(self._disk)
        self._world = World(self._harness, names, oracle, r, trace, block_share)
        trace.note(f"seed {self.seed} {'held' if held else 'inline'} {settings}")
        self._producers: list[SimulatedProducer] = [SimulatedProducer(self._world, number) for number in range(3)]
        self._consumer = Consumer(self._world)
        self._spark = Spark(self._world, self._driver, self._driver_chances)
        self._faults = Faults(self._world, self._disk, self._stops, self.seed)
        self._pick_tempers()

    # Steps ---------------------------------------------------------------------------------------------------------

    def _do_a_step(self, step: int) -> None:
        """Run one random event, and check the broker after it."""
        world = self._world
        self._faults.begin_step(step)
        choices = self._running() if self._harness.is_running else self._down()
        weights = [weight * self._tempers.get(action.__name__, 1) for action, weight in choices]
        ((action, _),) = world.randomness.choices(choices, weights)
        world.trace.note(action.__name__.lstrip("_"))
        try:
            action()
            if self._harness.is_running:
                self._tick()
        except Died as died:
            self._died(f"died at {died}", str(died))
        if not self._harness.is_running:
            return
        if self._harness.broker.parts.health.failure is not None:
            if world.chance(0.5):
                self._died(f"has failed: {self._harness.broker.parts.health.failure}")
        elif step % CHECK_EVERY == 0:
            self._check()

    def _pick_tempers(self) -> None:
        """Draw the factors of this run: some events never happen in it, others often. A start is never excluded."""
        for action, _ in self._running():
            self._tempers[action.__name__] = self._world.randomness.choice((0, 1, 1, 1, 4))

    def _check(self) -> None:
        with self._disk.sparing():
            invariants.check(self._harness.broker)

    def _running(self) -> list[tuple[Callable[[], None], int]]:
        r = self._world.randomness
        producer = r.choice(self._producers)
        return [
            (producer.send, 30),
            (producer.send_again, 3),
            (producer.send_batch, 3),
            (producer.send_with_one_opaque, 1),
            (producer.cancel, 4),
            (producer.recall, 2),
            (producer.cut, 1),
            (self._send_many, 3),
            (self._consumer.pull_any, 8),
            (self._consumer.commit, 2),
            (self._consumer.cut, 1),
            (self._spark.turn, 6),
            (self._spark.other_turn, 1),
            (self._spark.zombie, 2),
            (self._spark.late, 1),
            (self._spark.die, 1),
            (self._time_passes, 20),
            (self._time_passes_without_spark, 6),
            *([] if self._driver is Driver.PRESENT else [(self._minutes_pass, 3)]),
            (self._faults.set_the_clock, 1),
            (self._run_jobs, 8),
            (self._work_unobserved, 2),
            (self._names_come_and_go, 2),
            (self._names.lose_broker, 1),
            (self._faults.pages_go_to_disk, 3),
            (self._faults.a_call_will_fail, 1),
            (self._faults.disk_fills_up, 1),
            (self._faults.files_expire, 1),
            (self._faults.will_die, 2),
            (self._die_now, 1),
            (self._stop_cleanly, 1),
        ]

    @property
    def _names(self) -> Names:
        return self._world.names

    def _down(self) -> list[tuple[Callable[[], None], int]]:
        return [(self._start, 4), (self._names_come_and_go, 1), (self._nothing_runs, 1)]

    def _send_many(self) -> None:
        producer = self._world.randomness.choice(self._producers)
        for _ in range(self._world.randomness.randint(3, 12)):
            producer.send()

    def _time_passes(self) -> None:
        r = self._world.randomness
        self._harness.advance(r.choice((r.randint(1, 300), r.randint(1, 4000))), self._observe, TICKS_MS)

    def _time_passes_without_spark(self) -> None:
        r = self._world.randomness
        self._harness.advance(r.choice((r.randint(1, 300), r.randint(1, 9000))), self._world.observe, TICKS_MS)

    def _minutes_pass(self) -> None:
        """Let a driver index some messages, and then let no driver turn for long. No message may be overdue then."""
        world, harness = self._world, self._harness
        self._spark.come()
        for _ in range(3):
            self._send_many()
            harness.advance(1000, self._observe, TICKS_MS)
        self._spark.go()
        by, health = harness.broker.parts.timer.pending.armed_by, harness.broker.parts.health
        before = by["wheel_lane"]
        harness.advance(world.randomness.randint(*MINUTES_MS), self._observe_and_work, TICKS_MS)
        world.counts["armed by the wheel lane"] += by["wheel_lane"] - before
        world.observe()
        world.counts["long times"] += 1
        if health.failure is None and not self._faults.disk_is_full and health.rejection is None:
            overdue = [name for due_ms, name in world.oracle.pending if due_ms < harness.now_ms - OVERDUE_MS]
            assert not overdue, f"{len(overdue)} messages are overdue while no driver turns: {overdue[:5]}"

    def _observe(self) -> None:
        self._world.observe()
        self._spark.turn()
        if self._world.chance(0.8):
            self._harness.run_jobs()

    def _observe_and_work(self) -> None:
        self._world.observe()
        self._spark.turn()
        self._harness.run_jobs()

    def _tick(self) -> None:
        """End a step: tick, observe the log, register at the name server, and collect the answers of clients."""
        harness, world = self._harness, self._world
        if world.chance(0.5):
            harness.tick()
        else:
            harness.end_round()
        world.observe()
        self._names.tick(harness.broker)
        self._collect()
        world.oracle.check_nothing_that_waits_is_gone(harness.broker)

    def _collect(self) -> None:
        for producer in self._producers:
            producer.collect()
        self._consumer.collect()

    def _run_jobs(self) -> None:
        self._harness.run_jobs(self._world.randomness.randint(1, 4))

    def _work_unobserved(self) -> None:
        worker = self._world.randomness.choice((self._harness.worker, self._harness.background))
        if isinstance(worker, HeldWorker):
            worker.work(1)

    # Faults --------------------------------------------------------------------------------------------------------

    def _names_come_and_go(self) -> None:
        if self._names.is_up:
            self._names.stop()
        else:
            self._names.start()

    def _die_now(self) -> None:
        raise Died("no failpoint")

    def _died(self, why: str, point: str | None = None) -> None:
        """Kill the process, at the failpoint `point` if it is given; in some cases also cut the power.

        A power cut loses data that was not synced.
        """
        world = self._world
        world.trace.note(f"  the broker {why}")
        world.counts["kills"] += 1
        world.observe()
        self._collect()
        self._harness.crash()
        self._stopped()
        if world.chance(self._faults.power_share(point)):
            self._faults.cut_power()

    def _stop_cleanly(self) -> None:
        refused = self._disk.refused
        try:
            self._serve_waiting_sends()
            self._harness.stop()
        except OSError as error:
            self._died(f"could not stop cleanly: {error}")
            return
        self._collect()
        self._names.tick(None)
        if self._disk.refused > refused:  # then the last commits may not be saved
            self._consumer.stopped()

    def _serve_waiting_sends(self) -> None:
        """Serve the sends that wait for their topic. A stop serves them too, but the oracle could not observe it."""
        self._harness.settle()
        while isinstance(tables := self._harness.tables, HeldWorker) and len(tables) and self._harness.is_running:
            tables.run()
            self._harness.settle()
        if self._harness.is_running:
            self._world.observe()
            self._collect()

    def _stopped(self) -> None:
        self._stops.disarm()
        self._collect()
        self._consumer.stopped()
        self._names.tick(None)

    # Start, and the calm -------------------------------------------------------------------------------------------

    def _nothing_runs(self) -> None:
        self._harness.clock.advance(self._world.randomness.randint(1, 10_000))

    def _start(self) -> None:
        """Start the broker. It may die during the start, or meet a failing disk."""
        r = self._world.randomness
        if self._world.chance(0.2):
            self._stops.arm(r.randint(0, 12))
        marked_to = self._marked_to()
        try:
            self._harness.start()
        except Died as died:
            self._world.trace.note(f"  died during the start, at {died}")
            self._harness.crash()
            self._stopped()
            if self._world.chance(0.4):
                self._faults.cut_power()
            return
        except OSError as error:
            self._world.trace.note(f"  does not start: {error}")
            self._harness.crash()
            self._stopped()
            return
        self._recovered(marked_to)

    def _marked_to(self) -> int:
        """Return E from the mark on disk while no broker runs: the end of the indexed part of the timer queue."""
        if not self._paths.timer_mark.exists():
            return 0
        with self._disk.sparing():
            mark = MarkFile(self._disk, self._paths).load()
        return 0 if mark is None else mark.queue_offset

    def _recovered(self, marked_to: int) -> None:
        world, broker = self._world, self._harness.broker
        indexed_to = broker.parts.timer.indexed_to
        assert indexed_to >= marked_to, f"the mark was wrong: indexed to {marked_to}, but recovered to {indexed_to}"
        gone = world.oracle.recovered(broker, self._harness.now_ms, power_was_cut=self._faults.take_power_cut())
        if gone:
            world.trace.note(f"  {gone} records are lost")
            world.counts["records gone"] += gone
        if broker.parts.health.failure is None:
            self._check()
            self._consumer.check_committed()
            world.observe()

    def _start_in_calm(self) -> None:
        marked_to = self._marked_to()
        self._harness.start()
        self._recovered(marked_to)

    def _calm(self) -> None:
        """End all faults. All messages must be delivered in time, and the result must survive."""
        self._stops.disarm()
        self._faults.heal()
        self._world.trace.note("calm")
        if self._harness.is_running:  # the loop may not know an earlier failure yet
            self._tick()
            self._harness.run_jobs()
            self._world.observe()
        if self._harness.is_running and self._harness.broker.parts.health.failure is not None:
            self._died("has failed")
        if not self._harness.is_running:
            self._start_in_calm()
        if not self._names.is_up:
            self._names.start()
        self._faults.end_hours()
        self._spark.calm()
        self._harness.advance(LAPSE_MS, self._lapse, TICKS_MS)
        self._tick()
        now_ms, from_position = self._harness.now_ms, self._harness.broker.parts.store.log.end
        timed = [self._producers[0].send_at(now_ms + delay_ms) for delay_ms in (40, 1500, 6000, WINDOW_MS + 3000)]
        if self._world.block_share:
            timed += [self._producers[0].send_in_block(seconds) for seconds in (1, 6, 11)]
        self._let_all_come_out()
        self._check_exact(now_ms + EXACT_FROM_MS, from_position)
        for sent in timed:
            left_ms = self._world.oracle.delivered[sent.name].left_ms
            assert left_ms == sent.due_ms, f"{sent.name!r}, due at {sent.due_ms}, was released at {left_ms}, in a calm"
        self._names.check(self._harness.broker)
        self._consumer.drain()
        self._end()

    def _check_exact(self, from_ms: int, from_position: int) -> None:
        """Check that timers due from `from_ms` on, stored from `from_position` on, left at their millisecond."""
        for name, entry in self._world.oracle.delivered.items():
            due_ms = self._world.oracle.sent[name].due_ms
            if due_ms is not None and due_ms >= from_ms and entry.position >= from_position and entry.left_ms:
                assert entry.left_ms == due_ms, f"{name!r} was released {entry.left_ms - due_ms} ms late in the calm"

    def _lapse(self) -> None:
        self._world.observe()
        self._harness.run_jobs()

    def _let_all_come_out(self) -> None:
        """Let time pass until no message is pending and every request has an answer."""
        oracle = self._world.oracle
        self._serve_waiting_sends()
        self._tick()
        last_ms = max((due_ms for due_ms, _ in oracle.pending), default=0)
        self._harness.advance(max(0, last_ms - self._harness.now_ms) + CALM_MS, self._observe_and_work, TICKS_MS)
        self._tick()
        assert not oracle.pending, (
            f"{len(oracle.pending)} messages are still pending: {oracle.pending[:5]}, now {self._harness.now_ms}"
        )
        waiting = [*(producer.waits for producer in self._producers), self._consumer.waits]
        assert not any(waiting), f"requests without an answer: {waiting}"

    def _end(self) -> None:
        """Check that a clean stop and a start change nothing. The digest covers all bytes of the log."""
        harness, world = self._harness, self._world
        self._consumer.commit()
        self._check()
        for _ in range(2):  # after a failed sync, the first stop does not count as clean
            harness.stop()
            self._start_in_calm()
        assert harness.broker.parts.store.last_stop_was_clean, "a stop was not clean, although nothing had failed"
        log = harness.broker.parts.store.log
        read = b"".join(bytes(file.view[at:stop]) for _, file, at, stop in log.files.pieces(log.start, log.end))
        world.trace.note(f"log {log.start}..{log.end} crc {zlib.crc32(read)}")
        world.counts["delivered"] = len(world.oracle.delivered)
        world.counts["delivered from blocks"] = world.oracle.delivered_from_blocks
        world.counts["records"] = world.oracle.records
