"""The clients of commands: each signs its requests with the access key of the environment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Final, TypeVar

from wheelmq.cli.credentials import own_access_key, own_settings

if TYPE_CHECKING:
    from wheelmq.client.admin import Admin
    from wheelmq.client.dead_letters import DeadLetters
    from wheelmq.client.producer import Producer
    from wheelmq.system.clock import Clock
    from wheelmq.system.tls_client import TlsOptions

T = TypeVar("T")
R = TypeVar("R")

REQUESTS_MAX: Final = 16
"""Number of topics or groups that a command asks brokers about at a time."""


def open_admin(namesrv: str, tls: TlsOptions | None, *, timeout_ms: int = 5000) -> Admin:
    """Return an Admin for `async with`. Raises ValueError for a wrong address, and TlsError for a bad file."""
    from wheelmq.client.admin import Admin

    return Admin(namesrv, timeout_ms=timeout_ms, access_key=own_access_key(), tls=tls)


def open_producer(namesrv: str, tls: TlsOptions | None, clock: Clock | None = None) -> Producer:
    """Return a Producer for `async with`. Raises ValueError for a wrong address, and TlsError for a bad file."""
    from wheelmq.client.producer import Producer

    return Producer(namesrv, own_settings(), tls=tls, clock=clock)


def open_dead_letters(namesrv: str, tls: TlsOptions | None, group: str) -> DeadLetters:
    """Return the dead letters of a group for `async with`. Raises ValueError for a wrong address or group."""
    from wheelmq.client.dead_letters import DeadLetters

    return DeadLetters(namesrv, group, access_key=own_access_key(), tls=tls)


async def check_brokers(admin: Admin) -> None:
    """Raise NoBroker if no master is registered, because lists of its topics and groups would be empty."""
    from wheelmq.client.routes import NoBroker

    if not await admin.brokers():
        raise NoBroker("no master is registered at the name server")


async def each(items: Iterable[T], work: Callable[[T], Awaitable[R]]) -> list[R]:
    """Return the result of `work` for each item, in their order. At most REQUESTS_MAX run at a time."""
    room = asyncio.Semaphore(REQUESTS_MAX)

    async def one(item: T) -> R:
        async with room:
            return await work(item)

    return await asyncio.gather(*map(one, items))
