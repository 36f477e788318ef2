"""A slave follows the master of its broker name: it finds it, connects, and applies the bytes that come.

The name servers tell a slave the addresses of its master. A master that is a WheelMQ broker has epochs, so a tail that
it does not have is cut off. A classic master of Apache RocketMQ has none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from wheelmq.broker.broker import Broker
from wheelmq.broker.replication.apache_log import begin_apache_log, end_apache_log
from wheelmq.broker.replication.apache_master import check_log_files, check_range, log_range
from wheelmq.broker.replication.block_sync import BlockSync, MustCut
from wheelmq.broker.replication.master_link import LOG_START, MasterLink, MasterWrong, MustTruncate
from wheelmq.broker.replication.replication import MasterAddress
from wheelmq.broker.replication.state_request import state_of
from wheelmq.broker.replication.table_sync import TableSync
from wheelmq.broker.replication.truncation import cut_blocks_to, truncate
from wheelmq.formats.units import LogPosition
from wheelmq.formats.wire.bodies import BodyError
from wheelmq.formats.wire.replication_state import ReplicationState
from wheelmq.net.errors import CallError, Refused
from wheelmq.net.rpc_client import RpcClient
from wheelmq.net.stream_client import ByteStream
from wheelmq.store.follower import MasterLogDamaged, NotNext
from wheelmq.system.rate_limited_log import RateLimitedLog
from wheelmq.system.tls_client import client_tls

log = logging.getLogger(__name__)

RETRY_S: Final = 0.5
"""Pause after a failed connection. Apache RocketMQ waits 5 s."""
RETRY_SOON_S: Final = 0.02
"""Pause after a connection that copied the log and broke: consumers may wait for this slave (PATIENCE_MS)."""
DAMAGED_S_MAX: Final = 60.0
"""Longest pause after a damaged record of the master. The pause doubles while the record stays damaged."""
CONNECT_S: Final = 3.0
WAIT_S: Final = 0.1
"""Longest time without a look at the log: a record may become whole in a tick."""

APACHE_HAS_NO_TLS: Final = (
    "the master at {} is one of Apache RocketMQ, whose HA port has no TLS. Set tls_outgoing to never to follow it "
    "without encryption"
)

NOT_MIXED: Final = "one controller cannot have brokers of both kinds under one name. Use another broker_name"

NOT_BESIDE: Final = (
    "no name server knows the master, and the broker whose HA port is ha_master_address does not answer: {}. Its port "
    "for requests must be its HA port minus 1. Otherwise give this slave a name server"
)


class _LifeEnds(Exception):
    """The broker stops now, because its store must be prepared for another kind of master."""


class Following:
    """Follows the master, as long as the broker is a slave."""

    def __init__(
        self,
        broker: Broker,
        find_masters: Callable[[], list[MasterAddress]],
        ask_soon: Callable[[], None],
        schedule_round: Callable[[], None],
        schedule_tick: Callable[[], None],
        end_life: Callable[[Callable[[], object]], None],
    ) -> None:
        """Create the object.

        `ask_soon` asks the name servers for the master, which `find_masters` returns later. Name servers may disagree,
        so it returns a list. `end_life` stops the broker, and starts it again after the given work on its store.
        """
        self._broker = broker
        self._find_masters = find_masters
        self._failures = 0
        """Attempts since the last master that this slave followed."""
        self._ask_soon = ask_soon
        self._schedule_round = schedule_round
        self._schedule_tick = schedule_tick
        self._end_life = end_life
        self._clock = broker.parts.clock
        self._tls = client_tls(broker.parts.settings.tls.outgoing_options())
        self._log = RateLimitedLog(log, self._clock.monotonic)
        self._task: asyncio.Task[None] | None = None
        self._stream: ByteStream | None = None
        self._has_heard = False
        """Whether the present master has sent bytes of its log."""
        self._damaged_at: LogPosition | None = None
        """The last position for which a master sent bytes that are no record."""
        self._damaged_s = RETRY_S
        """Pause after the last such bytes."""

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
            damaged_s = 0.0
            try:
                await self._follow()
            except MustTruncate as error:
                self._end_life(partial(truncate, self._broker.parts.disk, self._broker.parts.settings, error.position))
                return
            except MustCut as error:
                parts = self._broker.parts
                self._end_life(partial(cut_blocks_to, parts.disk, parts.clock, parts.settings, error.keep))
                return
            except _LifeEnds:
                return
            except MasterLogDamaged as error:
                damaged_s = self._note_damage(error)
            except (OSError, CallError, Refused, BodyError, MasterWrong, NotNext, TimeoutError) as error:
                self._log.warn("lost", "the slave does not follow its master now: %s%s", error, self._hint(error))
            except Exception:
                self._log.exception("failed", "following the master failed")
            finally:
                link, self._broker.parts.replication.link = self._broker.parts.replication.link, None
            self._ask_soon()
            has_followed = link is not None and (link.agreed_epoch is not None or not link.has_epochs)
            self._failures = 0 if has_followed else self._failures + 1
            await asyncio.sleep(damaged_s or (RETRY_SOON_S if has_followed else RETRY_S))

    def _note_damage(self, error: MasterLogDamaged) -> float:
        """Log a damaged record of the master. Returns the pause in seconds before the next try."""
        is_again = error.position == self._damaged_at
        self._damaged_at = error.position
        self._damaged_s = min(2 * self._damaged_s, DAMAGED_S_MAX) if is_again else RETRY_S
        text = "the slave does not follow its master now: %s. It tries again in %g s"
        self._log.log(logging.ERROR, "damaged", text, error, self._damaged_s)
        return self._damaged_s

    def _hint(self, error: Exception) -> str:
        """Return the remedy for a master that may accept only encrypted connections."""
        is_possible = self._tls is None and not self._has_heard and "closed the connection" in str(error)
        return ". If it accepts only TLS, set tls_outgoing of this slave to always" if is_possible else ""

    async def _follow(self) -> None:
        """Follow the master until the connection ends."""
        self._has_heard = False
        parts = self._broker.parts
        masters = self._find_masters()
        address = masters[self._failures % len(masters)] if masters else None
        chosen = "" if parts.role.is_elected else parts.settings.replication.master_address
        if address is None and not chosen:
            self._log.warn("none", "the slave knows no master: no name server has one with its broker name")
            return
        is_guessed = address is None
        if address is None:
            address = _beside(chosen)
        requests = RpcClient(address.broker, sign=self._broker.parts.sign, tls=self._tls)
        try:
            state = await self._state_of_master(requests, is_guessed=is_guessed)
            has_epochs = state is not None
            self._choose_store(address.broker, has_epochs=has_epochs)
            if state is not None:
                self._check_epoch(address.broker, state.epoch)
            masters_start = LOG_START if has_epochs else await self._check_apache(requests)
            sync = TableSync(self._broker.parts, requests, is_apache=not has_epochs)
            await sync.run_once()
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(sync.run())]

                def copy_blocks(epoch: int) -> None:
                    blocks = BlockSync(self._broker.parts, address.broker, epoch, self._schedule_tick, self._tls)
                    tasks.append(group.create_task(blocks.run()))

                try:
                    ticket = "" if state is None else state.ticket
                    link = self._new_link(masters_start, has_epochs=has_epochs, ticket=ticket)
                    ha = chosen or address.ha or ha_address(address.broker, state)
                    await self._stream_log(link, ha, on_agreed=copy_blocks, of=address)
                finally:
                    for task in tasks:
                        task.cancel()
        except* Exception as found:
            raise _first(found) from None
        finally:
            await requests.close()

    def _has_other_master(self, master: MasterAddress) -> bool:
        """Return whether a controller elected another master than this one."""
        masters = self._find_masters()
        return self._broker.parts.role.is_elected and bool(masters) and master not in masters

    async def _state_of_master(self, requests: RpcClient, *, is_guessed: bool) -> ReplicationState | None:
        """Return the state of the master, or None for a master of Apache RocketMQ.

        Raises CallError, Refused, MasterWrong.
        """
        try:
            state = await state_of(requests, wants_ticket=True)
        except CallError as error:
            raise (MasterWrong(NOT_BESIDE.format(error)) if is_guessed else error) from None
        if state is None and self._broker.parts.role.is_elected:
            raise MasterWrong(f"the elected master at {requests.address} is a broker of Apache RocketMQ: {NOT_MIXED}")
        if state is None and self._tls is not None:
            raise MasterWrong(APACHE_HAS_NO_TLS.format(requests.address))
        if state is not None and not state.is_master:
            raise MasterWrong(f"{requests.address} is no master")
        self._broker.parts.role.note_master(is_sync=state is not None and state.is_sync)
        return state

    def _check_epoch(self, master: str, masters_epoch: int) -> None:
        """Check that no later master wrote a part of this store. Raises MasterWrong.

        A name server that was cut off may still name the former master. This slave would remove the records of the
        later one. A controller names the last elected master itself. An epoch without records does not count: a
        promotion of this slave may have failed after its begin.
        """
        parts = self._broker.parts
        own = parts.epochs.last_before(parts.store.log.end)
        if own is not None and masters_epoch < own.number and not parts.role.is_elected:
            raise MasterWrong(
                f"{master} is a master of the epoch {masters_epoch}, and this store has records of the later epoch "
                f"{own.number}: another broker has become the master. If that broker is lost for good, promote this "
                "slave, or start it with an empty store"
            )

    def _choose_store(self, master: str, *, has_epochs: bool) -> None:
        """Start the broker again if its store is prepared for a master of the other kind."""
        parts = self._broker.parts
        disk, paths = parts.disk, parts.paths
        if parts.engine.knows_pending == has_epochs:
            return
        if has_epochs and parts.store.log.end > parts.store.log.start:
            raise MasterWrong(
                f"{master} is a WheelMQ broker, and this store has the log of a master of Apache RocketMQ, which has "
                "no epochs. Start this slave with an empty store"
            )
        change = (
            end_apache_log if has_epochs else partial(begin_apache_log, randomness=parts.randomness, address=master)
        )
        self._end_life(partial(change, disk, paths))
        raise _LifeEnds

    async def _check_apache(self, requests: RpcClient) -> LogPosition:
        """Check that the slave can follow a master of Apache RocketMQ. Returns the start of its log."""
        log_ = self._broker.parts.store.log
        await check_log_files(requests, log_.files.file_bytes)
        masters = await log_range(requests)
        check_range(masters, log_)
        return masters.start

    def _new_link(self, masters_start: LogPosition, *, has_epochs: bool, ticket: str) -> MasterLink:
        """Begin a connection. `ticket` is the one that the master gave this slave, if the master has users."""
        parts = self._broker.parts
        parts.block_parts.settlement.note_unchecked()
        return MasterLink(
            parts.store.log,
            parts.replica_log,
            parts.epochs,
            parts.settings.replication,
            self._clock.monotonic_ms(),
            replica_id=parts.role.broker_id if has_epochs else None,
            masters_start=masters_start,
            ticket=ticket,
        )

    async def _stream_log(
        self, link: MasterLink, address: str, *, on_agreed: Callable[[int], None], of: MasterAddress
    ) -> None:
        """Follow the log of the master whose HA port is at `address`, until the connection ends.

        It also ends when a controller elected another master than `of`.
        `on_agreed` gets the epoch of the master, once the log is known to be a part of the master's log.
        """
        parts = self._broker.parts
        host, _, port = address.rpartition(":")
        stream = self._stream = await ByteStream.connect(host.strip("[]"), int(port), CONNECT_S, self._tls)
        parts.replication.link, parts.replication.master_address = link, address
        log.info("the slave follows the master at %s", address)
        has_agreed = False
        try:
            stream.write(link.greeting())
            while self._is_slave and stream.is_open and parts.health.failure is None:
                data = await self._next_bytes(link, stream)
                self._has_heard = self._has_heard or bool(data)
                if not self._is_slave or self._has_other_master(of):
                    return
                if parts.replication.link is not link:
                    raise MasterWrong("a promotion of this slave failed, so it follows its master again")
                stream.write(self._broker.follow(link, data))
                self._schedule_round()
                if not has_agreed and link.agreed_epoch is not None:
                    has_agreed = True
                    parts.replicas.note_agreed()
                    on_agreed(link.agreed_epoch)
                if link.is_silent(self._clock.monotonic_ms()):
                    raise MasterWrong(f"the master at {address} said nothing for too long")
        finally:
            stream.close()
        if self._is_slave:
            raise MasterWrong(f"the master at {address} closed the connection{stream.failure}")

    async def _next_bytes(self, link: MasterLink, stream: ByteStream) -> bytes:
        """Return the next bytes of the master. A slave that is behind returns none, and the master must wait."""
        if not link.is_behind:
            return await stream.wait(WAIT_S)
        is_stuck = not self._broker.parts.replica_log.has_more()  # the queues cannot be written now
        await asyncio.sleep(WAIT_S if is_stuck else 0)
        link.read_ms = self._clock.monotonic_ms()  # this silence is not the master's
        return b""


def ha_address(broker: str, state: ReplicationState | None) -> str:
    """Return the HA address of the master that a controller elected, which names it by `broker`. Raises MasterWrong."""
    if state is None or not state.ha_port:
        raise MasterWrong(f"the elected master at {broker} is no WheelMQ broker with a free HA port")
    return f"{broker.rpartition(':')[0]}:{state.ha_port}"


def _beside(ha: str) -> MasterAddress:
    """Return the addresses of the master whose HA port is at `ha`, if that is the port after the one for requests."""
    host, _, port = ha.rpartition(":")
    return MasterAddress(f"{host}:{int(port) - 1}", ha)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first exception of a group that is not a group itself."""
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found
