"""The faults of a cluster: kills, losses of power and disks, partitions, and changes of the master."""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Final, NamedTuple

from wheelmq.testing.cluster.cluster import SimulatedCluster
from wheelmq.testing.cluster.member import Member
from wheelmq.testing.cluster.names import HOST as NAMES_HOST
from wheelmq.testing.cluster.operator import Rejected
from wheelmq.testing.cluster.oracle import Change
from wheelmq.testing.disk import Call
from wheelmq.testing.stops import Died, Stops

SLICE_MS: Final = 300
"""Time between two rounds of jobs while time passes."""
OF_REPLICATION: Final = ("copy.", "epochs.", "follow.", "truncate.", "transaction.", "replace.")
"""The beginnings of the names of failpoints between two steps that a copy or a change of the role makes."""


class Event(NamedTuple):
    """One kind of event, and its usual frequency."""

    name: str
    action: Callable[[], object]
    weight: int


def pass_time(cluster: SimulatedCluster, r: Random, ms: int, collect: Callable[[], None]) -> None:
    """Let time pass. Between its parts, clients take their answers, and most workers do their jobs."""
    while ms > 0:
        part_ms = min(ms, SLICE_MS)
        cluster.advance(part_ms)
        for member in cluster.members:
            if member.is_open and r.random() < 0.8:
                cluster.do(member, member.harness.run_jobs)
        collect()
        ms -= part_ms


class ClusterFaults:
    """Random faults. They keep the rules of the operator, so no acknowledged message may be lost."""

    def __init__(self, cluster: SimulatedCluster, randomness: Random, stops: Stops) -> None:
        self._cluster = cluster
        self._r = randomness
        self._stops = stops

    def events(self) -> list[Event]:
        return [
            Event("a process will die", self._will_die, 3),
            Event("a process dies", self._dies, 3),
            Event("a process stops", self._stops_cleanly, 1),
            Event("a process starts", self._starts, 12),
            Event("pages go to disk", self._pages_go_to_disk, 2),
            Event("a disk is lost", self._disk_is_lost, 1),
            Event("a call to a disk will fail", self._call_will_fail, 1),
            Event("the name server restarts", self._cluster.names.restart, 1),
            Event("a connection breaks", self._connection_breaks, 4),
            Event("a link is cut", self._link_is_cut, 2),
            Event("the master is isolated", self.isolate_master, 4),
            Event("links heal", self._links_heal, 5),
            Event("failover", self.fail_over, 8),
            Event("switch", self._switch, 3),
        ]

    def _running(self) -> list[Member]:
        return [one for one in self._cluster.members if one.is_running]

    # Processes -----------------------------------------------------------------------------------------------------

    def _will_die(self) -> None:
        """Have a process killed soon, or at a failpoint whose name was passed."""
        r, passed = self._r, sorted(set(self._stops.passed))
        named = [name for name in passed if name.startswith(OF_REPLICATION)]
        if passed and r.random() < 0.5:
            self._stops.arm_in(r.choice(named if named and r.random() < 0.6 else passed))
        else:
            self._stops.arm(r.randint(0, 60))

    def _dies(self) -> None:
        running = self._running()
        if running:
            self._cluster.kill(self._r.choice(running), "is killed", dark=self._r.random() < 0.4)

    def _stops_cleanly(self) -> None:
        running = self._running()
        if running:
            member = self._r.choice(running)
            self._cluster.note(f"  {member.name} stops")
            self._cluster.stop(member)

    def _starts(self) -> None:
        """Start a stopped process."""
        stopped = [one for one in self._cluster.members if not one.is_running]
        if stopped:
            self._cluster.start(self._r.choice(stopped))

    def _pages_go_to_disk(self) -> None:
        self._r.choice(self._cluster.members).disk.write_back(self._r, self._r.random())

    def _disk_is_lost(self) -> None:
        """Lose the disk of a slave, or that of the master if a slave can replace it."""
        cluster = self._cluster
        member = self._r.choice(cluster.members)
        if not cluster.operator.others_are_complete(member):
            return
        if member.is_running:
            cluster.kill(member, "is killed")
        if member is cluster.master:
            self.fail_over()
            if member is cluster.master:
                return
        cluster.lose_disk(member)

    def _call_will_fail(self) -> None:
        kinds = self._r.choice((tuple(Call), (Call.SYNC,), (Call.ALLOCATE, Call.MAP), (Call.REPLACE,)))
        error = OSError(errno.EIO, "the disk does not answer")
        self._r.choice(self._cluster.members).disk.fail_call(self._r.randint(1, 6), error, kinds)

    # The network ---------------------------------------------------------------------------------------------------

    def _hosts(self) -> list[str]:
        return [*(one.host for one in self._cluster.members), NAMES_HOST]

    def _connection_breaks(self) -> None:
        self._cluster.network.break_one(self._r)

    def _link_is_cut(self) -> None:
        one, other = self._r.sample(self._hosts(), 2)
        self._cluster.network.cut(one, other)

    def isolate_master(self) -> None:
        """Cut the master off from all other brokers, and often from the name server. Clients still reach it."""
        cluster = self._cluster
        for host in self._hosts():
            if host != cluster.master.host and (host != NAMES_HOST or self._r.random() < 0.7):
                cluster.network.cut(cluster.master.host, host)

    def _links_heal(self) -> None:
        for pair in list(self._cluster.network.cuts):
            one, other = sorted(pair)
            self._cluster.network.heal(one, other, self._r)

    def _is_isolated(self, member: Member) -> bool:
        others = (one.host for one in self._cluster.members if one is not member)
        return all(frozenset((member.host, host)) in self._cluster.network.cuts for host in others)

    # Changes of the master -----------------------------------------------------------------------------------------

    def fail_over(self) -> None:
        """Promote a slave if the master is down, cut off from all others, or waits because a slave has more."""
        cluster = self._cluster
        is_alone = self._is_isolated(cluster.master) and cluster.choices.in_sync == len(cluster.members)
        slave = cluster.operator.candidate()
        if slave is not None and (not cluster.master.is_running or is_alone or cluster.master_waits):
            cluster.note(f"  failover to {slave.name}")
            self._promote(slave, Change.FAILOVER, partial(cluster.operator.fail_over, slave))

    def _switch(self) -> None:
        cluster = self._cluster
        slave = cluster.operator.candidate()
        if slave is not None and cluster.master.is_master:
            cluster.note(f"  switch to {slave.name}")
            self._promote(slave, Change.SWITCH, partial(cluster.operator.switch, slave))

    def _promote(self, slave: Member, change: Change, promote: Callable[[], object]) -> None:
        """Promote a slave, which may die in it."""
        cluster = self._cluster
        former = cluster.master
        try:
            promote()
        except Rejected as error:
            cluster.note(f"  rejected: {error}")
        except Died as died:
            cluster.kill(slave, f"died at {died}")
            cluster.died_in_promotion(slave, change)
            return
        if cluster.master is slave:
            cluster.promoted(former, change)
