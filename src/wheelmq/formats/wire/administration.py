"""Headers and bodies of administration, as an administrator's client sends and reads them (RocketMQ: MQAdminExt)."""

from __future__ import annotations

import msgspec

from wheelmq.formats.wire.bodies import Body


class NameTable(Body):
    """Texts by name: GET_BROKER_RUNTIME_INFO."""

    table: dict[str, str] = {}


class TopicList(Body):
    """GET_ALL_TOPIC_LIST_FROM_NAMESERVER and others."""

    topic_list: list[str] = []


class QueueSpan(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """What a queue holds: from one queue offset to before another (RocketMQ: TopicOffset)."""

    min_offset: int = 0
    max_offset: int = 0
    last_update_timestamp: int = 0
    """When the last message was stored, in milliseconds since 1970; 0 for a queue without one."""


class TopicStats(Body):
    """GET_TOPIC_STATS_INFO; keys are queues as texts (queue_tables.by_queue)."""

    offset_table: dict[str, QueueSpan] = {}


class GroupQueueOffsets(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """How far a group is in a queue (RocketMQ: OffsetWrapper)."""

    broker_offset: int = 0
    """Where the queue ends."""
    consumer_offset: int = 0
    pull_offset: int = 0
    last_timestamp: int = 0
    """When the last consumed message was stored, in milliseconds since 1970."""

    @property
    def behind(self) -> int:
        """Messages that are stored and not consumed."""
        return self.broker_offset - self.consumer_offset


class ConsumeStats(Body):
    """GET_CONSUME_STATS; keys are queues as texts."""

    offset_table: dict[str, GroupQueueOffsets] = {}
    consume_tps: float = 0.0


class Connected(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """A client that is connected (RocketMQ: Connection)."""

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
    """Queue offsets by queue as text: the answer to INVOKE_BROKER_TO_RESET_OFFSET, a request
    RESET_CONSUMER_CLIENT_OFFSET, and Apache's file of a broadcast consumer's offsets.

    To clients in C++ a request has a list of pairs in place of the table.
    """

    offset_table: dict[str, int] | list[tuple[dict[str, str | int], int]] = {}

    def texts(self) -> dict[str, int]:
        """By queue as text, in whichever form it came."""
        if isinstance(self.offset_table, dict):
            return self.offset_table
        return {msgspec.json.encode(queue).decode(): offset for queue, offset in self.offset_table}
