"""The requests of Apache RocketMQ's controller to a broker, and of administrators about its elections."""

from __future__ import annotations

from typing import Final

from wheelmq.broker.answers import Answer, PeerError, reply
from wheelmq.broker.context import Context
from wheelmq.broker.handler_table import HandlerTable
from wheelmq.broker.replication.controller.elections import Elections
from wheelmq.broker.replication.replication import Replication
from wheelmq.broker.request import Request
from wheelmq.formats.wire import bodies
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.controller import EpochCache, EpochEntry

NO_END: Final = (1 << 63) - 1
"""The end of the last epoch, which goes on."""
HANDLERS: Final[HandlerTable[[Context, Replication, Elections | None]]] = HandlerTable()


@HANDLERS.serves(RequestCode.NOTIFY_BROKER_ROLE_CHANGED)
def note_role_change(
    request: Request, context: Context, replication: Replication, elections: Elections | None
) -> Answer:
    """Ask the controller for the present master soon. The notice itself is only a hint, because anyone can send it."""
    if elections is None:
        raise PeerError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "the broker has no controller: set controller_mode")
    elections.note_notice()
    return reply()


@HANDLERS.serves(RequestCode.GET_BROKER_EPOCH_CACHE)
def get_epochs(request: Request, context: Context, replication: Replication, elections: Elections | None) -> Answer:
    """Return the epochs of the log, and its end."""
    epochs, node = replication.epochs.all, context.settings.broker
    ends = [*(one.start for one in epochs[1:]), *([NO_END] if epochs else [])]
    return reply(
        body=bodies.write(
            EpochCache(
                cluster_name=node.cluster,
                broker_name=node.name,
                broker_id=context.role.broker_id if elections is None else elections.own_id,
                epoch_list=[
                    EpochEntry(epoch=one.number, start_offset=one.start, end_offset=end)
                    for one, end in zip(epochs, ends, strict=True)
                ],
                max_offset=context.store.log.end,
            )
        )
    )
