"""Answers requests that brokers and administrators send to a consumer (RocketMQ: ClientRemotingProcessor)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from wheelmq.client.consumer_settings import ConsumerSettings, GroupSettings
from wheelmq.client.group import GroupMember
from wheelmq.client.handling import Handling
from wheelmq.client.share import HeldQueue, Taken
from wheelmq.formats.disk.message import decode_record
from wheelmq.formats.units import Millis
from wheelmq.formats.wire import bodies, client_calls, headers, queue_tables
from wheelmq.formats.wire.administration import QueueOffsets
from wheelmq.formats.wire.bodies import QueueName
from wheelmq.formats.wire.client_calls import ConsumerQueue, DirectlyConsumed
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command

VERSION_TEXT: Final = "V5_3_3"

Answer = Command | None | Awaitable[Command | None]


class Inquiries:
    """Answers for one group member. With a `handling` it also consumes messages that a broker sends it directly."""

    def __init__(self, group: GroupMember, consume_type: str, handling: Handling | None = None) -> None:
        self._group = group
        self._type = consume_type
        self._handling = handling
        self.started_ms = Millis(0)
        self._answers: Mapping[int, Callable[[Command], Answer]] = {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._changed,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._reset,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._consume,
        }

    def answer(self, address: str, request: Command) -> Answer:
        """Return the answer to a request of the broker at `address`; none if oneway. Raises HeaderError, BodyError."""
        answer = self._answers.get(request.code)
        if answer is None:
            remark = f" request type {request.code} not supported"
            return Command(code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
        return answer(request)

    def _changed(self, request: Command) -> Command:
        self._group.request_rebalance()
        return Command(code=ResponseCode.SUCCESS)

    def _reset(self, request: Command) -> Command:
        header = headers.read(request.ext, client_calls.ResetOffsetHeader)
        if header.group != self._group.name:
            return self._not_ours(header.group)
        offsets = queue_tables.by_queue(bodies.read(request.body, QueueOffsets).texts())
        for queue, offset in offsets.items():
            if queue.topic == header.topic:
                self._group.move(queue, offset)
        return Command(code=ResponseCode.SUCCESS)

    def _status(self, request: Command) -> Command:
        header = headers.read(request.ext, client_calls.ConsumerStatusHeader)
        if header.group != self._group.name:
            return self._not_ours(header.group)
        table = self._group.offsets_of(header.topic)
        return Command(code=ResponseCode.SUCCESS, body=queue_tables.write(messageQueueTable=table))

    def _running_info(self, request: Command) -> Command:
        header = headers.read(request.ext, client_calls.RunningInfoHeader)
        group = self._group
        if header.consumer_group != group.name:
            return self._not_ours(header.consumer_group)
        settings = group.settings
        body = queue_tables.write(
            properties={
                "PROP_NAMESERVER_ADDR": "".join(f"{server};" for server in group.session.routes.servers),
                "PROP_CONSUME_TYPE": self._type,
                "PROP_CLIENT_VERSION": VERSION_TEXT,
                "PROP_CONSUMER_START_TIMESTAMP": str(self.started_ms),
                **_chosen(settings),
            },
            subscriptionSet=list(group.subscriptions.values()),
            mqTable={queue: _progress(held, is_locked=group.is_locked(held)) for queue, held in group.held.items()},
            mqPopTable={},
            statusTable={},
            userConsumerInfo={},
        )
        return Command(code=ResponseCode.SUCCESS, body=body)

    async def _consume(self, request: Command) -> Command:
        """Pass the message in the body to its callback and return the result; commit nothing. Raises RecordError."""
        header = headers.read(request.ext, client_calls.ConsumeDirectlyHeader)
        if header.consumer_group != self._group.name or self._handling is None:
            return self._not_ours(header.consumer_group)
        clock, settings = self._group.session.clock, self._group.settings
        begin_s = clock.monotonic()
        record = decode_record(request.body)
        queue = QueueName(
            topic=record.message.topic, broker_name=header.broker_name or "", queue_id=record.message.queue_id
        )
        verdict = await self._handling.handle(queue, Taken(record, clock.now_ms()))
        result = DirectlyConsumed(
            order=isinstance(settings, ConsumerSettings) and settings.orderly,
            consume_result=verdict.name,
            remark=verdict.problem or None,
            spent_time_mills=round(1000 * (clock.monotonic() - begin_s)),
        )
        return Command(code=ResponseCode.SUCCESS, body=bodies.write(result))

    def _not_ours(self, group: str) -> Command:
        remark = f"The Consumer Group <{group}> not exist in this consumer"
        return Command(code=ResponseCode.SYSTEM_ERROR, remark=remark)


def _chosen(settings: GroupSettings) -> dict[str, str]:
    if not isinstance(settings, ConsumerSettings):
        return {}
    return {
        "PROP_CONSUMEORDERLY": str(settings.orderly).lower(),
        "PROP_THREADPOOL_CORE_SIZE": str(settings.concurrency),
    }


def _progress(held: HeldQueue, *, is_locked: bool) -> ConsumerQueue:
    count, first, last = held.in_hand
    return ConsumerQueue(
        commit_offset=held.committable,
        cached_msg_count=count,
        cached_msg_min_offset=first,
        cached_msg_max_offset=last,
        cached_msg_size_in_mib=held.in_hand_bytes >> 20,
        locked=is_locked and held.locked_ms > 0,
        last_lock_timestamp=held.locked_ms,
        droped=held.is_lost,
        last_pull_timestamp=held.pulled_ms,
        last_consume_timestamp=held.consumed_ms,
    )
