"""Headers and bodies that an administrator's client sends and reads (RocketMQ: MQAdminExt)."""

from __future__ import annotations

import msgspec

from wheelmq.formats.wire.bodies import Body, GroupConfig


class NameTable(Body):
    """GET_BROKER_RUNTIME_INFO: texts by name."""

    table: dict[str, str] = {}


class TopicList(Body):
    """GET_ALL_TOPIC_LIST_FROM_NAMESERVER and others."""

    topic_list: list[str] = []


class QueueSpan(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """The range of queue offsets in a queue. `max_offset` itself is not in it (RocketMQ: TopicOffset)."""

    min_offset: int = 0
    max_offset: int = 0
    last_update_timestamp: int = 0
    """Store time of the last message, in milliseconds since 1970. It is 0 for a queue without messages."""


class GroupConfigs(Body):
    """GET_ALL_SUBSCRIPTIONGROUP_CONFIG, without the version and the forbidden topics."""

    subscription_group_table: dict[str, GroupConfig] = {}


class TopicStats(Body):
    """GET_TOPIC_STATS_INFO. The keys are queues as texts (queue_tables.by_queue)."""

    offset_table: dict[str, QueueSpan] = {}


class GroupQueueOffsets(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """The progress of a group in a queue (RocketMQ: OffsetWrapper)."""

    broker_offset: int = 0
    """The end of the queue."""
    consumer_offset: int = 0
    pull_offset: int = 0
    last_timestamp: int = 0
    """Store time of the last consumed message, in milliseconds since 1970."""

    @property
    def behind(self) -> int:
        return self.broker_offset - self.consumer_offset


class ConsumeStats(Body):
    """GET_CONSUME_STATS. The keys are queues as texts."""

    offset_table: dict[str, GroupQueueOffsets] = {}
    consume_tps: float = 0.0


class Connected(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """A connected client (RocketMQ: Connection)."""

    client_id: str = ""
    client_addr: str = ""
    language: str = ""
    version: int = 0


class GroupConnections(Body):
    """GET_CONSUMER_CONNECTION_LIST, GET_PRODUCER_CONNECTION_LIST."""

    connection_set: list[Connected] = []
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None


class QueueOffsets(Body):
    """Queue offsets by queue as text.

    Used for INVOKE_BROKER_TO_RESET_OFFSET, RESET_CONSUMER_CLIENT_OFFSET, and in Apache's file of a broadcast consumer's
    offsets. A request to a C++ client has a list of pairs instead of the table.
    """

    offset_table: dict[str, int] | list[tuple[dict[str, str | int], int]] = {}

    def texts(self) -> dict[str, int]:
        """Return the offsets by queue as text, from either form."""
        if isinstance(self.offset_table, dict):
            return self.offset_table
        return {msgspec.json.encode(queue).decode(): offset for queue, offset in self.offset_table}
