"""Run the queue model of OpenChaos against two brokers, with faults: clients enqueue, and a consumer group dequeues.

    python -m tests.failover.queue_model --faults 100 [--seed N]

OpenChaos itself needs hosts that it reaches by SSH, so the model and its checks are built here. The clients are
WheelMQ's own, and find the master by the name server. tests/failover/history.py has the checks.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from tests.crash.figures import spread
from tests.crash.options import add_seed_and_home
from tests.failover.group import Group, NotReady
from tests.failover.history import (
    Dequeue,
    Enqueue,
    FaultSpan,
    History,
    Outcome,
    QueueFigures,
    check_queue,
    failed_without_a_fault,
    keys_out_of_order,
    unavailable_ms,
)
from tests.failover.logs import difference
from wheelmq.cli.switch import SwitchRejected
from wheelmq.client import (
    Admin,
    CallError,
    ConsumerSettings,
    NoBroker,
    NoNameServer,
    Producer,
    ProducerSettings,
    PushConsumer,
    ReceivedMessage,
    Refused,
    SendStatus,
    TopicUnknown,
    Unreachable,
)

TOPIC: Final = "chaos"
GROUP: Final = "chaos-readers"
CLIENTS: Final = 4
KEYS: Final = 4
"""Sharding keys of each client. No other client sends values of these keys, so each key has one order."""
PAUSE_S: Final = 0.005
"""Pause of a client between two sends."""
CALM_S: Final = (0.3, 1.2)
"""Least and most time between two faults."""
FAULT_S: Final = (0.2, 1.5)
DRAIN_S: Final = 60.0
POLL_S: Final = 0.01


class Fault(StrEnum):
    """The faults of OpenChaos that a pair of brokers can have."""

    KILL = "the master is killed"
    SUSPEND = "the master is stopped by SIGSTOP, and goes on later"
    PARTITION = "the master is cut off from everything"
    LOSS = "the link to the slave is slow and loses connections"
    SLAVE = "the slave is killed"


def make_faults(count: int, seed: int) -> list[tuple[Fault, float, float]]:
    """Return each fault with the calm time before it and its length. The first five are of all kinds."""
    chance = random.Random(seed)
    kinds = list(Fault)
    chance.shuffle(kinds)
    kinds += chance.choices(list(Fault), k=max(0, count - len(kinds)))
    return [(kind, chance.uniform(*CALM_S), chance.uniform(*FAULT_S)) for kind in kinds[:count]]


class ModelClient:
    """A producer that sends one value after another, and a member of the consumer group."""

    def __init__(
        self, number: int, namesrv: str, values: Iterator[int], history: History, chance: random.Random
    ) -> None:
        self._keys = [f"key-{number}-{i}" for i in range(KEYS)]
        self._values = values
        self._history = history
        self._chance = chance
        self._producer = Producer(namesrv, ProducerSettings(timeout_ms=1000, keep_alive_ms=1000))
        settings = ConsumerSettings(orderly=True, keep_alive_ms=1000, hold_ms=1000, timeout_ms=1000)
        self._consumer = PushConsumer(namesrv, GROUP, settings)
        self._consumer.subscribe(TOPIC, self._dequeued)
        self._sending: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._producer.start()
        await self._consumer.start()
        self._sending = asyncio.create_task(self._send_values())

    async def stop_sending(self) -> None:
        """Stop sending. The outcome of a send that waits for its answer is unknown."""
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)

    async def stop(self) -> None:
        await self.stop_sending()
        await self._consumer.stop()
        await self._producer.stop()

    async def _send_values(self) -> None:
        while True:
            key, value, began_ms = self._chance.choice(self._keys), next(self._values), _now_ms()
            outcome = Outcome.UNKNOWN  # also if this task is cancelled meanwhile
            try:
                outcome = await self._enqueue(key, value)
            finally:
                self._history.enqueues.append(Enqueue(key, value, began_ms, _now_ms(), outcome))
            await asyncio.sleep(PAUSE_S)

    async def _enqueue(self, key: str, value: int) -> Outcome:
        try:
            result = await self._producer.send(TOPIC, str(value), keys=key, order_key=key)
        except (Refused, Unreachable, NoBroker, NoNameServer, TopicUnknown):
            return Outcome.FAILURE
        except CallError:
            return Outcome.UNKNOWN
        return Outcome.SUCCESS if result.status is SendStatus.OK else Outcome.UNKNOWN

    async def _dequeued(self, message: ReceivedMessage) -> None:
        dequeue = Dequeue(message.keys[0], int(message.body), message.received_ms - message.born_ms)
        self._history.dequeues.append(dequeue)


@dataclass
class Result:
    seed: int
    history: History = field(default_factory=History)
    violations: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def figures(self) -> QueueFigures:
        return check_queue(self.history)


class QueueModelRun:
    """One run under SYNC_MASTER, from empty folders to the checks."""

    def __init__(self, home: Path, faults: int, seed: int, tell: Callable[[str], None]) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self._faults = make_faults(faults, seed)
        self._tell = tell
        self._chance = random.Random(seed)
        self._group = Group(home, "SYNC_MASTER", seed)
        self._clients: list[ModelClient] = []
        self.result = Result(seed)

    async def execute(self) -> Result:
        """Execute the run. All processes have ended when this returns."""
        began = time.monotonic()
        try:
            await self._group.open()
            await self._start_clients()
            for i, (fault, calm_s, length_s) in enumerate(self._faults, 1):
                await asyncio.sleep(calm_s)  # the fault comes at a random moment
                began_ms = _now_ms()
                await self._inject(fault, length_s)
                await self._group.wait_for_slave()
                self.result.history.faults.append(FaultSpan(fault.value, began_ms, _now_ms()))
                self._tell(f"{i:4d} {fault.value}: well again after {_now_ms() - began_ms} ms")
            await self._drain()
        except (NotReady, SwitchRejected, CallError, Refused) as problem:
            self.result.violations.append(f"{type(problem).__name__}: {problem}")
        finally:
            for client in self._clients:
                with contextlib.suppress(CallError, Refused):
                    await client.stop()
            for member in self._group.members:
                await member.process.stop()
            await self._group.close()
        self._judge()
        self.result.seconds = time.monotonic() - began
        return self.result

    async def _start_clients(self) -> None:
        namesrv = self._group.names_address
        async with Admin(namesrv) as admin:
            await admin.create_topic(TOPIC, queues=8)
        values = itertools.count()
        for number in range(CLIENTS):
            chance = random.Random(self._chance.getrandbits(32))
            client = ModelClient(number, namesrv, values, self.result.history, chance)
            self._clients.append(client)
            await client.start()

    async def _inject(self, fault: Fault, length_s: float) -> None:
        """Inject a fault, promote the slave if the master is gone, and end the fault."""
        group, old = self._group, self._group.master
        match fault:
            case Fault.KILL:
                old.process.kill()
                await old.process.wait_dead()
                await group.promote(force=True)
                await asyncio.sleep(length_s)
                await old.process.start()
            case Fault.SUSPEND:
                os.kill(old.process.pid, signal.SIGSTOP)
                try:
                    await group.promote(force=True)
                    await asyncio.sleep(length_s)
                finally:
                    os.kill(old.process.pid, signal.SIGCONT)
            case Fault.PARTITION:
                old.isolate()
                await group.promote(force=True)
                await asyncio.sleep(length_s)
                old.heal()
            case Fault.LOSS:
                old.ha.delay_s, old.ha.break_share = 0.002 + length_s / 50, 0.02
                await asyncio.sleep(length_s)
                old.ha.heal()
            case Fault.SLAVE:
                group.slave.process.kill()
                await group.slave.process.wait_dead()
                await asyncio.sleep(length_s)
                await group.slave.process.start()

    async def _drain(self) -> None:
        """Stop the sends, and wait until each acknowledged value is delivered, or the time is over."""
        for client in self._clients:
            await client.stop_sending()
        deadline_s = time.monotonic() + DRAIN_S
        while self.result.figures.lost and time.monotonic() < deadline_s:
            await asyncio.sleep(10 * POLL_S)

    def _judge(self) -> None:
        figures, violations = self.result.figures, self.result.violations
        if figures.acknowledged < len(self._faults):
            violations.append(f"only {figures.acknowledged} values were acknowledged")
        if figures.lost:
            violations.append(f"{len(figures.lost)} values are lost, such as {figures.lost[:5]}")
        if figures.unexpected:
            violations.append(f"{len(figures.unexpected)} values were never sent, such as {figures.unexpected[:5]}")
        if keys := keys_out_of_order(self.result.history):
            violations.append(f"the values of {keys[:5]} came in another order")
        if hasattr(self._group, "slave"):  # both brokers have started
            stores = [member.process.store for member in (self._group.master, self._group.slave)]
            if (text := difference(*stores)) is not None:
                violations.append(text)


def report(result: Result) -> list[str]:
    figures, history = result.figures, result.history
    kinds = Counter(fault.name for fault in history.faults)
    lines = [
        f"{len(history.faults)} faults, SYNC_MASTER, seed {result.seed}, {result.seconds:.0f} s",
        *(f"  {count:4d} times {name}" for name, count in kinds.most_common()),
        f"  enqueueInvokeCount {figures.attempts}  enqueueSuccessCount {figures.acknowledged}  "
        f"failed {figures.failed}  unknown {figures.unknown}",
        f"  dequeueSuccessCount {figures.dequeued}  lost {len(figures.lost)}  duplicated {figures.duplicated}  "
        f"recovered {figures.recovered}  unexpected {len(figures.unexpected)}",
        f"  atLeastOnce {figures.at_least_once}  atMostOnce {figures.at_most_once}  "
        f"order {not keys_out_of_order(history)}, {CLIENTS * KEYS} keys",
        f"  faults that made a send fail, time to the next success, ms: {spread(unavailable_ms(history))}",
        f"  sends that failed without a fault: {len(failed_without_a_fault(history))}",
        f"  end to end latency, ms: {spread([dequeue.latency_ms for dequeue in history.dequeues])}",
        *(f"VIOLATION {text}" for text in result.violations),
    ]
    lines.append("FAILED" if result.violations else "all well")
    return lines


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.failover.queue_model", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--faults", type=int, default=100)
    add_seed_and_home(parser, "faults")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    home = options.home or Path(tempfile.mkdtemp(prefix="wheelmq-queue-model-"))
    print(f"seed {seed}: {options.faults} faults, in {home}", flush=True)
    run = QueueModelRun(home, options.faults, seed, lambda text: print(text, flush=True))
    result = asyncio.run(run.execute())
    print("\n".join(report(result)))
    if not result.violations and options.home is None:
        shutil.rmtree(home, ignore_errors=True)
    return 1 if result.violations else 0


if __name__ == "__main__":
    sys.exit(main())
