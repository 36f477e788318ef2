"""Headers of requests that a broker sends to a client on its connection (RocketMQ: ClientRemotingProcessor)."""

from __future__ import annotations

from typing import Any

import msgspec

from wheelmq.formats.wire.bodies import Body
from wheelmq.formats.wire.headers import Header, Int32, Int64


class CheckTransactionHeader(Header):
    """CHECK_TRANSACTION_STATE, for the half message at a log position and a queue offset."""

    position: Int64 = msgspec.field(name="commitLogOffset")
    queue_offset: Int64 = msgspec.field(name="tranStateTableOffset")
    topic: str | None = None
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    bname: str | None = None


class ResetOffsetHeader(Header):
    """INVOKE_BROKER_TO_RESET_OFFSET and RESET_CONSUMER_CLIENT_OFFSET.

    They reset to the first message stored at or after a time, to the end if the time is negative, or one queue to a
    queue offset. Without `is_force`, no offset moves forward.
    """

    topic: str
    group: str
    timestamp: Int64
    queue_id: Int32 = -1
    offset: Int64 | None = None
    is_force: bool = False


class ConsumerStatusHeader(Header):
    """INVOKE_BROKER_TO_GET_CONSUMER_STATUS and GET_CONSUMER_STATUS_FROM_CLIENT.

    `client_addr` is the id of a client. None means all clients of the group.
    """

    topic: str
    group: str
    client_addr: str | None = None


class RunningInfoHeader(Header):
    """GET_CONSUMER_RUNNING_INFO."""

    consumer_group: str
    client_id: str | None = None
    jstack_enable: bool = False


class ConsumeDirectlyHeader(Header):
    """CONSUME_MESSAGE_DIRECTLY. An administrator's request names a message. A client gets its record as the body."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None


class PushReplyHeader(Header):
    """PUSH_REPLY_MESSAGE_TO_CLIENT."""

    topic: str
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str = ""
    reconsume_times: Int32 | None = None
    born_host: str = ""
    store_host: str = ""
    store_timestamp: Int64 = 0


class ConsumerStatus(Body):
    """A client's answer to GET_CONSUMER_STATUS_FROM_CLIENT: queue offsets by queue as text."""

    message_queue_table: dict[str, int] = {}


class DirectlyConsumed(Body):
    """The result of CONSUME_MESSAGE_DIRECTLY (RocketMQ: ConsumeMessageDirectlyResult)."""

    order: bool = False
    auto_commit: bool = True
    consume_result: str = ""
    remark: str | None = None
    spent_time_mills: int = 0


class ConsumerQueue(Body):
    """One queue of a consumer in its running information (RocketMQ: ProcessQueueInfo)."""

    commit_offset: int
    cached_msg_min_offset: int = 0
    cached_msg_max_offset: int = 0
    cached_msg_count: int = 0
    cached_msg_size_in_mib: int = msgspec.field(default=0, name="cachedMsgSizeInMiB")
    locked: bool = False
    last_lock_timestamp: int = 0
    droped: bool = False
    last_pull_timestamp: int = 0
    last_consume_timestamp: int = 0


class RunningInfo(Body):
    """The answer to GET_CONSUMER_RUNNING_INFO, as an administrator reads it (RocketMQ: ConsumerRunningInfo)."""

    properties: dict[str, Any] = {}
    subscription_set: list[Any] = []
    mq_table: dict[str, ConsumerQueue] = {}
    status_table: dict[str, Any] = {}
    jstack: str | None = None
