"""Pulls queues. Each queue has at most one pull request at a time (RocketMQ: PullMessageService)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from wheelmq.client.group import GroupMember, text
from wheelmq.client.message import read_records
from wheelmq.client.share import HeldQueue, Taken
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import RecordError
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.bodies import Subscription
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.errors import CallError, Refused

log = logging.getLogger(__name__)

AGAIN_S: Final = 1.0
"""Delay before a queue is pulled again after a failure."""
MARGIN_S: Final = 15.0
"""Client timeout of a pull beyond the time for which the broker may hold it."""
TROUBLES_MAX: Final = 100
"""Number of different errors logged per broker until a pull from it succeeds."""
_BUSY: Final = (ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL)
"""After these answers the client does not request a rebalance, to spare the broker."""
_NOTHING: Final = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY)


class Puller:
    """Pulls the queues of a group member. `deliver` receives the messages of a queue in order."""

    def __init__(
        self,
        group: GroupMember,
        deliver: Callable[[HeldQueue, list[Taken]], None],
        *,
        code: RequestCode = RequestCode.PULL_MESSAGE,
        flags: int = 0,
        commits: bool = True,
    ) -> None:
        self._group = group
        self._deliver = deliver
        self._code = code
        self._flags = flags | headers.PULL_SUSPEND | headers.PULL_SUBSCRIPTION
        self._commits = commits
        """Whether the broker stores the offsets. Then a pull may commit one."""
        self._troubles: dict[str, set[str]] = {}
        """Errors logged by broker. Each error is logged once, not for every queue and every retry."""

    async def run(self, held: HeldQueue) -> None:
        """Pull a queue until it is released or has to restart at another offset."""
        group, broker = self._group, held.queue.broker_name
        while True:
            await held.room()
            try:
                if not await self._pull(held, group.subscriptions[held.queue.topic]):
                    return
                self._troubles.pop(broker, None)
            except (CallError, Refused, RecordError, KeyError, ValueError) as error:
                told = self._troubles.setdefault(broker, set())
                if str(error) not in told and len(told) < TROUBLES_MAX:
                    told.add(str(error))
                    log.warning("group %s: a pull from broker %s failed: %s", group.name, broker, error)
                if not isinstance(error, Refused) or error.code not in _BUSY:
                    group.request_rebalance(routes_are_old=True)  # a broker forgets its members with their connections
                await asyncio.sleep(AGAIN_S)
            except Exception:
                log.exception("group %s: the pull of %s failed and is retried", group.name, text(held.queue))
                await asyncio.sleep(AGAIN_S)

    async def _pull(self, held: HeldQueue, subscription: Subscription) -> bool:
        """Pull once. Returns False if the queue has to restart at another offset."""
        group, queue, commit, flags = self._group, held.queue, held.committable, self._flags
        if self._commits and commit >= 0 and commit != held.committed:
            flags |= headers.PULL_COMMIT_OFFSET
        header = headers.PullHeader(
            consumer_group=group.name,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=held.next_offset,
            max_msg_nums=group.settings.pull_count,
            sys_flag=flags,
            commit_offset=max(0, commit),
            suspend_timeout_millis=group.settings.hold_ms,
            subscription=subscription.sub_string,
            sub_version=subscription.sub_version,
            expression_type=subscription.expression_type,
        )
        held.pulled_ms = group.session.clock.now_ms()
        caller = group.session.caller(queue.broker_name)
        request = Command(code=self._code, ext=headers.write(header))
        answer = await caller.call(request, group.settings.hold_ms / 1000 + MARGIN_S)
        if answer.code == ResponseCode.PULL_OFFSET_MOVED:
            moved = int(answer.ext["nextBeginOffset"])
            if moved == held.next_offset:  # no move: the broker is not ready yet
                raise Refused(answer)
            log.warning(
                "group %s: the broker moves %s from offset %d to %d", group.name, text(queue), held.next_offset, moved
            )
            if moved > held.next_offset:  # messages in hand stay: they could not be pulled again
                held.take([], moved)
                return True
            group.move(queue, moved)
            return False
        if answer.code != ResponseCode.SUCCESS and answer.code not in _NOTHING:
            raise Refused(answer)
        if flags & headers.PULL_COMMIT_OFFSET:
            held.note_commit(commit, is_kept=False)
        if answer.code == ResponseCode.SUCCESS:
            self._take(held, answer, subscription)
        else:
            held.next_offset = int(answer.ext["nextBeginOffset"])
        return True

    def _take(self, held: HeldQueue, answer: Command, subscription: Subscription) -> None:
        now_ms = self._group.session.clock.now_ms()
        records = read_records(answer.body)
        if subscription.tags_set:  # the broker compares only the hashes of tags
            records = [one for one in records if one.message.properties.get(props.TAGS) in subscription.tags_set]
        sizes = [(record.queue_offset, len(record.message.body)) for record in records]
        held.take(sizes, int(answer.ext["nextBeginOffset"]))
        self._deliver(held, [Taken(record, now_ms) for record in records])
