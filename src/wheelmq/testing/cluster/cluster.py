"""The machines of a cluster under one clock: time, work in a fixed order, deaths, and starts.

The oracle reads the log of the present master after each of its works, before any byte of it can reach another machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Final

from wheelmq.broker.replication.role import Role
from wheelmq.testing.clock import ManualClock, SkewedClock
from wheelmq.testing.cluster.choices import ClusterChoices
from wheelmq.testing.cluster.member import Member
from wheelmq.testing.cluster.names import ClusterNames
from wheelmq.testing.cluster.network import Network
from wheelmq.testing.cluster.operator import Operator
from wheelmq.testing.cluster.oracle import Change, ClusterOracle
from wheelmq.testing.simulation.trace import Trace
from wheelmq.testing.stops import Died, Stops

ROUNDS_MAX: Final = 20_000
"""The cluster fails if it has more rounds of work than this at one moment."""


class SimulatedCluster:
    """The brokers, the name server, and the network between them."""

    def __init__(
        self, folder: Path, choices: ClusterChoices, randomness: Random, stops: Stops, trace: Trace, clock: ManualClock
    ) -> None:
        self.clock, self._stops, self._trace = clock, stops, trace
        self._r = randomness
        self.choices = choices
        self.counts: Counter[str] = Counter()
        self.network = Network(clock, choices.weather, randomness.getrandbits(20))
        self.names = ClusterNames(folder / "names", clock, self.network)
        self.members = [
            Member(
                number,
                folder / f"store-{number}",
                clock=SkewedClock(clock, randomness.randint(-choices.skew_ms_max, choices.skew_ms_max)),
                network=self.network,
                stops=stops,
                is_held=choices.is_held,
                seed=randomness.getrandbits(32),
                settings={**choices.settings, **self._role_of(number)},
            )
            for number in range(choices.members)
        ]
        self.operator = Operator(self.members, choices.in_sync if choices.is_sync else 1, self.advance)
        self.oracle = ClusterOracle(
            self.members[0].disk, is_sync=choices.is_sync, flushes=choices.flushes, skew_ms_max=choices.skew_ms_max
        )
        self.before_death: list[Callable[[Member], None]] = []
        """Called before a process ends, with its member. Clients take the answers that have arrived."""
        self._next_change = Change.KILL
        """The reason of the next start of the master."""
        self.lag_at_death = 0
        self.end_at_death = 0
        self._released: dict[int, int] = {}
        self._lag_is_known = False
        """Whether a slave has reported to the present master since its start."""

    def _role_of(self, number: int) -> dict[str, object]:
        if number:
            return {"broker_role": "SLAVE", "broker_id": number}
        return {"broker_role": "SYNC_MASTER" if self.choices.is_sync else "ASYNC_MASTER"}

    @property
    def master(self) -> Member:
        return self.operator.master

    @property
    def now_ms(self) -> int:
        return self.clock.now_ms()

    def note(self, text: str) -> None:
        self._trace.note(text)

    # Time ----------------------------------------------------------------------------------------------------------

    def advance(self, ms: int) -> None:
        """Let time pass. All machines work at each moment at which one of them has something to do."""
        end_ms = self.clock.monotonic_ms() + ms
        while True:
            self.settle()
            now_ms = self.clock.monotonic_ms()
            if now_ms >= end_ms:
                return
            times = [one.next_ms() for one in self.members]
            times.append(self.names.loop.next_ms())
            due_ms = self.network.next_ms()
            times.append(None if due_ms is None else due_ms - now_ms)
            wait_ms = min((one for one in times if one is not None), default=end_ms - now_ms)
            self.clock.advance(min(max(1, wait_ms), end_ms - now_ms))

    def settle(self) -> None:
        """Let all machines work until nothing is left to do at this moment."""
        for _ in range(ROUNDS_MAX):
            self.network.deliver()
            has_worked = self.names.work()
            for member in self.members:
                has_worked = self.work(member) or has_worked
            due_ms = self.network.next_ms()
            if not has_worked and (due_ms is None or due_ms > self.clock.monotonic_ms()):
                self.operator.note_complete()
                if self.master.is_master and self.master.parts.replicas.acked():
                    self._lag_is_known = True
                return
        raise AssertionError("the cluster always has more work")

    def work(self, member: Member) -> bool:
        """Let a member work. Returns whether it had something to do."""
        worked = self._do(member, member.work)
        if worked:
            self._check_releases(member)
        if member is self.master and member.is_open and self._asks_slaves():
            self._continue(Change.POWER_CUT)
        if member.next_life is not None:
            self._begin_next_life(member)
            return True
        return bool(worked)

    def do(self, member: Member, action: Callable[[], object]) -> None:
        """Use the broker of a member, whose process may die in it."""
        member.note_action()
        self._do(member, action)

    def _do(self, member: Member, action: Callable[[], object]) -> object:
        """Return the result of an action; None after a death."""
        try:
            result = action()
            member.check_alive()
        except Died as died:
            self.kill(member, f"died at {died}")
            return None
        if result is False:
            return False  # it had no work
        self.observe()
        if member.is_running and member.parts.health.failure is not None:
            self.kill(member, f"has failed: {member.parts.health.failure}")
        return result

    def observe(self) -> None:
        """Let the oracle read the new records of the present master."""
        master = self.master
        if master.is_running and self.oracle.broker is master.broker:
            self.oracle.observe(master.broker, master.harness.now_ms)

    def _check_releases(self, member: Member) -> None:
        """Check that a slave releases no message."""
        if not member.is_running:
            return
        released = member.parts.releaser.counts["released"]
        if member.parts.role.is_master or member.parts.replication.successor is not None:
            self._released[member.number] = released
        before = self._released.setdefault(member.number, 0)
        assert released == before, f"{member.name} is a slave and has released {released - before} messages"

    # Starts and ends -----------------------------------------------------------------------------------------------

    def start(self, member: Member) -> None:
        """Start a broker. It may die during the start, or meet a failing disk."""
        self.note(f"  {member.name} starts")
        self._released[member.number] = 0
        try:
            member.start()
        except Died as died:
            self.kill(member, f"died during the start, at {died}")
            return
        except OSError as error:
            self.note(f"  {member.name} does not start: {error}")
            self.kill(member, "did not start")
            return
        if member is self.master:
            assert member.parts.role.is_master, f"{member.name} is the present master, and starts as a slave"
            if not self._asks_slaves():
                self._continue(self._next_change)

    def _asks_slaves(self) -> bool:
        """Return whether the present master starts after a power cut, and first asks its slaves."""
        loses = self.choices.is_sync and not self.choices.flushes
        return loses and self._next_change is Change.POWER_CUT and self.oracle.broker is None

    @property
    def master_waits(self) -> bool:
        """Whether the master runs, and does not serve because a slave has more, or may have more."""
        return self.master.is_running and self._asks_slaves()

    def _continue(self, change: Change) -> None:
        """Continue the history with the log of the present master."""
        role = self.master.parts.role
        assert role.is_sync == self.choices.is_sync, f"{self.master.name} has another mode than the former master"
        now_ms = self.master.harness.now_ms
        keeps_all = self.choices.in_sync == len(self.members) and self.operator.all_are_complete()
        gone = self.oracle.continue_with(self.master.broker, self.master.disk, now_ms, change, keeps_all=keeps_all)
        self.note(f"  the history continues at {self.master.name} after a {change.name}, without {gone} records")
        self.counts["records taken back"] += gone
        self._next_change, self._lag_is_known = Change.KILL, False

    def kill(self, member: Member, why: str, *, dark: bool = False) -> None:
        """End the process of a member. Without power it also loses unsynced bytes."""
        self.note(f"  {member.name} {why}" + (", and has no power" if dark else ""))
        self.counts["kills"] += 1
        self._stops.disarm()
        if member.is_running:
            self._note_end(member)
        member.kill(dark=dark)
        if not dark:
            return
        self.counts["power cuts"] += 1
        member.disk.cut_power(self._r, self._r.choice((0.0, 0.5, self._r.random(), 1.0)))
        self.operator.note_loss(member)
        if member is self.master:
            self._next_change = Change.POWER_CUT

    def _note_end(self, member: Member) -> None:
        self.observe()
        for call in self.before_death:
            call(member)
        if member is self.master:
            self.lag_at_death = member.parts.replicas.lag_bytes()
            self.end_at_death = member.parts.store.log.end
            self.oracle.broker = None

    def stop(self, member: Member) -> None:
        """Stop a broker cleanly. It first serves the sends that wait for their topic, so that the oracle sees them."""
        if member.is_open:
            self.do(member, member.serve_waiting_sends)
        if not member.is_running:
            return
        self._note_end(member)
        try:
            member.stop()
        except (Died, OSError) as error:
            self.kill(member, f"could not stop cleanly: {error}")
        self._stops.disarm()

    def _begin_next_life(self, member: Member) -> None:
        """Stop a broker, prepare its store for another role, and start it again."""
        life = member.next_life
        assert life is not None
        assert member is not self.master or not member.parts.role.is_master, (
            f"{member.name} is the present master, and becomes a slave"
        )
        self.note(f"  {member.name} begins another life")
        self.counts["lives"] += 1
        self.stop(member)
        try:
            life()
        except Died as died:
            self.kill(member, f"died between two lives, at {died}")
            return
        except OSError as error:
            self.note(f"  {member.name} cannot change its role: {error}")
            self.lose_disk(member)
        self.start(member)

    def lose_disk(self, member: Member) -> None:
        """Give a machine without a process an empty disk. Its next start is that of a new slave."""
        self.counts["lost disks"] += 1
        self.note(f"  {member.name} has a new disk")
        self.operator.note_loss(member)
        member.wipe(self.operator.free_id(member))

    # Promotions ----------------------------------------------------------------------------------------------------

    def promoted(self, former: Member, change: Change) -> None:
        """Continue the history with a promoted slave. Under ASYNC_MASTER, check the loss against the reported lag."""
        self.counts[change.name.lower()] += 1
        master = self.master
        if change is Change.FAILOVER and not self.choices.is_sync and self._lag_is_known:
            is_running = former.is_running
            lag = former.parts.replicas.lag_bytes() if is_running else self.lag_at_death
            end = former.parts.store.log.end if is_running else self.end_at_death
            last = master.parts.epochs.last
            assert last is not None
            assert end - last.start <= lag, f"the failover lost {end - last.start} bytes, and the lag was {lag}"
        self._continue(change)

    def died_in_promotion(self, slave: Member, change: Change) -> None:
        """Find out whether a slave that died during its promotion starts as the master."""
        role = Role(slave.harness.settings, slave.disk, slave.paths)
        if role.is_master:
            self.operator.replaced_by(slave)
            self._next_change, self.oracle.broker = change, None

    def fail_over_to(self, slave: Member) -> None:
        """Promote a slave in the calm."""
        former = self.master
        self.operator.fail_over(slave)
        self.promoted(former, Change.FAILOVER)

    def end_faults(self) -> None:
        """Let nothing fail any more."""
        self._stops.disarm()
        for pair in list(self.network.cuts):
            one, other = sorted(pair)
            self.network.heal(one, other, self._r)
        for member in self.members:
            member.disk.heal()
