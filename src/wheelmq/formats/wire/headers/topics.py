"""Headers of requests about topics, units of a queue, or figures of a broker."""

from __future__ import annotations

from typing import Literal

from wheelmq.formats.wire.headers.base import Header, Int32, Int64


class TopicHeader(Header):
    """GET_ROUTEINFO_BY_TOPIC and others that name a topic."""

    topic: str


class CreateTopicHeader(Header):
    """UPDATE_AND_CREATE_TOPIC."""

    topic: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    default_topic: str = ""
    topic_filter_type: Literal["SINGLE_TAG", "MULTI_TAG"] = "SINGLE_TAG"
    topic_sys_flag: Int32 = 0
    order: bool = False
    attributes: str = ""


class StatsHeader(Header):
    """VIEW_BROKER_STATS_DATA."""

    stats_name: str
    stats_key: str


class MetricsHeader(Header):
    """WMQ_METRICS, with an overview of `topics` topics if it is above 0."""

    topics: Int32 = 0


class ConsumeQueueHeader(Header):
    """QUERY_CONSUME_QUEUE: units of a queue, and whether they match the filter of a group."""

    topic: str
    queue_id: Int32
    index: Int64
    count: Int32
    consumer_group: str | None = None
