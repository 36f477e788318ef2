"""The name server of a simulation, and the broker's registration."""

from __future__ import annotations

from pathlib import Path
from typing import Final, cast

from wheelmq.broker.broker import Broker
from wheelmq.broker.registration import register_command
from wheelmq.formats.disk.message import Host
from wheelmq.formats.wire import bodies, frame, headers
from wheelmq.formats.wire.bodies import PERM_WRITE, Route
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.nameserver.nameserver import NameServer
from wheelmq.nameserver.settings import NameServerSettings
from wheelmq.net.server_connection import ServerConnection
from wheelmq.testing.clock import ManualClock
from wheelmq.testing.connection import FakeConnection
from wheelmq.testing.disk import SimulatedDisk

DEFAULT_TOPIC: Final = "TBW102"


class Names:
    """A name server that may be stopped, and the broker's connection to it, which may break."""

    def __init__(self, home: Path, clock: ManualClock) -> None:
        self._home = home
        self._clock = clock
        self._disk = SimulatedDisk()
        self._server: NameServer | None = None
        self._peers = 0
        self._broker_connection: FakeConnection | None = None
        self._next_ms = 0
        self.start()

    @property
    def is_up(self) -> bool:
        return self._server is not None

    def start(self) -> None:
        self._server = NameServer(
            NameServerSettings(kv_config_path=self._home / "kvConfig.json"), disk=self._disk, clock=self._clock
        )

    def stop(self) -> None:
        self._server = None
        self._broker_connection = None

    def lose_broker(self) -> None:
        if self._server is not None and self._broker_connection is not None:
            self._server.connection_lost(cast(ServerConnection, self._broker_connection))
        self._broker_connection = None

    def tick(self, broker: Broker | None) -> None:
        """Register `broker` if it is due: at first, after a change of a topic, and every 30 s."""
        if self._server is None:
            return
        self._server.tick()
        if broker is None:
            self.lose_broker()
            return
        now_ms = self._clock.monotonic_ms()
        if self._broker_connection is not None and not broker.parts.topics.changed and now_ms < self._next_ms:
            return
        broker.parts.topics.note_registration()
        if self._broker_connection is None:
            self._broker_connection = self._connect()
        answer = self._ask(
            register_command(broker.parts.settings, broker.parts.topics, broker.parts.replication),
            self._broker_connection,
        )
        assert answer.code == ResponseCode.SUCCESS, answer
        self._next_ms = now_ms + broker.parts.settings.broker.register_period_ms

    def route(self, topic: str) -> Route | None:
        """Return the route of `topic`, or of the default topic; None if there is none or the name server is stopped."""
        if self._server is None:
            return None
        for name in (topic, DEFAULT_TOPIC):
            ext = headers.texts(topic=name)
            answer = self._ask(Command(code=RequestCode.GET_ROUTEINFO_BY_TOPIC, ext=ext), self._connect())
            if answer.code == ResponseCode.SUCCESS:
                return bodies.read(bytes(answer.body), Route)
        return None

    def check(self, broker: Broker) -> None:
        """Assert that every topic of a registered broker has its route."""
        for name, config in broker.parts.topics.all().items():
            route = self.route(name)
            assert route is not None, f"there is no route to {name}"
            (queues,) = route.queue_datas
            found = (queues.broker_name, queues.read_queue_nums, queues.write_queue_nums, queues.perm & PERM_WRITE)
            expected = (
                broker.parts.settings.broker.name,
                config.read_queue_nums,
                config.write_queue_nums,
                config.perm & PERM_WRITE,
            )
            assert found == expected, f"the route to {name} has {found}, but the broker has {expected}"

    def _connect(self) -> FakeConnection:
        self._peers += 1
        return FakeConnection(Host(b"\x0a\0\0\2", 20_000 + self._peers))

    def _ask(self, command: Command, connection: FakeConnection) -> Command:
        assert self._server is not None
        command.opaque = connection.next_opaque()
        raw = frame.encode(command)
        self._server.receive(cast(ServerConnection, connection), memoryview(raw), len(raw))
        connection.flush()
        return connection.answers[command.opaque]
