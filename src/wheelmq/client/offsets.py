"""Stores the offsets of a group at brokers or in a file (RocketMQ: RemoteBrokerOffsetStore, LocalFileOffsetStore)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from wheelmq.client.consumer_settings import GroupSettings, StartFrom
from wheelmq.client.session import Session
from wheelmq.formats import names
from wheelmq.formats.wire import bodies, headers, queue_tables
from wheelmq.formats.wire.administration import QueueOffsets
from wheelmq.formats.wire.bodies import BodyError, QueueName
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.errors import CallError, Refused
from wheelmq.system import whole_files

log = logging.getLogger(__name__)


class OffsetStore(Protocol):
    """Stores the queue offsets of one group."""

    keeps_at_once: bool
    """Whether it has surely kept an offset that it accepted once."""

    async def read(self, queue: QueueName) -> int | None:
        """Return the stored offset of `queue`. Raises CallError, Refused."""
        ...

    async def commit(self, offsets: Mapping[QueueName, int]) -> dict[QueueName, Exception]:
        """Store offsets. Returns the errors by queue."""
        ...


class BrokerOffsets:
    """Offsets stored by the broker of each queue.

    Apache's broker creates a table at the first offset of a group in a topic. If several offsets come at once, each
    creates one. Only one table stays, and the broker answers 0 to all of them. So each offset must be sent again.
    """

    keeps_at_once = False

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group

    async def read(self, queue: QueueName) -> int | None:
        """Return the broker's offset. For an unknown group it may be 0, if no message of the queue was ever removed."""
        header = headers.QueryConsumerOffsetHeader(
            consumer_group=self._group, topic=queue.topic, queue_id=queue.queue_id, set_zero_if_not_found=None
        )
        request = Command(code=RequestCode.QUERY_CONSUMER_OFFSET, ext=headers.write(header))
        answer = await self._session.caller(queue.broker_name).call(request, self._session.timeout_s)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        if answer.code != ResponseCode.SUCCESS:
            raise Refused(answer)
        return int(answer.ext["offset"])

    async def commit(self, offsets: Mapping[QueueName, int]) -> dict[QueueName, Exception]:
        """Send all offsets to their brokers concurrently. Returns the errors by queue."""
        outcomes = await asyncio.gather(*(self._commit(queue, offset) for queue, offset in offsets.items()))
        return {queue: error for queue, error in zip(offsets, outcomes, strict=True) if error is not None}

    async def _commit(self, queue: QueueName, offset: int) -> Exception | None:
        header = headers.UpdateConsumerOffsetHeader(
            consumer_group=self._group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset
        )
        try:
            request = Command(code=RequestCode.UPDATE_CONSUMER_OFFSET, ext=headers.write(header))
            await self._session.caller(queue.broker_name).ask(request, self._session.timeout_s)
        except (CallError, Refused) as error:
            return error
        return None


class LocalOffsets:
    """Offsets in a file that Apache's client reads and writes too: FOLDER/CLIENT_ID/GROUP/offsets.json."""

    keeps_at_once = True

    def __init__(self, folder: Path | None, group: str, session: Session) -> None:
        self._folder = folder or Path.home() / ".rocketmq_offsets"
        self._group = group
        self._session = session
        self._known: dict[QueueName, int] | None = None
        self._writing = asyncio.Lock()

    @property
    def path(self) -> Path:
        """The path of the file. The session must have its client id."""
        return self._folder / self._session.client_id / self._group / "offsets.json"

    async def read(self, queue: QueueName) -> int | None:
        """Return the offset in the file, or in its `.bak` if the file is damaged. Raises BodyError if both are."""
        if self._known is None:
            self._known = await asyncio.to_thread(self._load)
        return self._known.get(queue)

    async def commit(self, offsets: Mapping[QueueName, int]) -> dict[QueueName, Exception]:
        """Replace the file. Returns the error for every queue if this fails."""
        async with self._writing:
            try:
                if self._known is None:
                    self._known = await asyncio.to_thread(self._load)
                self._known |= offsets
                await asyncio.to_thread(self._save, queue_tables.write(offsetTable=self._known))
            except (OSError, BodyError) as error:
                return dict.fromkeys(offsets, error)
        return {}

    def _load(self) -> dict[QueueName, int]:
        problem: BodyError | None = None
        for path in (self.path, self.path.with_name(self.path.name + ".bak")):
            raw = whole_files.read(path)
            if not raw:
                continue
            try:
                return queue_tables.by_queue(bodies.read(raw, QueueOffsets).texts())
            except BodyError as error:
                problem = BodyError(f"{path}: {error}; repair the file, or remove it to start without offsets")
                log.warning("%s", problem)
        if problem is not None:
            raise problem
        return {}

    def _save(self, raw: bytes) -> None:
        whole_files.replace(self.path, raw)


async def first_offset(session: Session, settings: GroupSettings, queue: QueueName) -> int:
    """Return the start offset of a group that is new to `queue`: 0 in its retry topic. Raises CallError, Refused."""
    where = StartFrom.FIRST if queue.topic.startswith(names.RETRY_PREFIX) else settings.start_from
    if where is StartFrom.TIMESTAMP:
        return await offset_at(session, queue, settings.start_ms)
    return await end_offset(session, queue, is_last=where is StartFrom.LAST)


async def end_offset(session: Session, queue: QueueName, *, is_last: bool) -> int:
    """Return the first queue offset of `queue`, or the end offset after its last one. Raises CallError, Refused."""
    code = RequestCode.GET_MAX_OFFSET if is_last else RequestCode.GET_MIN_OFFSET
    header = headers.QueueHeader(topic=queue.topic, queue_id=queue.queue_id)
    return await _asked(session, queue, Command(code=code, ext=headers.write(header)))


async def offset_at(session: Session, queue: QueueName, time_ms: int) -> int:
    """Return the queue offset of the first message stored at `time_ms` or later. Raises CallError, Refused."""
    header = headers.SearchOffsetHeader(topic=queue.topic, queue_id=queue.queue_id, timestamp=time_ms)
    request = Command(code=RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, ext=headers.write(header))
    return await _asked(session, queue, request)


async def _asked(session: Session, queue: QueueName, request: Command) -> int:
    answer = await session.caller(queue.broker_name).ask(request, session.timeout_s)
    return int(answer.ext["offset"])
