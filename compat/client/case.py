"""The cases, and the servers and clients that they use."""

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
"""Queues of a topic at each broker."""


@dataclass(frozen=True)
class Case:
    """An expectation. `is_alone` means that no other case may run meanwhile, because this case stops servers."""

    name: str
    run: Callable[[World], Awaitable[None]]
    is_alone: bool


CASES: dict[str, Case] = {}


def case(run: Callable[[World], Awaitable[None]]) -> Callable[[World], Awaitable[None]]:
    CASES[run.__name__] = Case(run.__name__, run, is_alone=False)
    return run


def alone(run: Callable[[World], Awaitable[None]]) -> Callable[[World], Awaitable[None]]:
    """Register a function as a case that runs alone."""
    CASES[run.__name__] = Case(run.__name__, run, is_alone=True)
    return run


class World:
    """The servers, and unique names for a case."""

    def __init__(self, cluster: Cluster, name: str, token: str, folder: Path) -> None:
        self.cluster = cluster
        self.namesrv = cluster.namesrv
        self.folder = folder
        self._name = f"{name}_{token}"
        self._count = itertools.count()

    def name(self, what: str = "g") -> str:
        """Return a unique name."""
        return f"{self._name}_{what}{next(self._count)}"

    async def topic(self, *, broker: str | None = None) -> str:
        """Create a topic at both brokers, or at one, and return its name."""
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
    """A callback that keeps its messages. `outcomes` are its results per body, in turn, before DONE."""

    def __init__(self, outcomes: dict[bytes, list[Outcome]] | None = None) -> None:
        self.messages: list[ReceivedMessage] = []
        self._outcomes = outcomes or {}

    async def __call__(self, message: ReceivedMessage) -> Outcome:
        self.messages.append(message)
        left = self._outcomes.get(message.body)
        return left.pop(0) if left else Consumed.DONE

    @property
    def bodies(self) -> list[bytes]:
        """The bodies in the order of arrival."""
        return [message.body for message in self.messages]

    async def has(self, *bodies: bytes) -> None:
        """Wait until these bodies have arrived."""
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
    """Wait until `ask` returns True. Servers count and index a stored message a little later."""
    try:
        async with asyncio.timeout(ARRIVAL_S):
            while not await ask():
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(what) from None
