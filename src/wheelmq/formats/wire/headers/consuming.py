"""Headers of requests that pull or find messages, or read and set the offsets of queues and groups."""

from __future__ import annotations

from typing import Final

from wheelmq.formats.wire.headers.base import Header, Int32, Int64


class PullHeader(Header):
    """PULL_MESSAGE and LITE_PULL_MESSAGE."""

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    max_msg_nums: Int32
    sys_flag: Int32
    commit_offset: Int64
    suspend_timeout_millis: Int64
    subscription: str | None = None
    sub_version: Int64 = 0
    expression_type: str | None = None
    max_msg_bytes: Int32 | None = None
    wmq_bytes_only: bool | None = None
    """Whether bytes alone limit the answer, and not transfer_count_max. Apache and pulls with a filter ignore it."""


PULL_COMMIT_OFFSET: Final = 0x1
PULL_SUSPEND: Final = 0x2
PULL_SUBSCRIPTION: Final = 0x4
PULL_LITE: Final = 0x10


class QueryMessageHeader(Header):
    """QUERY_MESSAGE. The times are store times."""

    topic: str
    key: str
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64


UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
"""Name of an extra field: `true` if the key is a unique one (RocketMQ: MixAll.UNIQUE_MSG_QUERY_FLAG)."""


class ViewMessageHeader(Header):
    """VIEW_MESSAGE_BY_ID. `offset` is a log position."""

    offset: Int64


class QueryConsumerOffsetHeader(Header):
    """QUERY_CONSUMER_OFFSET."""

    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None


class UpdateConsumerOffsetHeader(Header):
    """UPDATE_CONSUMER_OFFSET."""

    consumer_group: str
    topic: str
    queue_id: Int32 | None = None
    commit_offset: Int64 | None = None


class QueueHeader(Header):
    """GET_MAX_OFFSET, GET_MIN_OFFSET and others that name a queue."""

    topic: str
    queue_id: Int32


class SearchOffsetHeader(Header):
    """SEARCH_OFFSET_BY_TIMESTAMP."""

    topic: str
    queue_id: Int32
    timestamp: Int64
    boundary_type: str = "LOWER"
