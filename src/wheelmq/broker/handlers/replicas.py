"""The state of replication, and the tables that a replica fetches."""

from __future__ import annotations

from typing import Final

import msgspec

from wheelmq.broker.answers import Answer, PeerError, reply
from wheelmq.broker.connection import peer_text
from wheelmq.broker.context import Context
from wheelmq.broker.handler_table import HandlerTable
from wheelmq.broker.replication.replication import Replication
from wheelmq.broker.request import Request
from wheelmq.formats.wire import bodies
from wheelmq.formats.wire.bodies import DataVersion
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.headers import HandOverHeader, PromoteHeader, ReplicationStateHeader
from wheelmq.formats.wire.replication_state import ReplicationState

HANDLERS: Final[HandlerTable[[Context, Replication]]] = HandlerTable()


@HANDLERS.serves(RequestCode.GET_BROKER_HA_STATUS)
def get_ha_status(request: Request, context: Context, replication: Replication) -> Answer:
    """Return the end of the log, and the progress of each connected replica, or of the own one."""
    end, replicas = context.store.log.end, replication.replicas
    connections = []
    for link in replicas.links:
        progress = link.source.progress
        behind = end - (progress.acked or 0)
        connections.append(
            {
                "addr": link.peer,
                "slaveAckOffset": progress.acked or 0,
                "diff": behind,
                "inSync": progress.acked is not None and behind < context.settings.replication.gap_bytes_max,
                "transferredByteInSecond": link.rate.per_second,
                "transferFromWhere": progress.sent,
            }
        )
    body = {
        "master": context.role.is_master,
        "masterCommitLogMaxOffset": end,
        "inSyncSlaveNums": sum(bool(one["inSync"]) for one in connections),
        "haConnectionInfo": connections,
        "haClientRuntimeInfo": replication.following_info(),
    }
    return reply(body=bodies.write(body))


@HANDLERS.serves(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
def get_request_modes(request: Request, context: Context, replication: Replication) -> Answer:
    """Return an empty table, because no group uses POP. A slave of Apache RocketMQ asks for it each minute."""
    return reply(body=bodies.write({"messageRequestModeMap": {}}))


@HANDLERS.serves(RequestCode.WMQ_REPLICATION_STATE)
def get_state(request: Request, context: Context, replication: Replication) -> Answer:
    """Return the role of the broker, its epoch, the ends of its log, and the versions of its tables.

    With `wantsTicket`, return a ticket for the HA port too, if the broker has users. With `formerMaster`, return an id
    for the broker of this address: `ownId`, or another one. With `wantsBlocks`, return the number of messages by block.
    """
    header = request.header(ReplicationStateHeader)
    wants_ticket = header.wants_ticket
    tickets = replication.replicas.tickets
    log = context.store.log
    node = context.settings.broker
    state = ReplicationState(
        broker_name=node.name,
        cluster=node.cluster,
        is_master=context.role.is_master,
        is_sync=context.role.is_sync,
        broker_id=context.role.broker_id,
        free_id=_free_id(header, context, replication),
        epoch=replication.epoch,
        ha_port=replication.ha_port,
        log_start=log.start,
        log_end=log.end,
        confirmed=replication.replicas.confirmed,
        replicas=len(replication.replicas.acked()),
        lag_bytes=replication.replicas.lag_bytes(),
        lag_ms=replication.replicas.lag_ms(),
        lacking={str(one): count for one, count in replication.block_source.lacks().items()},
        has_blocks=len(replication.block_source.blocks) > 0,
        blocks={str(one.number): one.queue.end for one in replication.block_source.blocks if header.wants_blocks},
        versions={
            "topics": _text(context.topics.version),
            "groups": _text(context.groups.table().data_version),
            "offsets": str(context.consumer_offsets.changes),
            "filters": str(context.consumer_filters.changes),
        },
        ticket=tickets.issue() if wants_ticket and tickets is not None else "",
    )
    return reply(body=msgspec.json.encode(state))


def _free_id(header: ReplicationStateHeader, context: Context, replication: Replication) -> int:
    """Return the id for the former master that asks."""
    role = context.role
    if header.former_master is None or not role.is_master:
        return role.free_id
    return role.give_id(header.former_master, header.own_id, replication.replica_ids())


def _text(version: DataVersion) -> str:
    return f"{version.state_version}.{version.timestamp}.{version.counter}"


@HANDLERS.serves(RequestCode.WMQ_GET_FILTERS)
def get_filters(request: Request, context: Context, replication: Replication) -> Answer:
    """Return the expressions of all groups in the form of consumerFilter.json."""
    return reply(body=bodies.write(context.consumer_filters.table()))


def _check_unelected(context: Context) -> None:
    """Raise PeerError if a controller elects the master."""
    if context.role.is_elected:
        raise PeerError(
            ResponseCode.INVALID_PARAMETER,
            "the controller elects the master of this broker: use electMaster of Apache's mqadmin",
        )


@HANDLERS.serves(RequestCode.WMQ_PROMOTE)
def promote(request: Request, context: Context, replication: Replication) -> Answer:
    """Make this slave the master of its broker name, under a new epoch."""
    least_end, end = request.header(PromoteHeader).least_log_end, context.store.log.end
    _check_unelected(context)
    if context.role.is_master:
        raise PeerError(ResponseCode.INVALID_PARAMETER, "the broker is the master already")
    if end < least_end:
        raise PeerError(
            ResponseCode.INVALID_PARAMETER,
            f"the log of this slave ends at {end}, before {least_end}: it would lose messages as the master",
        )
    if replication.epochs.last is None and end == 0:
        raise PeerError(
            ResponseCode.INVALID_PARAMETER,
            "this slave has never followed a master, so it would begin with an empty log. If there is no master, start "
            "the broker with broker_id=0",
        )
    replication.promote(f"a request from {peer_text(request.connection)}")
    return reply()


@HANDLERS.serves(RequestCode.WMQ_HAND_OVER)
def hand_over(request: Request, context: Context, replication: Replication) -> Answer:
    """Stop being the master, for a slave that will be promoted next. Return the end of the log."""
    successor = request.header(HandOverHeader).successor
    _check_unelected(context)
    if not context.role.is_master:
        raise PeerError(ResponseCode.INVALID_PARAMETER, "the broker is no master")
    if not replication.replicas.links:
        raise PeerError(ResponseCode.SLAVE_NOT_AVAILABLE, "no replica is connected to this master")
    replication.hand_over(successor)
    return reply(logEnd=context.store.log.end)
