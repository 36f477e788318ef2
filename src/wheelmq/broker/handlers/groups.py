"""Settings of consumer groups: create, change, return and delete them (RocketMQ: SubscriptionGroupManager)."""

from __future__ import annotations

import logging

import msgspec

from wheelmq.broker.answers import Answer, PeerError, reply
from wheelmq.broker.connection import peer_text
from wheelmq.broker.context import Context
from wheelmq.broker.handler_table import serves
from wheelmq.broker.request import Request
from wheelmq.broker.saved_answers import when_saved
from wheelmq.broker.state.attributes import BadAttribute, changed
from wheelmq.formats import names
from wheelmq.formats.wire import bodies
from wheelmq.formats.wire.bodies import GroupConfig
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.headers import DeleteGroupHeader, ForbiddenHeader, GroupHeader

log = logging.getLogger(__name__)


@serves(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP)
def put_group(request: Request, context: Context) -> Answer:
    """Create or change a group."""
    return _put(request, context, [bodies.read(request.body, GroupConfig)])


@serves(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST)
def put_groups(request: Request, context: Context) -> Answer:
    """Create or change several groups: all of them, or none."""
    return _put(request, context, bodies.read(request.body, bodies.GroupConfigList).group_config_list)


def _put(request: Request, context: Context, configs: list[GroupConfig]) -> Answer:
    """Store `configs`, and answer once they are on disk. Raises PeerError."""
    checked = []
    for config in configs:
        problem = names.group_problem(config.group_name)
        if problem is not None:
            raise PeerError(ResponseCode.INVALID_PARAMETER, f"{config.group_name}: {problem}")
        known = context.groups.known(config.group_name)
        try:
            attributes = changed(known.attributes if known else None, config.attributes, {})
        except BadAttribute as error:
            raise PeerError(ResponseCode.INVALID_PARAMETER, f"{config.group_name}: {error}") from None
        checked.append(msgspec.structs.replace(config, attributes=attributes))
    log.info("%s creates or changes groups: %s", peer_text(request.connection), [one.group_name for one in checked])
    return when_saved(context.groups.file, lambda: context.groups.put_all(checked), reply)


@serves(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
def get_groups(request: Request, context: Context) -> Answer:
    """Return all groups in the form of subscriptionGroup.json."""
    return reply(body=bodies.write(context.groups.table()))


@serves(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG)
def get_group(request: Request, context: Context) -> Answer:
    """Return one group. Create it, if the broker creates groups."""
    config = context.groups.get(request.header(GroupHeader).group)
    if config is None:
        raise PeerError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "No group in this broker")
    return reply(body=bodies.write(config))


@serves(RequestCode.DELETE_SUBSCRIPTIONGROUP)
def delete_group(request: Request, context: Context) -> Answer:
    """Delete a group, and its offsets on request."""
    header = request.header(DeleteGroupHeader)
    log.info("%s deletes the group %s", peer_text(request.connection), header.group_name)

    def forget() -> Answer:
        if header.clean_offset:
            context.consumer_offsets.remove(lambda group, topic: group == header.group_name)
        context.stats.forget_group(header.group_name)
        return reply()

    return when_saved(context.groups.file, lambda: context.groups.delete(header.group_name), forget)


@serves(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN)
def forbid(request: Request, context: Context) -> Answer:
    """Return whether a group may read a topic. Change that first, on request."""
    header = request.header(ForbiddenHeader)
    readable = header.readable

    def answer() -> Answer:
        return reply(body=bodies.write({"group": header.group, "topic": header.topic, "readable": readable}))

    if readable is None:
        readable = not context.groups.is_forbidden(header.group, header.topic)
        return answer()
    log.info(
        "%s sets the permission of group %s to read topic %s: %s",
        peer_text(request.connection),
        header.group,
        header.topic,
        readable,
    )
    return when_saved(
        context.groups.file,
        lambda: context.groups.forbid(header.group, header.topic, forbidden=not header.readable),
        answer,
    )
