"""UPDATE_BROKER_CONFIG, GET_BROKER_CONFIG (RocketMQ: AdminBrokerProcessor)."""

from __future__ import annotations

import logging
from typing import Final

from wheelmq.broker.answers import Answer, PeerError, reply
from wheelmq.broker.connection import peer_text
from wheelmq.broker.handler_table import HandlerTable
from wheelmq.broker.request import Request
from wheelmq.broker.settings import BrokerSettings
from wheelmq.config.changes import ChangeRejected, Configuration
from wheelmq.formats.wire import bodies
from wheelmq.formats.wire.codes import RequestCode

log = logging.getLogger(__name__)

HANDLERS: Final[HandlerTable[[Configuration[BrokerSettings]]]] = HandlerTable()


@HANDLERS.serves(RequestCode.UPDATE_BROKER_CONFIG)
def update_config(request: Request, configuration: Configuration[BrokerSettings]) -> Answer:
    """Change the settings in the body: all of them, or none."""
    log.info("%s changes settings", peer_text(request.connection))
    try:
        configuration.update(bytes(request.body))
    except ChangeRejected as rejection:
        raise PeerError(rejection.code, rejection.remark) from None
    return reply()


@HANDLERS.serves(RequestCode.GET_BROKER_CONFIG)
def get_config(request: Request, configuration: Configuration[BrokerSettings]) -> Answer:
    """Return the settings in force, by Apache's names. The header counts changes."""
    return reply(body=configuration.text(), version=bodies.write(configuration.version).decode())
