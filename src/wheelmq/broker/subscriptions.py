"""The messages of a queue that a consumer gets, by its subscription in the pull or in heartbeats.

A filter by tags compares hashes, so the client compares the tag itself. A filter by SQL92 evaluates the message's
properties (RocketMQ: PullMessageProcessor, ExpressionMessageFilter).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from wheelmq.broker.answers import PeerError
from wheelmq.broker.arrivals import Matches
from wheelmq.broker.context import Context
from wheelmq.broker.state.consumer_filters import ConsumerFilters, compiled
from wheelmq.filter.expression import Condition, ExpressionError, Properties
from wheelmq.filter.values import EvaluationError
from wheelmq.formats.disk import properties as props
from wheelmq.formats.names import RETRY_PREFIX
from wheelmq.formats.wire.bodies import GroupConfig, Subscription
from wheelmq.formats.wire.codes import ResponseCode
from wheelmq.formats.wire.headers import PULL_SUBSCRIPTION, PullHeader

log = logging.getLogger(__name__)


CHARS_MAX: Final = 16_384
"""Maximum characters of a subscription in a pull, which is read at each pull. A subscription in heartbeats is read
once."""


class Forbidden(IntEnum):
    """Reasons why a pull is forbidden (RocketMQ: ForbiddenType)."""

    BROKER = 1
    GROUP = 2
    TOPIC = 3
    BROADCASTING = 4
    SUBSCRIPTION = 5


def forbidden(kind: Forbidden, remark: str) -> PeerError:
    return PeerError(ResponseCode.NO_PERMISSION, remark, forbiddenType=int(kind))


class MessageFilter(NamedTuple):
    """The messages that pass."""

    codes: frozenset[int] | None = None
    """Tag codes in the queue's units; None for any."""
    matches: Matches | None = None
    """Filter by the properties; None for any."""


EVERYTHING = MessageFilter()


def filter_of(header: PullHeader, context: Context, group: GroupConfig) -> MessageFilter:
    """Return the filter of a pull. Raises PeerError."""
    brought = header.sys_flag & PULL_SUBSCRIPTION
    subscription = _brought(header) if brought else _subscription_of(header, context, group)
    if subscription.is_by_tags:
        return _by_tags(subscription)
    check_is_supported(subscription, context)
    condition = _compiled(subscription) if brought else _registered(header, context)
    if subscription.class_filter_mode:
        return EVERYTHING
    if context.settings.consumers.filter_retries and header.topic.startswith(RETRY_PREFIX):
        return MessageFilter(matches=_OfOriginalTopic(context.consumer_filters, header.topic))
    return MessageFilter(matches=_Guarded(condition))


def check_is_supported(subscription: Subscription, context: Context) -> None:
    """Raise PeerError for a filter by properties while such filters are off."""
    if not context.settings.consumers.filter_by_properties:
        remark = (
            f"The broker does not support consumer to filter message by {subscription.expression_type}: such filters "
            "are off by default, as with Apache RocketMQ; start the broker with enablePropertyFilter=true"
        )
        raise PeerError(ResponseCode.SYSTEM_ERROR, remark)


def _brought(header: PullHeader) -> Subscription:
    """Return the subscription in the pull."""
    length = len(header.subscription or "")
    if length > CHARS_MAX:
        raise _unreadable(
            ValueError(f"it has {length} characters, and the limit for a pull's subscription is {CHARS_MAX}")
        )
    subscription = Subscription(topic=header.topic, sub_string=header.subscription or "")
    subscription.expression_type = header.expression_type or subscription.expression_type
    if subscription.is_by_tags:
        try:
            return Subscription.of_tags(header.topic, header.subscription or "*")
        except ValueError as error:
            raise _unreadable(error) from None
    if not subscription.sub_string:
        raise _unreadable(ExpressionError("the expression is empty"))
    return subscription


def _subscription_of(header: PullHeader, context: Context, group: GroupConfig) -> Subscription:
    """Return the subscription in the last heartbeats of the group."""
    members = context.clients.consumers.get(header.consumer_group)
    if members is None:
        raise PeerError(ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's group info not exist")
    if members.message_model == "BROADCASTING" and not group.consume_broadcast_enable:
        remark = f"the consumer group[{header.consumer_group}] can not consume by broadcast way"
        raise forbidden(Forbidden.BROADCASTING, remark)
    if context.groups.is_forbidden(header.consumer_group, header.topic):
        remark = f"the consumer group[{header.consumer_group}] is forbidden for topic[{header.topic}]"
        raise forbidden(Forbidden.SUBSCRIPTION, remark)
    known = members.subscriptions.get(header.topic)
    if known is None:
        raise PeerError(ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's subscription not exist")
    if known.sub_version < header.sub_version:
        raise PeerError(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
    return known


def _registered(header: PullHeader, context: Context) -> Condition:
    """Return the expression that a heartbeat registered."""
    found = context.consumer_filters.find(header.topic, header.consumer_group)
    if found is None:
        remark = "The broker's consumer filter data is not exist!Your expression may be wrong!"
        raise PeerError(ResponseCode.FILTER_DATA_NOT_EXIST, remark)
    if found.version < header.sub_version:
        raise PeerError(ResponseCode.FILTER_DATA_NOT_LATEST, "the consumer's consumer filter data not latest")
    return found.condition


def _compiled(subscription: Subscription) -> Condition:
    try:
        return compiled(str(subscription.expression_type), subscription.sub_string)
    except ExpressionError as error:
        raise _unreadable(error) from None


def _unreadable(error: ValueError) -> PeerError:
    return PeerError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"parse the consumer's subscription failed: {error}")


def _by_tags(subscription: Subscription) -> MessageFilter:
    if subscription.class_filter_mode or subscription.sub_string == "*":
        return EVERYTHING
    return MessageFilter(codes=frozenset(subscription.code_set))


@dataclass(frozen=True, slots=True)
class _Guarded:
    """Whether a condition is True. A message for which it cannot be evaluated does not match."""

    condition: Condition

    def __call__(self, properties: Properties) -> bool:
        try:
            return self.condition.matches(properties)
        except EvaluationError as error:
            log.debug("the filter skips a message: %s", error)
            return False


@dataclass(frozen=True, slots=True)
class _OfOriginalTopic:
    """The filter of a retry topic: that of a message's original topic. Without one, the message passes."""

    filters: ConsumerFilters
    retry_topic: str

    def __call__(self, properties: Properties) -> bool:
        group = self.retry_topic.removeprefix(RETRY_PREFIX)
        known = self.filters.find(properties.get(props.RETRY_TOPIC) or "", group)
        return known is None or _Guarded(known.condition)(properties)
