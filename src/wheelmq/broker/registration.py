"""Registering at the name servers: at start, once a period, and at once when a topic changes or a connection breaks.

(RocketMQ: BrokerOuterAPI.)
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import zlib
from typing import TYPE_CHECKING

from wheelmq.formats.wire import bodies, headers
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.caller import Caller
from wheelmq.net.errors import CallError, Refused

if TYPE_CHECKING:
    from wheelmq.broker.broker import Broker

log = logging.getLogger(__name__)

RETRY_S = 0.5


class Registration:
    """Keeps every name server told."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._wanted = asyncio.Event()
        self._callers = [Caller(address, on_lost=self._wanted.set) for address in broker.settings.namesrv]
        self._task: asyncio.Task[None] | None = None
        self.registered = asyncio.Event()
        """Set once every name server took a registration."""

    def start(self) -> None:
        if self._callers:
            self._task = asyncio.create_task(self._run())
        else:
            self.registered.set()

    def look(self) -> None:
        """Register soon if a topic has changed."""
        if self._broker.topics.changed:
            self._broker.topics.changed = False
            self._wanted.set()

    async def stop(self) -> None:
        """Leave the name servers."""
        if self._task is not None:
            self._task.cancel()
        for caller in self._callers:
            try:
                ext = _header(self._broker)
                await caller.ask(Command(code=RequestCode.UNREGISTER_BROKER, ext=ext), 1.0)
            except (CallError, Refused) as error:
                log.info("name server %s was not told of the stop: %s", caller.address, error)
            await caller.close()

    async def _run(self) -> None:
        await asyncio.sleep(max(0, self._broker.settings.disappear_time_after_start) / 1000)
        while True:
            self._wanted.clear()
            period_s = self._broker.settings.register_period_ms / 1000
            results = await asyncio.gather(*map(self._register, self._callers))
            if all(results):
                self.registered.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(period_s if all(results) else RETRY_S):
                    await self._wanted.wait()
            if not all(results):
                await asyncio.sleep(RETRY_S)  # a name server that closes each connection is not asked in a hurry

    async def _register(self, caller: Caller) -> bool:
        try:
            timeout_s = self._broker.settings.register_timeout_ms / 1000
            await caller.ask(register_command(self._broker), timeout_s)
            return True
        except (CallError, Refused) as error:
            log.warning("not registered at name server %s: %s", caller.address, error)
            return False


def register_command(broker: Broker) -> Command:
    """The request that registers `broker` with all its topics."""
    body = bodies.write(bodies.Registration(topic_config_serialize_wrapper=broker.topics.wrapper()))
    ext = _header(broker) | headers.texts(
        haServerAddr=f"{broker.settings.broker_ip}:{broker.settings.listen_port + 1}",
        compressed=False,
        bodyCrc32=zlib.crc32(body) & 0x7FFF_FFFF,
    )
    return Command(code=RequestCode.REGISTER_BROKER, ext=ext, body=body)


def _header(broker: Broker) -> dict[str, str]:
    settings = broker.settings
    return headers.texts(
        brokerName=settings.broker_name,
        brokerAddr=f"{settings.broker_ip}:{settings.listen_port}",
        clusterName=settings.cluster,
        brokerId=settings.broker_id,
    )
