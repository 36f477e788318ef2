"""Locks queues for one member of a group (RocketMQ: RebalanceImpl.lock).

A broker keeps a lock for 60 s. A member stops consuming after 30 s without a renewal.
"""

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
    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group
        self.ours: set[QueueName] = set()
        """Queues that a broker may have locked for this member."""

    async def lock(self, queues: Iterable[QueueName]) -> dict[QueueName, bool]:
        """Lock queues or renew their locks. Returns whether this member has them, by queue, if their broker answers."""
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
            log.warning("group %s: the lock request to broker %s failed: %s", self._group, broker_name, error)
            return {}
        return {queue: queue in ours for queue in body.mq_set}

    async def unlock(self, queues: Iterable[QueueName]) -> None:
        """Unlock queues for other members. If the request does not reach a broker, the broker's lock expires."""
        queues = set(queues)
        self.ours -= queues
        await asyncio.gather(*(self._unlock(*one) for one in self._by_broker(queues).items()))

    async def _unlock(self, broker_name: str, body: LockBatch) -> None:
        request = Command(code=RequestCode.UNLOCK_BATCH_MQ, body=bodies.write(body))
        try:
            await self._session.caller(broker_name).ask(request, self._session.timeout_s)
        except (CallError, Refused) as error:
            log.info("group %s: the unlock request to broker %s failed: %s", self._group, broker_name, error)

    def _by_broker(self, queues: Iterable[QueueName]) -> dict[str, LockBatch]:
        batches: dict[str, LockBatch] = {}
        for queue in queues:
            body = batches.setdefault(
                queue.broker_name, LockBatch(client_id=self._session.client_id, consumer_group=self._group, mq_set=[])
            )
            body.mq_set.append(queue)
        return batches
