"""A name server and brokers of WheelMQ in threads of the test, for clients that block."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

from tests.unit.client.conftest import ARRIVAL_DEADLINE_S, SMALL, registered
from wheelmq.broker.app import BrokerApp
from wheelmq.broker.settings import BrokerSettings
from wheelmq.client.sync import Loop, SyncAdmin, SyncProducer
from wheelmq.formats.wire.bodies import QueueName
from wheelmq.nameserver.app import NameServerApp
from wheelmq.nameserver.settings import NameServerSettings

T = TypeVar("T")


class Servers(Protocol):
    """Servers that a suite uses: WheelMQ's or Apache's."""

    namesrv: str
    topic: str
    """A topic name that no other test uses."""

    def add_broker(self, name: str) -> object: ...

    def stop_broker(self, name: str) -> None: ...

    def broker_address(self, name: str) -> str: ...

    def store(self, name: str) -> Path: ...

    def create_topic(self, topic: str, queues: int = 2) -> None: ...

    def send(self, topic: str, bodies: list[bytes], *, queue_id: int | None = None, **options: Any) -> None: ...

    def wait_for(self, topic: str, condition: Callable[[dict[QueueName, int]], bool]) -> None: ...


class Client:
    """The preparations of a test by WheelMQ's client."""

    namesrv: str

    def create_topic(self, topic: str, queues: int = 2) -> None:
        with SyncAdmin(self.namesrv) as admin:
            admin.create_topic(topic, queues=queues)

    def send(self, topic: str, bodies: list[bytes], *, queue_id: int | None = None, **options: Any) -> None:
        """Send messages in order, one by one, and wait until they are in their queues."""
        with SyncProducer(self.namesrv) as producer:
            sent = [producer.send(topic, body, queue_id=queue_id, **options) for body in bodies]
        self.wait_for(topic, lambda ends: all(ends.get(one.queue, 0) > one.queue_offset for one in sent))

    def wait_for(self, topic: str, condition: Callable[[dict[QueueName, int]], bool]) -> None:
        """Wait until the end offsets of a topic fulfil `condition`. Apache builds its queues after the answer."""
        deadline = time.monotonic() + ARRIVAL_DEADLINE_S
        with SyncAdmin(self.namesrv) as admin:
            while not condition({queue: span.max_offset for queue, span in admin.topic_stats(topic).items()}):
                assert time.monotonic() < deadline


class Live(Client):
    """The running servers of WheelMQ. Each has an event loop in a thread of its own."""

    topic = "T"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names_loop, self._loop = Loop(), Loop()
        self._names_loop.start()
        self._loop.start()
        self._names = NameServerApp(NameServerSettings(kv_config_path=folder / "kvConfig.json", listen_port=0))
        self._names_loop.submit(self._names.start()).result()
        self.namesrv = f"127.0.0.1:{self._names.port}"
        self.brokers: dict[str, BrokerApp] = {}

    def add_broker(self, name: str, **settings: Any) -> BrokerApp:
        """Start a broker and wait until it is registered."""
        own = {"namesrv": (self.namesrv,), "broker_name": name, "enable_property_filter": True}
        chosen = {**SMALL, **own, **settings}
        app = BrokerApp(BrokerSettings.of(store_path=self._folder / name, listen_port=0, **chosen), owns_process=False)
        self.run(_started(app))
        self.brokers[name] = app
        return app

    def stop_broker(self, name: str) -> None:
        self.run(self.brokers.pop(name).stop())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in the loop of the brokers."""
        return self._loop.submit(work).result()

    def broker_address(self, name: str) -> str:
        return f"127.0.0.1:{self.brokers[name].settings.broker.listen_port}"

    def store(self, name: str) -> Path:
        """Return the folder of a broker's store."""
        return self._folder / name

    def close(self) -> None:
        for name in list(self.brokers):
            self.stop_broker(name)
        self._names_loop.submit(self._names.stop()).result()
        self._loop.stop()
        self._names_loop.stop()


@contextmanager
def live(folder: Path, **settings: Any) -> Iterator[Live]:
    """Start a name server and broker-a."""
    servers = Live(folder)
    try:
        servers.add_broker("broker-a", **settings)
        yield servers
    finally:
        servers.close()


async def _started(app: BrokerApp) -> None:
    await app.start()
    await registered(app)
