"""Queues that one member of a group has alone (RocketMQ: RebalanceImpl.lock): a broker keeps the lock for a minute, a
member that has not renewed it for half of that stops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from wheelmq.client.session import Session
from wheelmq.formats.wire import bodies
from wheelmq.formats.wire.bodies import BodyError, LockBatch, QueueName
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.errors import CallError, Refused

log = logging.getLogger(__name__)

LOCK_RENEW_S: Final = 20.0
LOCK_LASTS_S: Final = 30.0


class MemberLocks:
    """The locks of one member."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group
        self.ours: set[QueueName] = set()
        """What a broker may have locked for us."""

    async def lock(self, queues: Iterable[QueueName]) -> dict[QueueName, bool]:
        """Lock queues, or keep them locked: which are ours. Those of a broker that does not answer are left out."""
        queues = set(queues)
        self.ours |= queues
        found: dict[QueueName, bool] = {}
        for answer in await asyncio.gather(*(self._lock(*one) for one in self._by_broker(queues).items())):
            found |= answer
        self.ours -= {queue for queue, is_ours in found.items() if not is_ours}
        return found

    async def _lock(self, broker_name: str, body: LockBatch) -> dict[QueueName, bool]:
        request = Command(code=RequestCode.LOCK_BATCH_MQ, body=bodies.write(body))
        try:
            answer = await self._session.caller(broker_name).ask(request, self._session.timeout_s)
            ours = bodies.read(answer.body, dict[str, list[QueueName]]).get("lockOKMQSet", [])
        except (CallError, Refused, BodyError) as error:
            log.warning("group %s: no locks from broker %s: %s", self._group, broker_name, error)
            return {}
        return {queue: queue in ours for queue in body.mq_set}

    async def unlock(self, queues: Iterable[QueueName]) -> None:
        """Let other members have these queues; a broker that does not hear of it lets them go by itself."""
        queues = set(queues)
        self.ours -= queues
        await asyncio.gather(*(self._unlock(*one) for one in self._by_broker(queues).items()))

    async def _unlock(self, broker_name: str, body: LockBatch) -> None:
        request = Command(code=RequestCode.UNLOCK_BATCH_MQ, body=bodies.write(body))
        try:
            await self._session.caller(broker_name).ask(request, self._session.timeout_s)
        except (CallError, Refused) as error:
            log.info("group %s: not unlocked at broker %s: %s", self._group, broker_name, error)

    def _by_broker(self, queues: Iterable[QueueName]) -> dict[str, LockBatch]:
        batches: dict[str, LockBatch] = {}
        for queue in queues:
            body = batches.setdefault(
                queue.broker_name, LockBatch(client_id=self._session.client_id, consumer_group=self._group, mq_set=[])
            )
            body.mq_set.append(queue)
        return batches
