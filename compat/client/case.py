"""What a case is, and what it works with."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from compat.client.servers import Cluster
from wheelmq.client import Admin, Consumed, ConsumerSettings, Producer, ProducerSettings, PushConsumer, ReceivedMessage
from wheelmq.client.consumer_settings import Callback, Outcome

DEADLINE_S = 60.0
ARRIVAL_S = 60.0
QUEUES = 4
"""Of a topic, at each broker."""


@dataclass(frozen=True)
class Case:
    """An expectation; `is_alone` when others must not run beside it, because it takes servers away."""

    name: str
    run: Callable[[World], Awaitable[None]]
    is_alone: bool


CASES: dict[str, Case] = {}


def case(run: Callable[[World], Awaitable[None]]) -> Callable[[World], Awaitable[None]]:
    """Have a function run as a case."""
    CASES[run.__name__] = Case(run.__name__, run, is_alone=False)
    return run


def alone(run: Callable[[World], Awaitable[None]]) -> Callable[[World], Awaitable[None]]:
    """Have a function run as a case when no other does."""
    CASES[run.__name__] = Case(run.__name__, run, is_alone=True)
    return run


class World:
    """The servers, and names of the case's own."""

    def __init__(self, cluster: Cluster, name: str, token: str, folder: Path) -> None:
        self.cluster = cluster
        self.namesrv = cluster.namesrv
        self.folder = folder
        self._name = f"{name}_{token}"
        self._count = itertools.count()

    def name(self, what: str = "g") -> str:
        """A name that nobody else has."""
        return f"{self._name}_{what}{next(self._count)}"

    async def topic(self, *, broker: str | None = None) -> str:
        """A topic at both brokers, or at one."""
        topic = self.name("t")
        async with self.admin() as admin:
            await admin.create_topic(topic, queues=QUEUES, broker_name=broker)
        return topic

    def producer(self, **settings: object) -> Producer:
        return Producer(self.namesrv, ProducerSettings(**{"group": self.name("p"), **settings}))  # type: ignore[arg-type]

    def admin(self) -> Admin:
        return Admin(self.namesrv)

    def consumer(
        self, group: str, topic: str, callback: Callback, tags: str = "*", sql: str | None = None, **settings: object
    ) -> PushConsumer:
        consumer = PushConsumer(self.namesrv, group, ConsumerSettings(**settings))  # type: ignore[arg-type]
        consumer.subscribe(topic, callback, tags, sql=sql)
        return consumer


class Inbox:
    """A callback that keeps what it gets; `outcomes` are what it says of bodies, in turn, before DONE."""

    def __init__(self, outcomes: dict[bytes, list[Outcome]] | None = None) -> None:
        self.messages: list[ReceivedMessage] = []
        self._outcomes = outcomes or {}

    async def __call__(self, message: ReceivedMessage) -> Outcome:
        self.messages.append(message)
        left = self._outcomes.get(message.body)
        return left.pop(0) if left else Consumed.DONE

    @property
    def bodies(self) -> list[bytes]:
        """In the order of arrival."""
        return [message.body for message in self.messages]

    async def has(self, *bodies: bytes) -> None:
        """Wait until these have come."""
        await until(lambda: set(bodies) <= set(self.bodies), lambda: f"{set(bodies) - set(self.bodies)} did not come")


async def until(condition: Callable[[], bool], told: Callable[[], str] = lambda: "it did not come true") -> None:
    """Wait for `condition`."""
    try:
        async with asyncio.timeout(ARRIVAL_S):
            while not condition():
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(told()) from None


async def eventually(ask: Callable[[], Awaitable[bool]], what: str) -> None:
    """Wait until the servers say so: what was stored is counted and indexed a little later."""
    try:
        async with asyncio.timeout(ARRIVAL_S):
            while not await ask():
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(what) from None
