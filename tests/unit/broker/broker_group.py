"""A name server and brokers of one name in this process, over real sockets, for tests of replication."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.unit.client.conftest import SMALL, registered, until
from wheelmq.broker.app import BrokerApp
from wheelmq.broker.lives import live
from wheelmq.broker.settings import BrokerSettings
from wheelmq.client import Producer, ProducerSettings, TlsOptions
from wheelmq.config.tls import TlsSettings
from wheelmq.formats.disk.epochs import Epoch
from wheelmq.nameserver.app import NameServerApp
from wheelmq.nameserver.settings import NameServerSettings

SLAVE: dict[str, Any] = {"broker_id": 1, "broker_role": "SLAVE"}


class Member:
    """One broker of the name, which starts again by itself when its role changes."""

    def __init__(self, settings: BrokerSettings) -> None:
        self.settings = settings
        self.lives = 0
        self._app: BrokerApp | None = None
        self._stop = asyncio.Event()
        self._started = asyncio.Event()
        self._task: asyncio.Task[BaseException | None] | None = None

    @property
    def app(self) -> BrokerApp:
        assert self._app is not None
        return self._app

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.settings.broker.listen_port}"

    @property
    def is_master(self) -> bool:
        return self.app.broker is not None and self.app.broker.parts.role.is_master

    @property
    def log_end(self) -> int:
        assert self.app.broker is not None
        return self.app.broker.parts.store.log.end

    @property
    def epochs(self) -> tuple[Epoch, ...]:
        assert self.app.broker is not None
        return self.app.broker.parts.epochs.all

    def stored(self, topic: str) -> int:
        """Return the number of messages in the queues of a topic."""
        assert self.app.broker is not None
        queues = self.app.broker.parts.store.queues.items()
        return sum(int(queue.end - queue.start) for (name, _), queue in queues if name == topic)

    @property
    def in_blocks(self) -> int:
        """The number of pending messages in blocks."""
        return 0 if self.app.broker is None else self.app.broker.parts.block_parts.in_blocks.total

    async def start(self) -> None:
        self._stop.clear()
        self._started.clear()

        def make() -> BrokerApp:
            self._app = BrokerApp(self.settings, owns_process=False)
            self.settings = self._app.settings
            return self._app

        def on_start(app: BrokerApp) -> None:
            self.lives += 1
            self._started.set()

        self._task = asyncio.create_task(live(make, self._stop, on_start))
        await asyncio.wait((self._task, asyncio.create_task(self._started.wait())), return_when="FIRST_COMPLETED")
        if self._task.done():
            raise AssertionError("the broker ended") from self._task.exception()

    async def stop(self) -> None:
        self._stop.set()
        if self._task is not None:
            await self._task
            self._task = None


class Group:
    """A name server, and the brokers of one name."""

    def __init__(self, folder: Path, namesrv: NameServerApp, tls: TlsOptions | None) -> None:
        self.app = namesrv
        self.namesrv = f"127.0.0.1:{namesrv.port}"
        self.tls = tls
        """The TLS of clients."""
        self._folder = folder
        self.members: list[Member] = []

    async def add(self, **settings: Any) -> Member:
        chosen = {**SMALL, "namesrv": (self.namesrv,), "listen_port": 0, **settings}
        store = self._folder / f"store-{len(self.members)}"
        member = Member(BrokerSettings.of(store_path=store, **chosen))
        self.members.append(member)
        await member.start()
        await registered(member.app)
        return member


@asynccontextmanager
async def running(folder: Path, tls: TlsSettings | None = None) -> AsyncIterator[Group]:
    namesrv = NameServerApp(NameServerSettings(kv_config_path=folder / "kvConfig.json", listen_port=0), tls=tls)
    await namesrv.start()
    group = Group(folder, namesrv, None if tls is None else tls.outgoing_options())
    try:
        yield group
    finally:
        for member in group.members:
            await member.stop()
        await group.app.stop()


def ha_port(member: Member) -> int:
    assert member.app.broker is not None
    return member.app.broker.parts.replication.ha_port


def play(folder: Path, scene: Callable[[Group], Awaitable[None]], tls: TlsSettings | None = None) -> None:
    """Run a scene. With `tls` the name server has these settings."""

    async def run() -> None:
        async with running(folder, tls) as group:
            await scene(group)

    asyncio.run(run())


async def send(group: Group, count: int, **options: Any) -> None:
    """Send messages. Three brokers share the loop of the test, so an answer may take seconds on a busy machine."""
    async with Producer(group.namesrv, ProducerSettings(timeout_ms=20_000), tls=group.tls) as producer:
        for i in range(count):
            await producer.send("T", b"%d" % i, **options)


async def copied_pair(group: Group, count: int) -> tuple[Member, Member]:
    """Start a master and a slave that has the log of the master, with `count` messages."""
    master, slave = await group.add(), await group.add(**SLAVE)
    await send(group, count)
    await until(lambda: slave.log_end == master.log_end)
    return master, slave
