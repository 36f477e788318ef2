"""The requests of a broker to its controller, and the answers as values."""

from __future__ import annotations

from typing import Final

from wheelmq.broker.replication.controller.elections import ControllerDecision
from wheelmq.formats.wire import bodies, headers
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.controller import MasterHeader, SyncStateSetBody
from wheelmq.formats.wire.frame import Command

NO_MASTER: Final = ControllerDecision(None, "", -1, frozenset(), -1)


def metadata() -> Command:
    return Command(code=RequestCode.CONTROLLER_GET_METADATA_INFO)


def next_id(cluster: str, name: str) -> Command:
    return _command(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, clusterName=cluster, brokerName=name)


def apply_for_id(cluster: str, name: str, broker_id: int, check_code: str) -> Command:
    return _command(
        RequestCode.CONTROLLER_APPLY_BROKER_ID,
        clusterName=cluster,
        brokerName=name,
        appliedBrokerId=broker_id,
        registerCheckCode=check_code,
    )


def register(cluster: str, name: str, broker_id: int, address: str, now_ms: int) -> Command:
    return _command(
        RequestCode.CONTROLLER_REGISTER_BROKER,
        clusterName=cluster,
        brokerName=name,
        brokerId=broker_id,
        brokerAddress=address,
        invokeTime=now_ms,
    )


def elect(cluster: str, name: str, broker_id: int, now_ms: int) -> Command:
    return _command(
        RequestCode.CONTROLLER_ELECT_MASTER,
        clusterName=cluster,
        brokerName=name,
        brokerId=broker_id,
        designateElect=False,
        invokeTime=now_ms,
    )


def replica_info(name: str) -> Command:
    return _command(RequestCode.CONTROLLER_GET_REPLICA_INFO, brokerName=name)


def alter(
    name: str, broker_id: int, master_epoch: int, members: frozenset[int], known_epoch: int, now_ms: int
) -> Command:
    """Return the request to store `members` as the replicas in sync, if the set still has the number `known_epoch`."""
    command = _command(
        RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
        brokerName=name,
        masterBrokerId=broker_id,
        masterEpoch=master_epoch,
        invokeTime=now_ms,
    )
    command.body = bodies.write(SyncStateSetBody(sync_state_set=sorted(members), sync_state_set_epoch=known_epoch))
    return command


def heartbeat(
    cluster: str,
    name: str,
    address: str,
    broker_id: int,
    *,
    epoch: int,
    log_end: int,
    confirmed: int,
    timeout_ms: int,
    priority: int,
) -> Command:
    """Return a heartbeat. The controller elects the candidate with the greatest epoch and then the longest log."""
    return _command(
        RequestCode.BROKER_HEARTBEAT,
        clusterName=cluster,
        brokerAddr=address,
        brokerName=name,
        brokerId=broker_id,
        epoch=epoch,
        maxOffset=log_end,
        confirmOffset=confirmed,
        heartbeatTimeoutMills=timeout_ms,
        electionPriority=priority,
    )


def decision_in(answer: Command) -> ControllerDecision:
    """Return the decision in an answer, or NO_MASTER. Raises HeaderError, BodyError."""
    header = headers.read(answer.ext, MasterHeader)
    if header.master_epoch is None:
        return NO_MASTER
    members = set_in(answer)
    set_epoch = members.sync_state_set_epoch
    if set_epoch is None:
        set_epoch = -1 if header.sync_state_set_epoch is None else header.sync_state_set_epoch
    has_master = bool(header.master_address) and header.master_broker_id not in (None, -1)
    return ControllerDecision(
        header.master_broker_id if has_master else None,
        header.master_address or "",
        header.master_epoch,
        frozenset(members.sync_state_set),
        set_epoch,
    )


def set_in(answer: Command) -> SyncStateSetBody:
    """Return the replicas in sync in the body of an answer. Raises BodyError."""
    return bodies.read(answer.body, SyncStateSetBody) if answer.body else SyncStateSetBody()


def _command(code: RequestCode, **fields: object) -> Command:
    return Command(code=code, ext=headers.texts(**fields))
