"""Several brokers, a load on each, and one pipeline application for all of them."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.crash.killing import Watch
from tests.crash.load import Load, Mix
from tests.crash.notes import Kind
from tests.crash.parts import BrokerProcess, Event, Pipeline
from tests.crash.run import NOTHING_EXPIRES
from tests.crash.verdict import Verdict, judge
from wheelmq.cli.ports import free_port
from wheelmq.net.managed_process import ManagedProcess
from wheelmq.system.clock import SystemClock

SETTINGS: Final = {
    "log_file_bytes": 1 << 20,
    "queue_file_bytes": 20 * 3000,
    "timer_log_file_bytes": 52 * 5000 + 16,
    "timer_slots": 60,
    "timer_roll_window_slots": 35,
    **NOTHING_EXPIRES,
}
MIX: Final = Mix(
    kinds=tuple((kind, share) for kind, share in Mix.kinds if kind is not Kind.IN_BLOCK),
    delays_ms=((0.3, 50, 1000), (0.3, 1000, 5000), (0.4, 9000, 16_000)),
)
"""No messages for blocks. All delays of this load are within the lead, and such blocks need no pipeline."""
DRAIN_DEADLINE_S: Final = 60.0
LATE_MS: Final = 200
LONG: Final = "_long"


@dataclass
class Member:
    process: BrokerProcess
    watch: Watch
    load: Load
    watching: asyncio.Task[None] | None = None

    @property
    def turns(self) -> int:
        """The number of observed commits of turns."""
        return len(self.watch.commits)

    @property
    def epoch(self) -> int:
        return self.watch.last.epoch

    @property
    def holder(self) -> str | None:
        found = self.watch.last.metrics.get("pipeline", {}).get("holder")
        return None if found is None else str(found)

    @property
    def is_turning(self) -> bool:
        metrics = self.watch.last.metrics
        return bool(metrics) and bool(metrics["pipeline"]["is_turning"])

    def armed(self) -> Counter[str]:
        """Return the number of armed timers with a long delay since the broker's start, by the part that armed them."""
        by: dict[str, int] = self.watch.last.metrics["timers"]["armed_by"]
        return Counter({who.removesuffix(LONG): count for who, count in by.items() if who.endswith(LONG)})

    def verdict(self) -> Verdict:
        """Return the verdict of its store over its load. No broker may have the store open."""
        return judge(self.process.store, self.load.notes)


@dataclass
class Fleet:
    """Brokers by name. `close` ends every process."""

    home: Path
    rate: float = 100.0
    members: dict[str, Member] = field(default_factory=dict)
    pipelines: list[Pipeline] = field(default_factory=list)
    heard: list[str] = field(default_factory=list)
    """Messages of the supervisors."""

    def __post_init__(self) -> None:
        self._failpoint_log = self.home / "failpoints.log"
        self._event = Event(self.home / "events.jsonl")
        self._ports: list[int] = []
        self.namesrv: ManagedProcess | None = None
        self.namesrv_address = ""

    async def start_namesrv(self) -> None:
        """Start a name server. Brokers that are added later register there."""
        self.namesrv_address = f"127.0.0.1:{self._port()}"
        command = [sys.executable, "-P", "-m", "wheelmq", "nameserver", "--json", "--ends-with-stdin"]
        command += ["--home", str(self.home), "--port", self.namesrv_address.rpartition(":")[2]]
        self.namesrv = ManagedProcess(
            "name server",
            command,
            self.home / "namesrv.log",
            clock=SystemClock(),
            on_event=lambda _: None,
            on_death=lambda *_: None,
        )
        self.namesrv.start()

    async def add(self, name: str, *, registered: bool = True) -> Member:
        options = ("--namesrv", self.namesrv_address) if self.namesrv_address and registered else ()
        settings: dict[str, Any] = {**SETTINGS, "broker_name": name}
        process = BrokerProcess(self.home / name, self._port(), "ASYNC_FLUSH", settings, self._failpoint_log, *options)
        watch = Watch(process, None)
        member = Member(process, watch, Load(process.address, MIX, self.rate, len(self.members)))
        self.members[name] = member
        await process.start()
        member.watching = asyncio.create_task(watch.run())
        return member

    def start_pipeline(self, brokers: list[str], name: str = "fleet", **options: Any) -> Pipeline:
        def on_text(text: str) -> None:
            self.heard.append(f"{name} {text}")
            self._event(f"{name} {text}")

        pipeline = Pipeline(brokers, self.home / f"logs-{name}", self._failpoint_log, on_text, name=name, **options)
        self.pipelines.append(pipeline)
        pipeline.start()
        return pipeline

    async def until(self, what: str, condition: Callable[[], bool], deadline_s: float) -> None:
        """Wait until `condition`. Raises TimeoutError with the state of the brokers."""
        self._event(f"until {what}")
        watch = next(iter(self.members.values())).watch
        if not await watch.until(condition, deadline_s):
            state = {
                name: (one.process.state, one.holder, one.epoch, one.turns, one.watch.last.pending)
                for name, one in self.members.items()
            }
            raise TimeoutError(f"not within {deadline_s} s: {what}; {state}; {self.heard[-5:]}; see {self.home}")

    async def drain(self) -> None:
        for one in self.members.values():
            await one.load.stop()
        await self.until(
            "nothing is pending",
            lambda: all(one.watch.last.pending == 0 for one in self.members.values()),
            DRAIN_DEADLINE_S,
        )

    async def close(self) -> None:
        for pipeline in self.pipelines:
            await pipeline.stop()
        for one in self.members.values():
            await one.load.stop(grace_s=0.0)
            if one.watching is not None:
                one.watching.cancel()
                await asyncio.gather(one.watching, return_exceptions=True)
            await one.process.stop()
        if self.namesrv is not None:
            await self.namesrv.stop(10.0)
        self._event.close()

    def _port(self) -> int:
        port = free_port(but=tuple(self._ports))
        self._ports.append(port)
        return port
