"""UPDATE_AND_CREATE_TOPIC, DELETE_TOPIC_IN_BROKER."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wheelmq.broker.dispatch import serves
from wheelmq.broker.request import Answer, PeerError, Request, reply
from wheelmq.broker.state.topics import check_queues
from wheelmq.formats import names
from wheelmq.formats.wire.bodies import TopicConfig
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.headers import CreateTopicHeader, TopicHeader

if TYPE_CHECKING:
    from wheelmq.broker.broker import Broker


@serves(RequestCode.UPDATE_AND_CREATE_TOPIC)
def create_topic(request: Request, broker: Broker) -> Answer:
    """Make a topic, or change its queues and permissions."""
    header = request.header(CreateTopicHeader)
    _check_name(header.topic)
    try:
        for count in (header.read_queue_nums, header.write_queue_nums):
            check_queues(count)
    except ValueError as error:
        raise PeerError(ResponseCode.INVALID_PARAMETER, str(error)) from None
    broker.topics.put(
        TopicConfig(
            topic_name=header.topic,
            read_queue_nums=header.read_queue_nums,
            write_queue_nums=header.write_queue_nums,
            perm=header.perm,
            topic_filter_type=header.topic_filter_type,
            topic_sys_flag=header.topic_sys_flag,
            order=header.order,
        )
    )
    return reply()


@serves(RequestCode.DELETE_TOPIC_IN_BROKER)
def delete_topic(request: Request, broker: Broker) -> Answer:
    """Forget a topic; what is parked for it is still stored in its queues when it is due."""
    topic = request.header(TopicHeader).topic
    _check_name(topic)
    broker.topics.delete(topic)
    return reply()


def _check_name(topic: str) -> None:
    problem = names.topic_problem(topic)
    if problem is None and names.is_system_topic(topic):
        problem = f"The topic[{topic}] is conflict with system topic."
    if problem is not None:
        raise PeerError(ResponseCode.INVALID_PARAMETER, problem)
