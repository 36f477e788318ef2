"""Headers of requests about groups and their clients: connections, progress and permissions."""

from __future__ import annotations

import msgspec

from wheelmq.formats.wire.headers.base import Header


class UnregisterClientHeader(Header):
    """UNREGISTER_CLIENT."""

    client_id: str = msgspec.field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class ConsumerGroupHeader(Header):
    """GET_CONSUMER_LIST_BY_GROUP and others that name a group."""

    consumer_group: str


class ClientOfGroupHeader(Header):
    """GET_CONSUMER_RUNNING_INFO and CONSUME_MESSAGE_DIRECTLY: a client of a consumer group."""

    consumer_group: str
    client_id: str | None = None
    topic: str | None = None
    msg_id: str | None = None


class GroupHeader(Header):
    """GET_SUBSCRIPTIONGROUP_CONFIG and others that name a group."""

    group: str


class DeleteGroupHeader(Header):
    """DELETE_SUBSCRIPTIONGROUP."""

    group_name: str
    clean_offset: bool = False


class ForbiddenHeader(Header):
    """UPDATE_AND_GET_GROUP_FORBIDDEN."""

    group: str
    topic: str
    readable: bool | None = None


class ProducerGroupHeader(Header):
    """GET_PRODUCER_CONNECTION_LIST."""

    producer_group: str


class ConsumeStatsHeader(Header):
    """GET_CONSUME_STATS for one topic, several topics between semicolons, or all topics that the group consumes."""

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


class BrokerConsumeStatsHeader(Header):
    """GET_BROKER_CONSUME_STATS for all topics, or for ordered ones only."""

    is_order: bool = False


class TopicAndGroupHeader(Header):
    """QUERY_CONSUME_TIME_SPAN, QUERY_SUBSCRIPTION_BY_CONSUMER."""

    topic: str
    group: str


class CorrectionHeader(Header):
    """QUERY_CORRECTION_OFFSET. `filter_groups` lists the groups to ignore, with commas between them."""

    topic: str
    compare_group: str
    filter_groups: str | None = None


class CloneHeader(Header):
    """CLONE_GROUP_OFFSET."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False
