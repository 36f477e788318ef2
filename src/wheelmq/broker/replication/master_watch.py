"""A master looks for a later master of its broker name, and then becomes a slave.

Without a controller, a slave may be promoted while its master is unreachable. The epoch of the promoted broker is
greater. The former master sees it at the name servers, when it starts again or can reach them again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from wheelmq.broker.parts import Parts
from wheelmq.broker.replication.state_request import state_of
from wheelmq.formats.wire import bodies, headers
from wheelmq.formats.wire.bodies import MASTER_ID, BodyError, MemberGroup
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.replication_state import ReplicationState
from wheelmq.net.errors import CallError, Refused
from wheelmq.net.rpc_client import RpcClient
from wheelmq.system.rate_limited_log import RateLimitedLog
from wheelmq.system.tls_client import client_tls

log = logging.getLogger(__name__)

INTERVAL_S: Final = 1.0
TIMEOUT_S: Final = 2.0


class LaterMaster(NamedTuple):
    """Another broker that is the master of the same name, by a later epoch."""

    address: str
    epoch: int
    free_id: int
    """The id that this broker can have as its slave."""


class Undecided(Exception):
    """No name server answers, or the master that it names does not. So there may be a later master."""


class MasterWatch:
    """Asks the name servers for the master of the broker's own name."""

    def __init__(self, parts: Parts, found: Callable[[LaterMaster], None]) -> None:
        """Create the object. `found` is called once, when there is a later master."""
        self._parts = parts
        self._found = found
        self._log = RateLimitedLog(log, parts.clock.monotonic)
        self._tls = client_tls(parts.settings.tls.outgoing_options())
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            replication = self._parts.replication
            if replication.successor is not None:
                later = await self._ask_successor(replication.successor)
            else:
                later = await self.later_master() if self._parts.role.is_master else None
            if later is not None:
                self._found(later)
                return

    async def later_master(self) -> LaterMaster | None:
        """Return a later master, or None if no name server in reach knows one."""
        try:
            return await self.later_master_for_sure()
        except Undecided:
            return None

    async def wait_for_answer(self) -> LaterMaster | None:
        """Return a later master, or None if there is none. Wait as long as it is undecided."""
        while True:
            try:
                return await self.later_master_for_sure()
            except Undecided as error:
                self._log.warn(
                    "undecided",
                    "the broker does not serve yet: another broker may be the master by now, and its name servers do "
                    "not say so (%s). Start the name servers, or the other broker",
                    error,
                )
            await asyncio.sleep(INTERVAL_S)

    async def later_master_for_sure(self) -> LaterMaster | None:
        """Return a later master, or None if there is none. Raises Undecided if no name server can be asked."""
        servers = self._parts.settings.broker.namesrv
        found = await asyncio.gather(*map(self._ask, servers), return_exceptions=True)
        later = [one for one in found if isinstance(one, LaterMaster)]
        unsure = [one for one in found if isinstance(one, BaseException)]
        if not later and len(unsure) == len(found) and unsure:
            raise Undecided(str(unsure[0]))
        return max(later, key=lambda one: one.epoch, default=None)

    async def _ask_successor(self, address: str) -> LaterMaster | None:
        """Return the successor of this broker once it is the master. Take the role back if it will not be."""
        own = self._parts.epochs.last
        requests = RpcClient(address, sign=self._parts.sign, tls=self._tls)
        try:
            state = await self._ask_for_id(requests)
        except (CallError, Refused):
            return None  # it may be the master: wait until it says so, or not
        finally:
            await requests.close()
        if state is not None and state.is_master and (own is None or state.epoch > own.number):
            return LaterMaster(address, state.epoch, state.free_id)
        if self._parts.replication.may_resume:
            self._parts.replication.resume()
        return None

    async def _ask(self, server: str) -> LaterMaster | None:
        """Return the later master that a name server knows. Raises CallError if one of the two does not answer."""
        node, own = self._parts.settings.broker, self._parts.epochs.last
        names = RpcClient(server, sign=self._parts.sign, tls=self._tls)
        try:
            ext = headers.texts(clusterName=node.cluster, brokerName=node.name)
            answer = await names.ask(Command(code=RequestCode.GET_BROKER_MEMBER_GROUP, ext=ext), TIMEOUT_S)
            address = bodies.read(answer.body, MemberGroup).broker_member_group.broker_addrs.get(MASTER_ID)
        except (Refused, BodyError):
            return None  # the name server knows no broker of this name
        finally:
            await names.close()
        if address is None or address == node.address:
            return None
        return await self._later(address, -1 if own is None else own.number)

    async def _ask_for_id(self, requests: RpcClient) -> ReplicationState | None:
        """Return the state of a broker, with an id for this one. Raises CallError, Refused."""
        node, role = self._parts.settings.broker, self._parts.role
        return await state_of(requests, former_master=node.address, own_id=role.id_to_take_back)

    async def _later(self, address: str, own_epoch: int) -> LaterMaster | None:
        requests = RpcClient(address, sign=self._parts.sign, tls=self._tls)
        try:
            state = await self._ask_for_id(requests)
        except Refused as error:
            raise CallError(f"the broker at {address} rejected the question: {error}") from None
        finally:
            await requests.close()
        if state is None or not state.is_master or state.epoch <= own_epoch:
            return None
        return LaterMaster(address, state.epoch, state.free_id)
