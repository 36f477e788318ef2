"""Subscriptions, and their check by the brokers (RocketMQ: FilterAPI, checkClientInBroker)."""

from __future__ import annotations

import logging
from typing import Final

from wheelmq.client.outgoing import check_topic
from wheelmq.client.routes import TopicUnknown
from wheelmq.client.session import Session
from wheelmq.formats.wire import bodies
from wheelmq.formats.wire.bodies import ClientCheck, Subscription
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.errors import CallError

log = logging.getLogger(__name__)

SQL92: Final = "SQL92"


def subscription(topic: str, tags: str, sql: str | None, version: int) -> Subscription:
    """Return the subscription to `topic` by tags, or by an expression over properties. Raises ValueError."""
    check_topic(topic)
    if sql is None:
        return Subscription.of_tags(topic, tags, version)
    if tags != "*":
        raise ValueError("a subscription has tags or an expression, not both")
    if not sql.strip():
        raise ValueError("the expression is empty: leave it out to receive all messages")
    return Subscription(topic=topic, sub_string=sql, sub_version=version, expression_type=SQL92)


async def check(session: Session, group: str, wanted: Subscription) -> None:
    """Have every broker of the topic check an expression, at the start. Raises Refused if one rejects it.

    Nothing is checked for a topic that does not exist yet.
    """
    if wanted.is_by_tags:
        return
    try:
        route = await session.routes.get(wanted.topic)
        body = ClientCheck(client_id=session.client_id, group=group, subscription_data=wanted)
        request = Command(code=RequestCode.CHECK_CLIENT_CONFIG, body=bodies.write(body))
        for address in route.masters.values():
            await session.connections.to(address).ask(request, session.timeout_s)
    except (TopicUnknown, CallError) as error:
        log.info("group %s: the check of the expression for %s is incomplete: %s", group, wanted.topic, error)
