"""Carry out kills, with checks before and after each."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from tests.crash.parts import BrokerProcess, Event, Pipeline, Role, check_role, fired, is_gone
from tests.crash.requests import until
from tests.crash.schedule import PIPELINE_AWAY, PIPELINE_POINTS, Chain, Kill

LOOK_S: Final = 0.05
ROLES_EVERY: Final = 6
"""Samples of the broker per sample of the processes below the driver."""
FRESH_MS: Final = 1000
PRECISION_MS: Final = 1000
READY_DEADLINE_S: Final = 60.0
TURNING_DEADLINE_S: Final = 90.0
POINT_DEADLINE_S: Final = 100.0
"""A block is deleted at the end of its minute."""
AGAIN_S: Final = 1.0


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass
class Death:
    what: str
    pid: int
    pending: int
    at_ms: int
    epoch: int
    """The pipeline's lease."""
    armed_through_ms: int
    """The due time up to which every indexed message was armed."""
    of_broker: bool
    by_failpoint: bool
    serving_s: float | None = None
    """Time from the kill of a broker until it served again."""
    turning_s: float | None = None
    """Time from the kill, or from the broker's return, to the commit of a turn; None if another kill came first."""
    times: int = 1
    """A failpoint of source and tasks fires again in each new worker."""


@dataclass
class Sample:
    """The broker's metrics, and their time."""

    at_ms: int = 0
    metrics: dict[str, Any] = field(default_factory=dict)

    @property
    def pending(self) -> int:
        return int(self.metrics["timers"]["pending"]) if self.metrics else 0

    @property
    def epoch(self) -> int:
        return int(self.metrics["pipeline"]["epoch"]) if self.metrics else 0

    @property
    def boot_ms(self) -> int:
        return int(self.metrics["boot_ms"]) if self.metrics else 0

    @property
    def armed_through_ms(self) -> int:
        """The end of the last scanned slot. Such a slot holds the due times of the second after its time."""
        return int(self.metrics["pipeline"]["walked_through_ms"]) + PRECISION_MS if self.metrics else 0


class Watch:
    """Samples the broker's metrics continuously, and the roles of Spark's processes."""

    def __init__(self, broker: BrokerProcess, pipeline: Pipeline | None) -> None:
        self._broker = broker
        self._pipeline = pipeline
        self.last = Sample()
        self.commits: list[int] = []
        """The lease of each observed commit of a turn."""

    async def run(self) -> None:
        """Take samples until cancelled."""
        looks = 0
        while True:
            await self._read_metrics()
            looks += 1
            if self._pipeline is not None and looks % ROLES_EVERY == 0:
                self._pipeline.find_processes()
            await asyncio.sleep(LOOK_S)

    async def _read_metrics(self) -> None:
        found = await self._broker.metrics()
        if found is None:
            return
        before, self.last = self.last, Sample(now_ms(), found)
        if before.boot_ms == self.last.boot_ms:
            more = found["pipeline"]["turn"] - before.metrics["pipeline"]["turn"]
            self.commits.extend([self.last.epoch] * more)

    async def until(self, condition: Callable[[], bool], deadline_s: float) -> bool:
        """Wait until `condition`, which is checked at each sample. Returns False at the deadline."""
        return await until(condition, deadline_s, LOOK_S)


class Killer:
    """Carries out a schedule. `deaths` and `violations` are the result."""

    def __init__(
        self,
        broker: BrokerProcess,
        pipeline: Pipeline | None,
        watch: Watch,
        *,
        event: Event,
        tell: Callable[[str], None],
        pending_min: int,
        turning_max_s: float,
    ) -> None:
        self._broker = broker
        self._pending_min = pending_min
        self._turning_max_s = turning_max_s
        self._pipeline = pipeline
        self._watch = watch
        self._event = event
        self._tell = tell
        self.deaths: list[Death] = []
        self.violations: list[str] = []
        self._points_seen = 0
        self._of_workers: Death | None = None

    async def work(self, chains: Sequence[Chain], stop_at: float) -> None:
        """Carry out the schedule. If the time (monotonic) ends before the schedule, that is a violation."""
        for chain in chains:
            for i, kill in enumerate(chain):
                if time.monotonic() > stop_at:
                    self._object(f"the time ran out after {len(self.deaths)} kills")
                    return
                if kill.is_failpoint:
                    await self._meet_point(kill, chain[i + 1 :])
                else:
                    await self._by_hand(kill, chain[i + 1 :])

    def _object(self, text: str) -> None:
        self.violations.append(text)
        self._event(f"VIOLATION {text}")
        self._tell(f"VIOLATION {text}")

    # By hand ---------------------------------------------------------------------------------------------------------

    async def _by_hand(self, kill: Kill, rest: Chain) -> None:
        if not await self._watch.until(lambda: self._is_well(kill), TURNING_DEADLINE_S):
            self._object(f"before {kill.what}: not well within {TURNING_DEADLINE_S} s, {self._state()}")
        if not self._broker.is_alive:
            self._object(f"the broker died by itself, see its log; before {kill.what}")
            await self._broker.start()
            return
        await asyncio.sleep(kill.pause_s)  # the kill comes at a random moment
        arms = rest[0].arms if rest else None
        match kill.what:
            case "broker":
                await self._kill_broker(kill.what, arms)
            case "broker again":
                await self._kill_broker(kill.what, None, is_to_serve=False)
                await asyncio.sleep(kill.pause_s % AGAIN_S)
                await self._kill_broker(kill.what, arms)
            case "broker and driver":
                await self._kill_pipeline(kill.what, Role.DRIVER, is_to_turn=False)
                await self._kill_broker(kill.what, arms)
            case "driver" | "jvm":
                assert self._pipeline is not None
                self._pipeline.queue(*(one.arms for one in rest))
                await self._kill_pipeline(kill.what, Role(kill.what))
            case _ if kill.what == PIPELINE_AWAY:
                await self._send_pipeline_away(kill)
            case _:
                await self._kill_pipeline(kill.what, Role(kill.what))

    def _is_well(self, kill: Kill) -> bool:
        last = self._watch.last
        if not self._broker.is_alive or now_ms() - last.at_ms > FRESH_MS or last.pending < self._pending_min:
            return False
        return kill.impatient or self._pipeline is None or bool(last.metrics["pipeline"]["is_turning"])

    async def _kill_broker(self, what: str, arms: tuple[str, int] | None, *, is_to_serve: bool = True) -> None:
        pid = self._broker.pid
        if not check_role(pid, Role.BROKER):
            self._object(f"{what}: process {pid} is no broker")
        death = self._note(what, pid, of_broker=True)
        os.kill(pid, signal.SIGKILL)
        await self._restart_broker(death, arms, is_to_serve=is_to_serve)

    async def _restart_broker(self, death: Death, arms: tuple[str, int] | None, *, is_to_serve: bool = True) -> None:
        """Start the killed broker, and measure how long it is away, then how long the pipeline is."""
        code = await self._broker.wait_dead()
        if code != -signal.SIGKILL:
            self._object(f"{death.what}: the broker ended with code {code}, and not by the kill")
        boot_ms = self._watch.last.boot_ms
        await self._broker.start(arms)
        if not is_to_serve:
            self._report_death(death)
            return

        def serves() -> bool:
            last = self._watch.last
            return last.boot_ms > boot_ms and bool(last.metrics["takes_sends"])

        await self._watch.until(lambda: not self._broker.is_alive or serves(), READY_DEADLINE_S)
        if serves():
            back_ms = self._watch.last.at_ms
            death.serving_s = (back_ms - death.at_ms) / 1000
            if self._pipeline is not None:
                await self._see_turning(death, back_ms)
        elif self._broker.is_alive:
            self._object(f"{death.what}: the broker does not serve after {READY_DEADLINE_S} s")
        self._report_death(death)

    async def _kill_pipeline(self, what: str, role: Role, *, is_to_turn: bool = True) -> None:
        assert self._pipeline is not None
        found: list[int] = []

        def there() -> bool:
            assert self._pipeline is not None
            found[:] = self._pipeline.find_processes()[role]
            return bool(found)

        if not await self._watch.until(there, TURNING_DEADLINE_S):
            self._object(f"{what}: there is no {role} within {TURNING_DEADLINE_S} s")
            return
        pid = found[len(self.deaths) % len(found)]
        if not check_role(pid, role):
            self._object(f"{what}: process {pid} is no {role}")
        death = self._note(what, pid)
        os.kill(pid, signal.SIGKILL)
        if not await self._watch.until(lambda: is_gone(pid), READY_DEADLINE_S):
            self._object(f"{what}: process {pid} does not die")
        if is_to_turn:
            await self._see_turning(death, death.at_ms, same_lease=role in (Role.TASK, Role.DAEMON))
        self._report_death(death)

    async def _send_pipeline_away(self, kill: Kill) -> None:
        """Kill all of the pipeline, start it again after `away_s`, and measure the time until it turns."""
        pipeline = self._pipeline
        assert pipeline is not None and pipeline.driver_pid is not None
        death = self._note(kill.what, pipeline.driver_pid)
        await pipeline.kill()
        if not await self._watch.until(lambda: not pipeline.left_over(), READY_DEADLINE_S):
            self._object(f"{kill.what}: processes {pipeline.left_over()} do not die")
        await asyncio.sleep(kill.away_s)  # the requested time away
        back_ms = now_ms()
        pipeline.start()
        await self._see_turning(death, back_ms)
        if death.turning_s is not None:
            death.turning_s += (back_ms - death.at_ms) / 1000
        self._report_death(death)

    async def _see_turning(self, death: Death, since_ms: int, *, same_lease: bool = False) -> None:
        """Measure from `since_ms` to the first commit under a new lease, or to the second commit with `same_lease`.

        An earlier failpoint ends the measurement.
        """
        before = len(self._watch.commits)

        def turned() -> bool:
            fresh = self._watch.commits[before:]
            return len(fresh) > 1 if same_lease else any(epoch > death.epoch for epoch in fresh)

        if not await self._watch.until(lambda: turned() or self._next_point() is not None, TURNING_DEADLINE_S):
            self._object(f"{death.what}: no turn within {TURNING_DEADLINE_S} s, {self._state()}")
            return
        if turned():
            death.turning_s = (self._watch.last.at_ms - since_ms) / 1000
            if death.turning_s > self._turning_max_s:
                self._object(f"{death.what}: turning again only after {death.turning_s:.1f} s")

    # Failpoints ------------------------------------------------------------------------------------------------------

    async def _meet_point(self, kill: Kill, rest: Chain) -> None:
        """Wait for the armed failpoint, check that it fired in the right process, and restart the ended part."""
        name, of_pipeline = kill.what, kill.what in PIPELINE_POINTS
        arms = rest[0].arms if rest else None
        if not await self._watch.until(lambda: self._next_point() is not None, POINT_DEADLINE_S):
            self._object(f"{name}={kill.passage}: not reached within {POINT_DEADLINE_S} s, {self._state()}")
            if of_pipeline:
                await self._kill_pipeline("driver", Role.DRIVER)
            else:
                await self._kill_broker("broker", arms)
            return
        found = self._next_point()
        assert found is not None
        pid, reached = found
        self._points_seen += 1
        death = self._note(name, pid, of_broker=not of_pipeline, by_failpoint=True)
        if reached != name:
            self._object(f"{name} is armed, and {reached} fired in process {pid}")
        if of_pipeline:
            await self._meet_pipeline_point(kill, death)
            return
        if pid != self._broker.pid:
            self._object(f"{name}: process {pid} reached it, the broker is {self._broker.pid}")
        await self._restart_broker(death, arms)

    async def _meet_pipeline_point(self, kill: Kill, death: Death) -> None:
        """Follow the death of a pipeline process at a failpoint.

        The supervisor replaces a dead driver. Spark replaces a dead worker, but each new worker would reach the
        failpoint again, so its driver is killed by hand.
        """
        assert self._pipeline is not None
        role = Role(kill.what.partition(".")[0])
        if self._pipeline.roles.get(death.pid) not in (role, None):
            self._object(f"{kill.what}: process {death.pid} reached it, a {self._pipeline.roles[death.pid]}")
        if not await self._watch.until(lambda: is_gone(death.pid), READY_DEADLINE_S):
            self._object(f"{kill.what}: process {death.pid} does not die")
        if role is Role.DRIVER:
            await self._see_turning(death, death.at_ms)
            self._report_death(death)
            return
        self._of_workers = death
        if kill.passage > 1:  # otherwise no worker gets past the failpoint
            await self._see_workers_turn(death)
        self._report_death(death)
        await self._kill_pipeline("driver", Role.DRIVER)

    async def _see_workers_turn(self, death: Death) -> None:
        """Measure from a worker's death to the next two commits.

        Workers die repeatedly meanwhile, but turns are committed.
        """
        before = len(self._watch.commits)
        if await self._watch.until(lambda: len(self._watch.commits) > before + 1, TURNING_DEADLINE_S):
            death.turning_s = (self._watch.last.at_ms - death.at_ms) / 1000
        else:
            self._object(f"{death.what}: no turn within {TURNING_DEADLINE_S} s, {self._state()}")

    def _next_point(self) -> tuple[int, str] | None:
        """Return the first unhandled failpoint.

        Failpoints of workers fire until the last of these workers is gone.
        """
        for pid, name in fired(self._broker.failpoint_log)[self._points_seen :]:
            if self._of_workers is None or name != self._of_workers.what:
                return pid, name
            self._of_workers.times += 1
            self._points_seen += 1
        return None

    # Words -----------------------------------------------------------------------------------------------------------

    def _note(self, what: str, pid: int, *, of_broker: bool = False, by_failpoint: bool = False) -> Death:
        last = self._watch.last
        death = Death(what, pid, last.pending, now_ms(), last.epoch, last.armed_through_ms, of_broker, by_failpoint)
        self.deaths.append(death)
        self._event(f"kill {what}", **asdict(death))
        if death.pending < self._pending_min:
            self._object(f"{what}: only {death.pending} are pending")
        return death

    def _report_death(self, death: Death) -> None:
        parts = [f"{self.deaths.index(death) + 1:3d} {death.what:24s} pid {death.pid:7d} pending {death.pending:6d}"]
        parts.append(f"serving {death.serving_s:5.1f} s" if death.serving_s is not None else " " * 15)
        parts.append(f"turning {death.turning_s:5.1f} s" if death.turning_s is not None else "")
        self._tell("  ".join(parts).rstrip())
        self._event(f"after {death.what}", **asdict(death))

    def _state(self) -> str:
        return f"broker {'lives' if self._broker.is_alive else 'is dead'}, it said {self._watch.last.metrics}"
