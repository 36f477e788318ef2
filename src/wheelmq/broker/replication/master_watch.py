"""A master looks for a later master of its broker name, and then becomes a slave.

Without a controller, a slave may be promoted while its master is unreachable. The epoch of the promoted broker is
greater. The former master sees it at the name servers, when it starts again or can reach them again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from wheelmq.broker.parts import Parts
from wheelmq.broker.replication.apache_master import log_range
from wheelmq.broker.replication.epochs import START_BITS
from wheelmq.broker.replication.state_request import state_of
from wheelmq.broker.settings import FlushMode
from wheelmq.formats.units import LogPosition
from wheelmq.formats.wire import bodies, headers
from wheelmq.formats.wire.bodies import MASTER_ID, BodyError, MemberGroup
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.replication_state import ReplicationState
from wheelmq.net.errors import CallError, Refused
from wheelmq.net.rpc_client import RpcClient
from wheelmq.system.rate_limited_log import RateLimitedLog
from wheelmq.system.tls_client import client_tls

log = logging.getLogger(__name__)

INTERVAL_S: Final = 1.0
TIMEOUT_S: Final = 2.0
REMEDY: Final = "The user of this broker needs Get on the cluster (docs/operations/access.md)"


class LaterMaster(NamedTuple):
    """Another broker that is the master of the same name, by a later epoch."""

    address: str
    epoch: int
    free_id: int
    """The id that this broker can have as its slave."""


class Undecided(Exception):
    """No name server answers, or the master that it names does not. So there may be a later master."""


class SlavesUndecided(Undecided):
    """A slave may have messages that this broker has lost."""


class SlaveHasMore(SlavesUndecided):
    """A slave has messages that this broker has lost. It must be promoted."""


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
            later = await self.find_later()
            if later is not None:
                self._found(later)
                return

    async def find_later(self) -> LaterMaster | None:
        """Return a later master than this broker, which is a master or hands over. Return None without one."""
        successor = self._parts.replication.successor
        if successor is not None:
            return await self._ask_successor(successor)
        return await self.later_master() if self._parts.role.is_master else None

    async def later_master(self) -> LaterMaster | None:
        """Return a later master, or None if no name server in reach knows one."""
        try:
            return await self.later_master_for_sure()
        except Undecided:
            return None

    async def wait_for_answer(self) -> LaterMaster | None:
        """Return a later master, or None if there is none. Wait as long as it is undecided.

        Wait also while slaves may have acknowledged messages that this broker has lost.
        """
        while True:
            try:
                later = await self.later_master_for_sure()
                if later is None:
                    if self._must_ask_slaves:
                        await self._check_slaves()
                    self._parts.store.abort_file.accept_log()
                return later
            except SlavesUndecided as error:
                self._log.warn(type(error).__name__, "the broker does not serve yet: %s", error)
            except Undecided as error:
                self._log.warn(
                    "undecided",
                    "the broker does not serve yet: another broker may be the master by now, and its name servers do "
                    "not say so (%s). Start the name servers, or the other broker",
                    error,
                )
            await asyncio.sleep(INTERVAL_S)

    # Slaves that have more -----------------------------------------------------------------------------------------

    @property
    def _must_ask_slaves(self) -> bool:
        """Whether the broker may have lost messages that were acknowledged because slaves have them.

        With SYNC_FLUSH it had them on disk. After a kill, the system still writes all pages.
        """
        parts = self._parts
        flushes = parts.settings.flush.mode is FlushMode.SYNC
        return parts.role.needed_acks > 0 and not flushes and parts.store.abort_file.may_lack_tail

    async def _check_slaves(self) -> None:
        """Check that no slave has more than this broker. Raises SlavesUndecided."""
        addresses, needed = await self._slave_addresses(), self._parts.role.needed_acks
        found = await asyncio.gather(*map(self._check_slave, addresses), return_exceptions=True)
        for error in found:
            if isinstance(error, SlaveHasMore):
                raise error
        silent = [address for address, one in zip(addresses, found, strict=True) if isinstance(one, BaseException)]
        if silent or len(addresses) < needed:
            raise SlavesUndecided(
                "its machine has stopped, so it may have lost messages that only a slave has. "
                + (f"The slave at {silent[0]} does not answer" if silent else f"{len(addresses)} slaves are known")
                + f". Start the slaves; or set in_sync_replicas={len(addresses) - len(silent) + 1}, and lose the "
                "messages that only the others have"
            )

    async def _slave_addresses(self) -> list[str]:
        """Return the addresses of the slaves that the name servers know."""
        servers = self._parts.settings.broker.namesrv
        groups = await asyncio.gather(*map(self._members, servers), return_exceptions=True)
        own = self._parts.settings.broker.address
        known = {
            address: None
            for group in groups
            if not isinstance(group, BaseException)
            for number, address in group.items()
            if number != MASTER_ID and address != own
        }
        return list(known)

    async def _check_slave(self, address: str) -> None:
        """Check that a slave has no more than this broker. Raises SlaveHasMore, CallError, Refused, MasterWrong."""
        requests = RpcClient(address, sign=self._parts.sign, tls=self._tls)
        try:
            state = await state_of(requests, wants_blocks=True)
            end = (await log_range(requests)).end if state is None else state.log_end
        finally:
            await requests.close()
        if state is not None and state.epoch >> START_BITS != self._parts.replication.epoch >> START_BITS:
            return  # it has not followed this master since the promotion
        more = end - self._end_of(None if state is None else state.epoch)
        units = 0 if state is None else self._lacking_in_blocks(state.blocks)
        if more > 0 or units > 0:
            raise SlaveHasMore(
                f"its machine has stopped, and the slave at {address} has {max(0, more)} bytes of the log and {units} "
                f"messages in blocks that it has lost. Promote this slave: wheelmq promote {address} --force"
            )

    def _end_of(self, epoch: int | None) -> LogPosition:
        """Return the position at which the log of `epoch` ends here; the end of the log for an unknown epoch."""
        later = (one.start for one in self._parts.epochs.all if epoch is not None and one.number > epoch)
        return next(later, self._parts.store.log.end)

    def _lacking_in_blocks(self, theirs: dict[str, int]) -> int:
        """Return the number of messages that blocks of a slave have, and blocks of this broker have not."""
        blocks = self._parts.blocks
        lacking, gone = 0, blocks.gone()
        for number, units in ((int(text), units) for text, units in theirs.items()):
            block = blocks.get(number)
            if block is not None or number not in gone:
                lacking += max(0, units - (0 if block is None else block.queue.end))
        return lacking

    # Name servers and other brokers --------------------------------------------------------------------------------

    async def later_master_for_sure(self) -> LaterMaster | None:
        """Return a later master, or None if there is none.

        Raises Undecided if no name server can be asked, or if a master that one of them names does not answer. Another
        one that names no master decides nothing then: it may have just started.
        """
        servers = self._parts.settings.broker.namesrv
        found = await asyncio.gather(*map(self._ask, servers), return_exceptions=True)
        later = [one for one in found if isinstance(one, LaterMaster)]
        named = [one for one in found if isinstance(one, Undecided)]
        unsure = [one for one in found if isinstance(one, BaseException)]
        if not later and (named or (unsure and len(unsure) == len(found))):
            raise Undecided(str((named or unsure)[0]))
        return max(later, key=lambda one: one.epoch, default=None)

    async def _ask_successor(self, address: str) -> LaterMaster | None:
        """Return the later master once there is one: the successor of this broker, or one that a name server knows.

        Take the role back if the successor had its time, and one of them is sure that there is no later master. This
        broker may be unable to reach the address of its successor, which the operator's machine can reach.
        """
        replication = self._parts.replication
        had_its_time = replication.may_resume  # read before the questions: an earlier answer may be out of date
        is_sure, problem = False, ""
        for ask in (partial(self._later, address), self.later_master_for_sure):
            try:
                later = await ask()
            except Undecided as error:
                problem = problem or str(error)
                continue
            if later is not None:
                return later
            is_sure = True
        if had_its_time and is_sure:
            replication.resume()
        elif had_its_time:
            self._log.warn(
                "handed over",
                "the broker stores no messages: it has handed over to the slave at %s, which does not answer, and its "
                "name servers do not say which broker is the master (%s). Start the name servers, or the slave. If "
                "the slave was not promoted, start this broker again: then it is the master",
                address,
                problem,
            )
        return None

    async def _ask(self, server: str) -> LaterMaster | None:
        """Return the later master that a name server knows.

        Raises CallError if the name server does not answer, Refused if it rejects the question, Undecided if the master
        does not answer.
        """
        address = (await self._members(server)).get(MASTER_ID)
        if address is None or address == self._parts.settings.broker.address:
            return None
        return await self._later(address)

    async def _members(self, server: str) -> dict[int, str]:
        """Return the brokers of this name that a name server knows, by id. Raises CallError and Refused.

        A server that does not serve the request, as in RocketMQ 4, counts as one that knows no broker.
        """
        node = self._parts.settings.broker
        names = RpcClient(server, sign=self._parts.sign, tls=self._tls)
        try:
            ext = headers.texts(clusterName=node.cluster, brokerName=node.name)
            answer = await names.ask(Command(code=RequestCode.GET_BROKER_MEMBER_GROUP, ext=ext), TIMEOUT_S)
            return bodies.read(answer.body, MemberGroup).broker_member_group.broker_addrs
        except Refused as error:
            if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                return {}
            text = "the name server at %s does not say which broker is the master of %s: %s%s"
            remedy = f". {REMEDY}" if error.code == ResponseCode.NO_PERMISSION else ""
            self._log.warn(f"refused {server}", text, server, node.name, error, remedy)
            raise
        except BodyError:
            return {}  # the name server knows no broker of this name
        finally:
            await names.close()

    async def _ask_for_id(self, requests: RpcClient) -> ReplicationState | None:
        """Return the state of a broker, with an id for this one. Raises CallError, Refused."""
        node, role = self._parts.settings.broker, self._parts.role
        return await state_of(requests, former_master=node.address, own_id=role.id_to_take_back)

    async def _later(self, address: str) -> LaterMaster | None:
        """Return the broker at `address` if it is a later master. Raises Undecided if it does not say so."""
        requests = RpcClient(address, sign=self._parts.sign, tls=self._tls)
        try:
            state = await self._ask_for_id(requests)
        except CallError as error:
            raise Undecided(str(error)) from None
        except Refused as error:
            raise Undecided(f"the broker at {address} rejected the question: {error}") from None
        finally:
            await requests.close()
        if state is None or not state.is_master or state.epoch <= self._parts.replication.epoch:
            return None
        return LaterMaster(address, state.epoch, state.free_id)
