"""A slave follows the master of its broker name: it finds it, connects, and applies the bytes that come.

The name servers tell a slave the addresses of its master. A master that is a WheelMQ broker has epochs, so a tail that
it does not have is cut off. A classic master of Apache RocketMQ has none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from wheelmq.broker.broker import Broker
from wheelmq.broker.replication.block_sync import BlockSync, MustCut
from wheelmq.broker.replication.master_link import MasterLink, MasterWrong, MustTruncate
from wheelmq.broker.replication.replication import MasterAddress
from wheelmq.broker.replication.state_request import state_of
from wheelmq.broker.replication.table_sync import TableSync
from wheelmq.formats.units import LogPosition
from wheelmq.net.errors import CallError, Refused
from wheelmq.net.rpc_client import RpcClient
from wheelmq.net.stream_client import ByteStream
from wheelmq.store.follower import NotNext
from wheelmq.store.recovery import LogDamaged
from wheelmq.system.rate_limited_log import RateLimitedLog
from wheelmq.system.tls_client import client_tls

log = logging.getLogger(__name__)

RETRY_S: Final = 0.5
"""Pause after a failed connection. Apache RocketMQ waits 5 s."""
RETRY_SOON_S: Final = 0.02
"""Pause after a connection that broke: consumers may wait for this slave (PATIENCE_MS)."""
CONNECT_S: Final = 3.0
WAIT_S: Final = 0.1
"""Longest time without a look at the log: a record may become whole in a tick."""

APACHE_HAS_NO_TLS: Final = (
    "the master at {} is one of Apache RocketMQ, whose HA port has no TLS. Set tls_outgoing to never to follow it "
    "without encryption"
)


class Following:
    """Follows the master, as long as the broker is a slave."""

    def __init__(
        self,
        broker: Broker,
        find_master: Callable[[], MasterAddress | None],
        look_again: Callable[[], None],
        schedule_round: Callable[[], None],
        schedule_tick: Callable[[], None],
        truncate_first: Callable[[LogPosition], None],
        cut_first: Callable[[Mapping[int, int]], None],
    ) -> None:
        """Create the object.

        `look_again` asks the name servers for the master, which `find_master` returns later. `truncate_first` and
        `cut_first` stop the broker, because log or blocks must be shortened before they can follow the master.
        """
        self._broker = broker
        self._find_master = find_master
        self._look_again = look_again
        self._schedule_round = schedule_round
        self._schedule_tick = schedule_tick
        self._truncate_first = truncate_first
        self._cut_first = cut_first
        self._clock = broker.parts.clock
        self._tls = client_tls(broker.parts.settings.tls.outgoing_options())
        self._log = RateLimitedLog(log, self._clock.monotonic)
        self._task: asyncio.Task[None] | None = None
        self._stream: ByteStream | None = None
        self._has_heard = False
        """Whether the present master has sent bytes of its log."""

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._stream is not None:
            self._stream.close()

    @property
    def _is_slave(self) -> bool:
        return not self._broker.parts.role.is_master

    async def _run(self) -> None:
        while self._is_slave:
            try:
                await self._follow()
            except MustTruncate as error:
                self._truncate_first(error.position)
                return
            except MustCut as error:
                self._cut_first(error.keep)
                return
            except (OSError, CallError, Refused, MasterWrong, NotNext, LogDamaged, TimeoutError) as error:
                self._log.warn("lost", "the slave does not follow its master now: %s%s", error, self._hint(error))
            except Exception:
                self._log.exception("failed", "following the master failed")
            finally:
                had_link = self._broker.parts.replication.link is not None
                self._broker.parts.replication.link = None
            self._look_again()
            await asyncio.sleep(RETRY_SOON_S if had_link else RETRY_S)

    def _hint(self, error: Exception) -> str:
        """Return the remedy for a master that may accept only encrypted connections."""
        is_possible = self._tls is None and not self._has_heard and "closed the connection" in str(error)
        return ". If it accepts only TLS, set tls_outgoing of this slave to always" if is_possible else ""

    async def _follow(self) -> None:
        """Follow the master until the connection ends."""
        self._has_heard = False
        address, chosen = self._find_master(), self._broker.parts.settings.replication.master_address
        if address is None and not chosen:
            self._log.warn("none", "the slave knows no master: no name server has one with its broker name")
            return
        if address is None:
            self._log.warn("tables", "no name server knows the master: its blocks and tables are not copied")
            await self._stream_log(chosen, has_epochs=False, on_agreed=lambda epoch: None)
            return
        requests = RpcClient(address.broker, sign=self._broker.parts.sign, tls=self._tls)
        try:
            state = await state_of(requests, wants_ticket=True)
            if state is not None and not state.is_master:
                raise MasterWrong(f"{address.broker} is no master")
            if state is not None:
                self._broker.parts.role.note_master(is_sync=state.is_sync)
            if state is None and self._tls is not None:
                raise MasterWrong(APACHE_HAS_NO_TLS.format(address.broker))
            sync = TableSync(self._broker.parts, requests, is_apache=state is None)
            await sync.run_once()
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(sync.run())]

                def copy_blocks(epoch: int) -> None:
                    blocks = BlockSync(self._broker.parts, address.broker, epoch, self._schedule_tick, self._tls)
                    tasks.append(group.create_task(blocks.run()))

                try:
                    ticket = "" if state is None else state.ticket
                    await self._stream_log(
                        chosen or address.ha, has_epochs=state is not None, on_agreed=copy_blocks, ticket=ticket
                    )
                finally:
                    for task in tasks:
                        task.cancel()
        except* Exception as found:
            raise _first(found) from None
        finally:
            await requests.close()

    async def _stream_log(
        self, address: str, *, has_epochs: bool, on_agreed: Callable[[int], None], ticket: str = ""
    ) -> None:
        """Follow the log of the master whose HA port is at `address`, until the connection ends.

        `on_agreed` gets the epoch of the master, once the log is known to be a part of the master's log. `ticket` is
        the one that the master gave this slave, if the master has users.
        """
        parts = self._broker.parts
        host, _, port = address.rpartition(":")
        stream = self._stream = await ByteStream.connect(host.strip("[]"), int(port), CONNECT_S, self._tls)
        link = MasterLink(
            parts.store.log,
            parts.replica_log,
            parts.epochs,
            parts.settings.replication,
            self._clock.monotonic_ms(),
            replica_id=parts.role.broker_id if has_epochs else None,
            ticket=ticket,
        )
        parts.replication.link, parts.replication.master_address = link, address
        log.info("the slave follows the master at %s", address)
        has_agreed = False
        try:
            stream.write(link.greeting())
            while self._is_slave and stream.is_open and parts.health.failure is None:
                data = await stream.wait(WAIT_S)
                self._has_heard = self._has_heard or bool(data)
                if not self._is_slave:
                    return
                stream.write(self._broker.follow(link, data))
                self._schedule_round()
                if not has_agreed and link.agreed_epoch is not None:
                    has_agreed = True
                    on_agreed(link.agreed_epoch)
                while link.is_behind and self._is_slave:
                    await asyncio.sleep(0)
                    stream.write(self._broker.follow(link, b""))
                if link.is_silent(self._clock.monotonic_ms()):
                    raise MasterWrong(f"the master at {address} said nothing for too long")
        finally:
            stream.close()
        if self._is_slave:
            raise MasterWrong(f"the master at {address} closed the connection{stream.failure}")


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first exception of a group that is not a group itself."""
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found
