"""The table of topics: create, change, return and delete them (RocketMQ: TopicConfigManager)."""

from __future__ import annotations

import logging
from functools import partial
from typing import Final

import msgspec

from wheelmq.broker.answers import Answer, PeerError, reply
from wheelmq.broker.background_jobs import run_in_background
from wheelmq.broker.connection import peer_text
from wheelmq.broker.context import Context
from wheelmq.broker.handler_table import serves
from wheelmq.broker.request import Request
from wheelmq.broker.saved_answers import when_saved
from wheelmq.broker.state.attributes import MESSAGE_TYPE, BadAttribute, changed, parse
from wheelmq.broker.state.topics import check_queues
from wheelmq.formats import names
from wheelmq.formats.wire import bodies
from wheelmq.formats.wire.bodies import DataVersion, TopicConfig
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.headers import CreateTopicHeader, TopicHeader

log = logging.getLogger(__name__)

FILTER_TYPES: Final = ("SINGLE_TAG", "MULTI_TAG")
"""Filter types that Java tools and clients can read."""


@serves(RequestCode.UPDATE_AND_CREATE_TOPIC)
def create_topic(request: Request, context: Context) -> Answer:
    """Create a topic, or change its queues, permissions and attributes."""
    header = request.header(CreateTopicHeader)
    config = TopicConfig(
        topic_name=header.topic,
        read_queue_nums=header.read_queue_nums,
        write_queue_nums=header.write_queue_nums,
        perm=header.perm,
        topic_filter_type=header.topic_filter_type,
        topic_sys_flag=header.topic_sys_flag,
        order=header.order,
    )
    _check_name(context, header.topic)
    try:
        changes = parse(header.attributes)
    except BadAttribute as error:
        raise PeerError(ResponseCode.SYSTEM_ERROR, str(error)) from None
    return _put(request, context, [msgspec.structs.replace(config, attributes=changes)])


@serves(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST)
def create_topics(request: Request, context: Context) -> Answer:
    """Create or change several topics: all of them, or none."""
    configs = bodies.read(request.body, bodies.TopicConfigList).topic_config_list
    for config in configs:
        _check_name(context, config.topic_name)
    return _put(request, context, configs)


def _put(request: Request, context: Context, configs: list[TopicConfig]) -> Answer:
    """Store `configs`, whose attributes are changes, and answer once they are on disk. Raises PeerError."""
    checked = []
    for config in configs:
        name = config.topic_name
        try:
            for count in (config.read_queue_nums, config.write_queue_nums):
                check_queues(count)
        except ValueError as error:
            raise PeerError(ResponseCode.INVALID_PARAMETER, str(error)) from None
        if config.topic_filter_type not in FILTER_TYPES:
            remark = f"topicFilterType is {config.topic_filter_type}: the values are {', '.join(FILTER_TYPES)}"
            raise PeerError(ResponseCode.INVALID_PARAMETER, remark)
        known = context.topics.get(name)
        if config.attributes.get(f"+{MESSAGE_TYPE}") == "MIXED":
            raise PeerError(ResponseCode.INVALID_PARAMETER, "MIXED message type is not supported.")
        try:
            attributes = changed(None if known is None else known.attributes, config.attributes)
        except BadAttribute as error:
            raise PeerError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        config = msgspec.structs.replace(config, attributes=attributes)
        if config != known:
            checked.append(config)
    if checked:
        log.info("%s creates or changes topics: %s", peer_text(request.connection), [one.topic_name for one in checked])
    return when_saved(context.topics.file, lambda: context.topics.put_all(checked) if checked else None, reply)


@serves(RequestCode.DELETE_TOPIC_IN_BROKER)
def delete_topic(request: Request, context: Context) -> Answer:
    """Delete a topic, its messages and the offsets of groups in it. Messages parked for it are still stored when due.

    If the topic is created again, its queues continue at their old end, so that no offset is used twice.
    """
    topic = request.header(TopicHeader).topic
    _check_name(context, topic)
    log.info("%s deletes the topic %s", peer_text(request.connection), topic)
    forget = partial(_forget_topic, context, topic)
    return when_saved(context.topics.file, lambda: context.topics.delete(topic), forget)


def _forget_topic(context: Context, topic: str) -> Answer:
    context.consumer_offsets.remove(lambda _, found: found == topic)
    for remove_files in context.store.queues.remove_topic(topic):
        run_in_background(remove_files, context.workers.background)
    context.stats.forget_topic(topic)
    return reply()


@serves(RequestCode.GET_ALL_TOPIC_CONFIG)
def get_topics(request: Request, context: Context) -> Answer:
    """Return all topics in the form of a registration. None is a static topic."""
    table = bodies.TopicConfigTable(data_version=context.topics.version, topic_config_table=context.topics.all())
    mappings = {"mappingDataVersion": DataVersion(), "topicQueueMappingDetailMap": {}, "topicQueueMappingInfoMap": {}}
    return reply(body=bodies.write(msgspec.to_builtins(table) | mappings))


@serves(RequestCode.GET_TOPIC_CONFIG)
def get_topic(request: Request, context: Context) -> Answer:
    """Return one topic."""
    topic = request.header(TopicHeader).topic
    config = context.topics.get(topic)
    if config is None:
        raise PeerError(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {topic}")
    return reply(body=bodies.write(config))


@serves(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
def get_system_topics(request: Request, context: Context) -> Answer:
    """Return the topics that only the broker creates and deletes."""
    return reply(body=bodies.write({"topicList": context.topics.system()}))


def _check_name(context: Context, topic: str) -> None:
    """Check that `topic` is a valid name and not a system topic. Raises PeerError."""
    problem = names.topic_problem(topic)
    if problem is None and context.topics.is_system(topic):
        problem = f"The topic[{topic}] is conflict with system topic."
    if problem is not None:
        raise PeerError(ResponseCode.INVALID_PARAMETER, problem)
