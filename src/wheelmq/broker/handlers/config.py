"""UPDATE_BROKER_CONFIG, GET_BROKER_CONFIG (RocketMQ: AdminBrokerProcessor)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from wheelmq.broker.connection import peer_text
from wheelmq.broker.dispatch import serves
from wheelmq.broker.request import Answer, PeerError, Request, reply
from wheelmq.config.changes import ChangeRejected
from wheelmq.formats.wire import bodies
from wheelmq.formats.wire.codes import RequestCode

if TYPE_CHECKING:
    from wheelmq.broker.broker import Broker

log = logging.getLogger(__name__)


@serves(RequestCode.UPDATE_BROKER_CONFIG)
def update_config(request: Request, broker: Broker) -> Answer:
    """Change settings: all that the body names, or none."""
    log.info("%s changes settings", peer_text(request.connection))
    try:
        broker.configuration.update(bytes(request.body))
    except ChangeRejected as rejection:
        raise PeerError(rejection.code, rejection.remark) from None
    return reply()


@serves(RequestCode.GET_BROKER_CONFIG)
def get_config(request: Request, broker: Broker) -> Answer:
    """The settings in force, by Apache's names; the header counts changes."""
    configuration = broker.configuration
    return reply(body=configuration.text(), version=bodies.write(configuration.version).decode())
