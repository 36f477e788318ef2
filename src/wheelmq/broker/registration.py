"""Register the broker at the name servers: at the start, each period, and after changes (RocketMQ: BrokerOuterAPI)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import zlib
from collections.abc import Callable

from wheelmq.broker.replication.replication import MasterAddress, Replication
from wheelmq.broker.settings import BrokerSettings
from wheelmq.broker.state.topics import Topics
from wheelmq.formats.wire import bodies, headers
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.headers import REPLACED_ADDRESS
from wheelmq.net.errors import CallError, Refused
from wheelmq.net.rpc_client import RpcClient
from wheelmq.system.clock import Clock
from wheelmq.system.rate_limited_log import RateLimitedLog
from wheelmq.system.tls_client import client_tls

log = logging.getLogger(__name__)

Sign = Callable[[Command], None]

RETRY_S = 0.5
ENCODING_REST = 20
"""Rest between registrations, as a multiple of the time to encode one. Many new topics in a row cost 5 % of a
core."""


class Registrar:
    """Keeps the broker registered at every name server. A name server that is down or hangs delays no other."""

    def __init__(
        self,
        settings: BrokerSettings,
        topics: Topics,
        replication: Replication,
        clock: Clock,
        sign: Sign | None = None,
    ) -> None:
        """`sign` signs the requests to the name servers."""
        self._topics = topics
        self._servers = [
            _NameServer(address, settings, topics, replication, clock, self._check_all, sign)
            for address in settings.broker.namesrv
        ]
        self.registered = asyncio.Event()
        """Set once every name server has accepted a registration."""

        self.is_started = False

    def start(self) -> None:
        self.is_started = True
        for server in self._servers:
            server.start()
        self._check_all()

    def poll(self) -> None:
        if self._topics.changed:
            self._topics.note_registration()
            self.register_soon()

    def register_soon(self) -> None:
        """Register at all name servers without waiting for the period."""
        for server in self._servers:
            server.wanted.set()

    def masters(self) -> list[MasterAddress]:
        """Return the addresses of the master of this slave, as the name servers that know them say.

        The answers of servers that are reachable come first. Each address is in the list once.
        """
        servers = sorted(self._servers, key=lambda server: not server.has_answered)
        return list(dict.fromkeys(server.master for server in servers if server.master is not None))

    async def stop(self) -> None:
        await asyncio.gather(*(server.stop() for server in self._servers))

    def _check_all(self) -> None:
        if all(server.is_registered for server in self._servers):
            self.registered.set()


class _NameServer:
    """One name server, and whether it knows the broker."""

    def __init__(
        self,
        address: str,
        settings: BrokerSettings,
        topics: Topics,
        replication: Replication,
        clock: Clock,
        registered: Callable[[], None],
        sign: Sign | None,
    ) -> None:
        self._settings = settings
        self._replication = replication
        self._topics = topics
        self._clock = clock
        self._registered = registered
        self._log = RateLimitedLog(log, clock.monotonic)
        self.wanted = asyncio.Event()
        """Set to register before the period is over."""
        self.is_registered = False
        """Whether it has accepted a registration."""
        self.has_answered = False
        """Whether it has accepted the last one."""
        self.master: MasterAddress | None = None
        """The master of this slave, as the last answer names it."""
        tls = client_tls(settings.tls.outgoing_options())
        self._caller = RpcClient(address, on_lost=self.wanted.set, sign=sign, tls=tls)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
        try:
            await self._caller.ask(
                Command(code=RequestCode.UNREGISTER_BROKER, ext=_header(self._settings, self._replication)), 1.0
            )
        except (CallError, Refused) as error:
            log.info("the broker could not unregister at name server %s: %s", self._caller.address, error)
        await self._caller.close()

    async def _run(self) -> None:
        await asyncio.sleep(max(0, self._settings.timer.disappear_ms_after_start) / 1000)
        while True:
            self.wanted.clear()
            began_s = self._clock.monotonic()
            command = register_command(self._settings, self._topics, self._replication)
            rest_s = ENCODING_REST * (self._clock.monotonic() - began_s)
            succeeded = await self._register(command)
            await asyncio.sleep(rest_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.broker.register_period_ms / 1000 if succeeded else RETRY_S):
                    await self.wanted.wait()
            if not succeeded:
                await asyncio.sleep(RETRY_S)  # do not hurry a server that closes each connection

    async def _register(self, command: Command) -> bool:
        try:
            timeout_s = self._settings.broker.register_timeout_ms / 1000
            answer = await self._caller.ask(command, timeout_s)
        except (CallError, Refused) as error:
            self._log.warn("registration", "not registered at name server %s: %s", self._caller.address, error)
            self._caller.abort()  # else registrations pile up for a server that does not read
            self.has_answered = False
            return False
        self._warn_of_same_name(answer)
        self.master = _master_in(answer)
        self.is_registered = self.has_answered = True
        self._registered()
        return True

    def _warn_of_same_name(self, answer: Command) -> None:
        """Log a warning if another live broker with the same name had the place of this one in the routes."""
        other = answer.ext.get(REPLACED_ADDRESS)
        if other is None:
            return
        self._log.warn(
            "twin",
            "name server %s knows another broker with the name %r and the id %d, at %s: each registration replaces "
            "the routes of the other broker. Give one of the two another broker_name",
            self._caller.address,
            self._settings.broker.name,
            self._replication.role.broker_id,
            other,
        )


def _master_in(answer: Command) -> MasterAddress | None:
    """Return the addresses of the master in the answer to a registration of a slave."""
    broker, ha = answer.ext.get("masterAddr"), answer.ext.get("haServerAddr")
    return MasterAddress(broker, ha) if broker and ha and ":" in ha else None


def register_command(settings: BrokerSettings, topics: Topics, replication: Replication) -> Command:
    """Return the request that registers the broker with all its topics.

    Apache's header requires haServerAddr. It is empty while the broker does not listen for replicas, so that a slave
    that joins this broker name connects to no port of another service.
    """
    body = bodies.write(bodies.Registration(topic_config_serialize_wrapper=topics.wrapper()))
    ha_port = replication.ha_port
    ext = _header(settings, replication) | headers.texts(
        haServerAddr=f"{settings.broker.host}:{ha_port}" if ha_port else "",
        compressed=False,
        bodyCrc32=zlib.crc32(body) & 0x7FFF_FFFF,
    )
    return Command(code=RequestCode.REGISTER_BROKER, ext=ext, body=body)


def _header(settings: BrokerSettings, replication: Replication) -> dict[str, str]:
    return headers.texts(
        brokerName=settings.broker.name,
        brokerAddr=settings.broker.address,
        clusterName=settings.broker.cluster,
        brokerId=replication.role.broker_id,
    )
