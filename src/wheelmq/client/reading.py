"""Reads queues without a group: an administrator's pulls, which commit no offset (RocketMQ: MQPullConsumer)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from wheelmq.client.message import read_records
from wheelmq.formats.disk.message import Record, RecordError
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.bodies import QueueName
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.errors import CallError, Refused
from wheelmq.net.rpc_client import RpcClient

GROUP: Final = "TOOLS_CONSUMER"
"""The group of tools, which every broker has. No member of it needs to be connected."""
COUNT: Final = 32
"""The greatest number of messages that Apache's broker returns in one answer by default."""
_EMPTY: Final = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED)


async def read_queue(connection: RpcClient, queue: QueueName, timeout_s: float) -> AsyncIterator[Record]:
    """Yield the records of a queue that are stored when the call begins, in order. Raises CallError, Refused.

    `connection` is that of the queue's broker.
    """
    ends = []
    for code in (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET):
        ext = headers.write(headers.QueueHeader(topic=queue.topic, queue_id=queue.queue_id))
        ends.append(int((await connection.ask(Command(code=code, ext=ext), timeout_s)).ext["offset"]))
    at, end = ends
    while at < end:
        answer = await connection.call(_request(queue, at), timeout_s)
        if answer.code != ResponseCode.SUCCESS and answer.code not in _EMPTY:
            raise Refused(answer)
        if answer.code == ResponseCode.SUCCESS:
            try:
                records = read_records(answer.body)
            except RecordError as error:
                raise CallError(f"queue {queue.queue_id} of {queue.topic} cannot be read at {at}: {error}") from None
            for record in records:
                if record.queue_offset < end:
                    yield record
        following = int(answer.ext["nextBeginOffset"])
        if following <= at:
            raise CallError(f"{queue.broker_name} does not read queue {queue.queue_id} of {queue.topic} beyond {at}")
        at = following


def _request(queue: QueueName, offset: int) -> Command:
    header = headers.PullHeader(
        consumer_group=GROUP,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        max_msg_nums=COUNT,
        sys_flag=headers.PULL_SUBSCRIPTION,
        commit_offset=0,
        suspend_timeout_millis=0,
        subscription="*",
        expression_type="TAG",
    )
    return Command(code=RequestCode.PULL_MESSAGE, ext=headers.write(header))
