"""Copy the tables of the master to a slave: topics, groups, offsets, filters (RocketMQ: SlaveSynchronize)."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from wheelmq.broker.parts import Parts
from wheelmq.broker.replication.apache_master import check_start, checkpoint_of, log_range
from wheelmq.broker.replication.state_request import state_of
from wheelmq.broker.state.consumer_filters import FilterTable
from wheelmq.broker.state.consumer_offsets import OffsetTable
from wheelmq.broker.state.groups import GroupTable
from wheelmq.broker.transactions.followed_progress import FollowedProgress
from wheelmq.formats.units import LogPosition
from wheelmq.formats.wire import bodies
from wheelmq.formats.wire.bodies import BodyError, TopicConfigTable
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.errors import CallError, Refused
from wheelmq.net.rpc_client import RpcClient
from wheelmq.system.rate_limited_log import RateLimitedLog

log = logging.getLogger(__name__)

INTERVAL_S: Final = 1.0
APACHE_INTERVAL_S: Final = 3.0
"""Apache's slaves fetch whole tables each minute. Its master does not name the changed ones."""
TIMEOUT_S: Final = 10.0


class TableSync:
    """Fetches the tables of one master that have changed."""

    def __init__(self, parts: Parts, requests: RpcClient, *, is_apache: bool) -> None:
        self._parts = parts
        self._requests = requests
        self._is_apache = is_apache
        self._versions: dict[str, str] = {}
        self._raw: dict[RequestCode, bytes] = {}
        """The last table that Apache's master sent, by its request."""
        self._progress = FollowedProgress(parts.store, parts.consumer_offsets)
        self._log = RateLimitedLog(log, parts.clock.monotonic)

    async def run(self) -> None:
        """Fetch tables until cancelled. Failures are logged and tried again. Raises MasterWrong."""
        while True:
            await asyncio.sleep(APACHE_INTERVAL_S if self._is_apache else INTERVAL_S)
            try:
                await self.run_once()
            except (CallError, Refused, BodyError) as error:
                self._log.warn("failed", "the tables of the master could not be copied: %s", error)

    async def run_once(self) -> None:
        """Fetch the tables that have changed since the last call. Raises CallError, Refused, BodyError, MasterWrong."""
        if self._is_apache:
            await self._follow_apache()
            return
        state = await state_of(self._requests)
        versions = {} if state is None else state.versions
        parts = self._parts
        if state is not None:
            self._progress.poll(LogPosition(state.log_end))
        if self._is_new("topics", versions):
            parts.topics.follow(bodies.read(await self._fetch(RequestCode.GET_ALL_TOPIC_CONFIG), TopicConfigTable))
        if self._is_new("groups", versions):
            raw = await self._fetch(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
            parts.groups.follow(bodies.read(raw, GroupTable))
        if self._is_new("offsets", versions):
            self._follow_offsets(await self._fetch(RequestCode.GET_ALL_CONSUMER_OFFSET))
        if self._is_new("filters", versions):
            parts.consumer_filters.follow(bodies.read(await self._fetch(RequestCode.WMQ_GET_FILTERS), FilterTable))
        self._versions = versions

    async def _follow_apache(self) -> None:
        """Fetch all tables, and the checkpoints of the master."""
        parts = self._parts
        self._progress.poll((await log_range(self._requests)).end)
        topics = await self._fetch_changed(RequestCode.GET_ALL_TOPIC_CONFIG)
        if topics is not None:
            parts.topics.follow(bodies.read(topics, TopicConfigTable))
        offsets = await self._fetch_changed(RequestCode.GET_ALL_CONSUMER_OFFSET)
        if offsets is not None:
            self._follow_offsets(offsets)
        groups = await self._fetch_changed(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        if groups is not None:
            parts.groups.follow(bodies.read(groups, GroupTable))
        checkpoint = await checkpoint_of(self._requests)
        if parts.replica_log.received_to:
            check_start(checkpoint.log_start, parts.store.log)
        parts.file_upkeep.apache_checkpoints.note(checkpoint)

    def _follow_offsets(self, raw: bytes) -> None:
        table = bodies.read(raw, OffsetTable)
        self._progress.note(table)
        self._parts.consumer_offsets.follow(table)

    async def _fetch_changed(self, code: RequestCode) -> bytes | None:
        """Return a table of Apache's master, or None if its bytes equal those of the last fetch."""
        raw = await self._fetch(code)
        if raw == self._raw.get(code):
            return None
        self._raw[code] = raw
        return raw

    def _is_new(self, table: str, versions: dict[str, str]) -> bool:
        return table not in versions or versions[table] != self._versions.get(table)

    async def _fetch(self, code: RequestCode) -> bytes:
        answer = await self._requests.ask(Command(code=code), TIMEOUT_S)
        if self._parts.role.is_master:
            raise CallError("the broker is the master now")
        return bytes(answer.body)
