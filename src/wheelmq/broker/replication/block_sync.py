"""Copy the blocks of the master to a slave, over a connection of their own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from wheelmq.broker.parts import Parts
from wheelmq.broker.replication.block_link import WAIT_MS, BlockLink, BlocksWrong
from wheelmq.formats.wire.frame import Command
from wheelmq.net.errors import CallError
from wheelmq.net.rpc_client import RpcClient
from wheelmq.system.rate_limited_log import RateLimitedLog
from wheelmq.system.tls_client import ClientTls

log = logging.getLogger(__name__)

RETRY_S: Final = 0.5
TIMEOUT_S: Final = WAIT_MS / 1000 + 10


class MustCut(Exception):
    """Blocks have tails that the master does not have. Cut them to `keep` before following."""

    def __init__(self, keep: Mapping[int, int]) -> None:
        super().__init__(f"{len(keep)} blocks must be cut")
        self.keep = keep
        """Number of units to keep, by block number."""


class BlockSync:
    """Copies the blocks of the master of `epoch`. The log of this broker must agree with the master's log."""

    def __init__(
        self, parts: Parts, address: str, epoch: int, schedule_tick: Callable[[], None], tls: ClientTls | None
    ) -> None:
        self._parts = parts
        self._address = address
        self._tls = tls
        self._epoch = epoch
        self._schedule_tick = schedule_tick
        self._log = RateLimitedLog(log, parts.clock.monotonic)

    async def run(self) -> None:
        """Copy until the broker is no slave any more. Failures are logged and tried again. Raises MustCut."""
        while not self._parts.role.is_master:
            try:
                await self._copy()
            except (CallError, BlocksWrong) as error:
                self._log.warn("lost", "the blocks of the master at %s are not copied now: %s", self._address, error)
            await asyncio.sleep(RETRY_S)

    async def _copy(self) -> None:
        """Copy the blocks over one connection. Raises CallError, BlocksWrong, MustCut."""
        parts = self._parts
        replica_id = parts.role.broker_id
        link = BlockLink(parts.engine, parts.block_copies, parts.clock, replica_id=replica_id, epoch=self._epoch)
        parts.replication.block_link = link
        must_cut = asyncio.Event()
        link.when_cut(must_cut.set)
        requests = RpcClient(self._address, sign=parts.sign, tls=self._tls)
        try:
            while not parts.role.is_master:
                request = link.next_request()
                answer = await answer_unless(requests, request, must_cut)
                if answer is None:
                    assert link.cuts is not None
                    raise MustCut(link.cuts)
                if parts.role.is_master:
                    return
                link.take(request, answer)
                await self._applied(link)
                if link.cuts is not None:
                    raise MustCut(link.cuts)
                if link.failure is not None:
                    raise BlocksWrong(str(link.failure)) from link.failure
        finally:
            if parts.replication.block_link is link:
                parts.replication.block_link = None
            await requests.close()

    async def _applied(self, link: BlockLink) -> None:
        """Wait until the ticks have appended all parts of the answer, or cannot."""
        applied = asyncio.Event()
        link.when_applied(applied.set)
        self._schedule_tick()
        await applied.wait()


async def answer_unless(requests: RpcClient, request: Command, is_over: asyncio.Event) -> Command | None:
    """Return the answer to a request, or None once `is_over` is set. Raises CallError."""
    asked = asyncio.ensure_future(requests.call(request, TIMEOUT_S))
    over = asyncio.ensure_future(is_over.wait())
    try:
        await asyncio.wait((asked, over), return_when=asyncio.FIRST_COMPLETED)
        return None if is_over.is_set() else asked.result()
    finally:
        asked.cancel()
        over.cancel()
