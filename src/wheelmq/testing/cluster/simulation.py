"""One run of a cluster under one seed. First come faults, then a calm in which all brokers become equal."""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

from wheelmq.testing.clock import ManualClock
from wheelmq.testing.cluster.calm import Calm
from wheelmq.testing.cluster.choices import pick_cluster
from wheelmq.testing.cluster.clients import ClusterConsumer, ClusterProducer, HalfProducer
from wheelmq.testing.cluster.cluster import SimulatedCluster
from wheelmq.testing.cluster.faults import ClusterFaults, Event, pass_time
from wheelmq.testing.cluster.member import Member
from wheelmq.testing.simulation.choices import quiet
from wheelmq.testing.simulation.run_result import RunResult
from wheelmq.testing.simulation.trace import Trace
from wheelmq.testing.simulation.world import World
from wheelmq.testing.stops import Stops

STEPS: Final = 120
FIRST_PARTS_MAX: Final = 50
FIRST_MS: Final = 300
"""Time before each of the first messages. A log cannot be truncated later if a power cut leaves no record of it."""
ALWAYS: Final = ("time passes", "a process starts")
"""Events that happen in each run."""
Client = ClusterProducer | HalfProducer


class ClusterSimulation:
    """A run of `steps` steps under `seed`. `show` gets each line of the trace."""

    def __init__(self, seed: int, *, steps: int = STEPS, show: Callable[[str], None] | None = None) -> None:
        self.seed = seed
        self._steps = steps
        self._show = show
        self._stops = Stops()
        self._tempers: dict[str, int] = {}
        """For each event, its factor in this run over its usual frequency."""

    def run(self) -> RunResult:
        """Run to the end, or to the first violation. All files are temporary."""
        outcome = RunResult(self.seed)
        with quiet(), tempfile.TemporaryDirectory(prefix="wheelmq-sim-") as folder, self._stops:
            self._begin(Path(folder))
            try:
                self._start()
                for _ in range(self._steps):
                    self._do_a_step()
                self._calm().run()
                outcome.digest = self._trace.digest
            except Exception as error:
                outcome.violation = f"{type(error).__name__}: {error}"
                outcome.trace = [*self._trace.last, *traceback.format_exc().splitlines()[-24:]]
            finally:
                outcome.counts = self._cluster.counts
                self._stops.disarm()
                for member in self._cluster.members:
                    if member.is_running:
                        member.kill()
        return outcome

    def _begin(self, folder: Path) -> None:
        self._r = r = Random(self.seed)
        clock = ManualClock()
        trace = self._trace = Trace(clock.now_ms, folder, self._show)
        choices = pick_cluster(r, self.seed)
        trace.note(f"seed {self.seed} {choices}")
        cluster = self._cluster = SimulatedCluster(folder, choices, r, self._stops, trace, clock)
        first = cluster.members[0]
        worlds = [
            World(first.harness, cluster.names, cluster.oracle, r, trace, choices.block_share, cluster.counts)
            for _ in range(3)
        ]
        self._producers = [ClusterProducer(worlds[i], cluster.oracle, i, first) for i in range(2)]
        self._transactions = HalfProducer(worlds[2], cluster.oracle, first)
        self._consumer = ClusterConsumer(worlds[2], cluster.oracle, cluster.observe)
        self._faults = ClusterFaults(cluster, r, self._stops)
        cluster.before_death.append(self._collect_from)
        for event in self._events():
            self._tempers[event.name] = r.choice((1, 1, 2, 4) if event.name in ALWAYS else (0, 1, 1, 1, 4))

    def _start(self) -> None:
        for member in self._cluster.members:
            self._cluster.start(member)
            self._cluster.advance(self._r.choice((0, 50)))
        for _ in range(FIRST_PARTS_MAX):
            pass_time(self._cluster, self._r, FIRST_MS, self._collect)
            self._cluster.operator.recheck()
            self._cluster.settle()
            if self._cluster.master.parts.store.log.synced and self._cluster.operator.all_are_complete():
                return
            self._by(self._producers[0], self._producers[0].send)
        raise AssertionError("the slaves do not follow their master")

    def _calm(self) -> Calm:
        return Calm(self._cluster, self._producers, self._transactions, self._consumer, self._collect, self._trace)

    # Steps ---------------------------------------------------------------------------------------------------------

    def _do_a_step(self) -> None:
        """Run one random event, and let the cluster work after it."""
        events = self._events()
        (event,) = self._r.choices(events, [event.weight * self._tempers[event.name] for event in events])
        self._trace.note(event.name)
        event.action()
        self._cluster.settle()
        self._collect()

    def _events(self) -> list[Event]:
        producer = self._r.choice(self._producers)
        transactions = self._transactions
        return [
            Event("send", partial(self._by, producer, producer.send), 30),
            Event("send again", partial(self._by, producer, producer.send_again), 2),
            Event("send a batch", partial(self._by, producer, producer.send_batch), 3),
            Event("cancel", partial(self._by, producer, producer.cancel), 4),
            Event("recall", partial(self._by, producer, producer.recall), 2),
            Event("send many", partial(self._send_many, producer), 4),
            Event("send a half message", partial(self._by, transactions, transactions.send), 6),
            Event("end a transaction", partial(self._by, transactions, transactions.end_one), 6),
            Event("clients move", self._move_clients, 6),
            Event("a client errs", self._move_astray, 2),
            Event("pull", self._pull, 8),
            Event("failover under load", self._fail_over_under_load, 3),
            Event("time passes", self._pass_time, 26),
            Event("jobs run", self._run_jobs, 6),
            *self._faults.events(),
        ]

    # Clients -------------------------------------------------------------------------------------------------------

    def _by(self, client: Client, action: Callable[[], object]) -> None:
        """Let a client do something at the broker that it takes for the master, if that one serves."""
        if client.view.is_open:
            self._cluster.do(client.view, action)

    def _send_many(self, producer: ClusterProducer) -> None:
        for _ in range(self._r.randint(3, 10)):
            self._by(producer, producer.send)

    def _clients(self) -> list[Client]:
        return [*self._producers, self._transactions]

    def _move_clients(self) -> None:
        """Let the clients find the present master."""
        for client in self._clients():
            client.move(self._cluster.master)

    def _move_astray(self) -> None:
        """Let one client take any broker for the master."""
        self._r.choice(self._clients()).move(self._r.choice(self._cluster.members))

    def _pull(self) -> None:
        """Pull from the master, or from any broker if its records stay."""
        cluster = self._cluster
        reads_slaves = cluster.choices.in_sync == 2 and cluster.choices.is_sync
        views = [one for one in cluster.members if one.is_open and (reads_slaves or one is cluster.master)]
        views = [one for one in views if one.is_master or one.has_agreed]
        if views:
            view = self._r.choice(views)
            cluster.do(view, partial(self._consumer.pull_any, view))

    def _collect(self) -> None:
        """Let the clients take their answers, and answer checks."""
        for client in self._clients():
            if client.view.is_open:
                self._cluster.do(client.view, client.collect)
        if self._transactions.view.is_open:
            self._cluster.do(self._transactions.view, self._transactions.beat)

    def _collect_from(self, member: Member) -> None:
        for client in self._clients():
            if client.view is member:
                client.take_answers()

    def _fail_over_under_load(self) -> None:
        """Isolate the master, use it, promote a slave, and use the former master again."""
        faults, producer = self._faults, self._r.choice(self._producers)
        self._move_clients()
        faults.isolate_master()
        for promotes in (True, False):
            for _ in range(self._r.randint(1, 3)):
                self._send_many(producer)
                self._by(self._transactions, self._transactions.end_one)
                pass_time(self._cluster, self._r, self._r.choice((1, 20, 200)), self._collect)
                self._pull()
            if promotes:
                faults.fail_over()

    # Time ----------------------------------------------------------------------------------------------------------

    def _pass_time(self) -> None:
        ms = self._r.choice((self._r.randint(1, 30), self._r.randint(1, 300), self._r.randint(1, 2500)))
        pass_time(self._cluster, self._r, ms, self._collect)

    def _run_jobs(self) -> None:
        member = self._r.choice(self._cluster.members)
        if member.is_open:
            self._cluster.do(member, partial(member.harness.run_jobs, self._r.randint(1, 4)))
