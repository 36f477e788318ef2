"""GET_BROKER_HA_STATUS: the status of a master without replicas."""

from __future__ import annotations

from wheelmq.broker.answers import Answer, reply
from wheelmq.broker.context import Context
from wheelmq.broker.handler_table import serves
from wheelmq.broker.request import Request
from wheelmq.formats.wire import bodies
from wheelmq.formats.wire.codes import RequestCode


@serves(RequestCode.GET_BROKER_HA_STATUS)
def get_ha_status(request: Request, context: Context) -> Answer:
    """Return the end of the log, and an empty list of replicas."""
    body = {
        "master": context.role.is_master,
        "masterCommitLogMaxOffset": context.store.log.end,
        "inSyncSlaveNums": 0,
        "haConnectionInfo": [],
        "haClientRuntimeInfo": {},
    }
    return reply(body=bodies.write(body))
