"""Ask a broker for the state of its replication."""

from __future__ import annotations

from typing import Final

import msgspec

from wheelmq.formats.wire import headers
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.headers import ReplicationStateHeader
from wheelmq.formats.wire.replication_state import ReplicationState
from wheelmq.net.errors import CallError, Refused
from wheelmq.net.rpc_client import RpcClient

TIMEOUT_S: Final = 3.0


async def state_of(
    requests: RpcClient,
    *,
    wants_ticket: bool = False,
    former_master: str | None = None,
    own_id: int = 0,
    wants_blocks: bool = False,
) -> ReplicationState | None:
    """Return the state of a WheelMQ broker, or None for a broker of Apache RocketMQ. Raises CallError, Refused.

    With `wants_ticket`, the state of a broker with users has a ticket for its HA port. With `former_master`, the
    address of this broker, the state has an id for it. `own_id` is one that it had before. With `wants_blocks`, the
    state has the number of messages in each block.
    """
    ext = headers.write(
        ReplicationStateHeader(
            wants_ticket=wants_ticket, former_master=former_master, own_id=own_id, wants_blocks=wants_blocks
        )
    )
    try:
        answer = await requests.ask(Command(code=RequestCode.WMQ_REPLICATION_STATE, ext=ext), TIMEOUT_S)
    except Refused as error:
        if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return None
        raise
    try:
        return msgspec.json.decode(answer.body, type=ReplicationState)
    except msgspec.DecodeError as error:
        raise CallError(f"the state of {requests.address} is unreadable: {error}") from None
