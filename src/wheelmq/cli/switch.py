"""Switch the master of a broker name: hand over from the present master, then promote a slave."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Final

import msgspec

from wheelmq.cli.credentials import own_sign
from wheelmq.cli.tables import counted
from wheelmq.client.session import server_list
from wheelmq.formats.wire import bodies, headers
from wheelmq.formats.wire.bodies import MASTER_ID, BodyError
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.replication_state import ReplicationState
from wheelmq.net.errors import CallError, Refused
from wheelmq.net.sync_connection import SyncConnection
from wheelmq.system.tls_client import ClientTls

CATCH_UP_S: Final = 10.0
"""Time for the slave to get the last messages of the master. It is shorter than HAND_OVER_MS of the master."""
START_S: Final = 300.0
"""Time for a slave of Apache RocketMQ to start again as the master. It reads its whole log meanwhile."""
POLL_S: Final = 0.02
APACHE_STILL_RUNS: Final = (
    "the master at {} is a broker of Apache RocketMQ, which cannot hand over. Stop it first: two masters would deliver "
    "each delayed message twice"
)


class SwitchRejected(Exception):
    """The switch would lose messages, or the brokers are not those of one name. The text names the remedy."""


@dataclass
class Switched:
    """The result of a switch."""

    text: str
    fields: dict[str, object] = field(default_factory=dict)


def switch(broker: str, namesrv: str, *, force: bool, tls: ClientTls | None = None) -> Switched:
    """Make the slave at `broker` the master. Raises SwitchRejected, CallError, Refused."""
    slave = SyncConnection(broker, tls=tls, sign=own_sign())
    state = state_at(slave)
    if state.is_master:
        raise SwitchRejected(f"the broker at {broker} is the master already")
    began_s = time.monotonic()
    groups = _members_of(state, namesrv, tls, force=force)
    master = _master_of(groups)
    least_end = 0
    handed_over = False
    if master is not None and master != broker:
        successor = next((group[state.broker_id] for group in groups if state.broker_id in group), broker)
        least_end = _hand_over(slave, SyncConnection(master, tls=tls, sign=own_sign()), successor, force=force)
        handed_over = least_end > 0
    silent = [] if handed_over else _compare_slaves(slave, _other_slaves(groups, broker), tls)
    ext = headers.texts(leastLogEnd=least_end)
    slave.ask(Command(code=RequestCode.WMQ_PROMOTE, ext=ext))
    after = _await_master(slave)
    took_ms = round(1000 * (time.monotonic() - began_s))
    how = f"the former master at {master} handed over" if handed_over else "the former master was not reachable"
    text = f"{broker} is the master of {state.broker_name} now, epoch {after.epoch}, after {took_ms} ms: {how}."
    if silent:
        text += f" The slave at {silent[0]} did not answer. Messages that only this slave has will be removed from it."
    fields = {"broker": broker, "epoch": after.epoch, "log_end": after.log_end, "took_ms": took_ms}
    return Switched(text, {**fields, "handed_over": handed_over})


def state_at(connection: SyncConnection, *, wants_blocks: bool = False) -> ReplicationState:
    """Return the state of a broker's replication, and with `wants_blocks` its blocks. Raises CallError, Refused."""
    ext = headers.texts(wantsBlocks=wants_blocks)
    answer = connection.ask(Command(code=RequestCode.WMQ_REPLICATION_STATE, ext=ext))
    try:
        return msgspec.json.decode(answer.body, type=ReplicationState)
    except msgspec.DecodeError as error:
        raise CallError(f"the state of {connection.address} is unreadable: {error}") from None


def _await_master(slave: SyncConnection) -> ReplicationState:
    """Wait until the slave is the master. A slave of Apache RocketMQ starts again first. Raises SwitchRejected."""
    deadline_s = time.monotonic() + START_S
    while True:
        try:
            state = state_at(slave)
            if state.is_master:
                return state
        except CallError:
            pass  # it starts again
        if time.monotonic() > deadline_s:
            raise SwitchRejected(
                f"the broker at {slave.address} is to be the master, but did not start again within {START_S:.0f} s. "
                "Its log says why, or how far its recovery is"
            )
        time.sleep(POLL_S)


def _members_of(state: ReplicationState, namesrv: str, tls: ClientTls | None, *, force: bool) -> list[dict[int, str]]:
    """Return the brokers of the slave's name by id, one group for each name server that answers.

    Without `force`, one must name a master, or all must answer. Raises SwitchRejected.
    """
    ext = headers.texts(clusterName=state.cluster, brokerName=state.broker_name)
    groups: list[dict[int, str]] = []
    silent = ""
    for server in server_list(namesrv):
        try:
            names = SyncConnection(server, tls=tls, sign=own_sign())
            answer = names.ask(Command(code=RequestCode.GET_BROKER_MEMBER_GROUP, ext=ext))
            groups.append(bodies.read(answer.body, bodies.MemberGroup).broker_member_group.broker_addrs)
        except (CallError, Refused, BodyError) as error:
            silent = f"the name server at {server} does not say which broker is the master ({error})"
    if silent and not force and _master_of(groups) is None:
        raise SwitchRejected(
            f"{silent}. Name a server that answers with --namesrv. With --force the slave takes over without the "
            "master, and messages that it has not got are lost"
        )
    return groups


def _master_of(groups: list[dict[int, str]]) -> str | None:
    """Return the address of the present master, or None if no group has one."""
    return next((group[MASTER_ID] for group in groups if MASTER_ID in group), None)


def _other_slaves(groups: list[dict[int, str]], broker: str) -> list[str]:
    """Return the addresses of the slaves in `groups`, without the one at `broker`."""
    found = {address: None for group in groups for number, address in group.items() if number != MASTER_ID}
    return [address for address in found if address != broker]


def _compare_slaves(slave: SyncConnection, others: list[str], tls: ClientTls | None) -> list[str]:
    """Check that no other slave has more than `slave`. Return those that do not answer.

    Raises SwitchRejected, CallError, Refused.
    """
    silent: list[str] = []
    for address in others:
        try:
            other = state_at(SyncConnection(address, tls=tls, sign=own_sign()), wants_blocks=True)
        except (CallError, Refused):
            silent.append(address)
            continue
        own = state_at(slave, wants_blocks=True)
        units = more_in_blocks(own.blocks, other.blocks) if other.epoch == own.epoch else 0
        if (other.epoch, other.log_end) > (own.epoch, own.log_end) or units:
            raise SwitchRejected(
                f"the slave at {address} has more messages: its log ends at {other.log_end} of epoch {other.epoch}, "
                f"and that of {slave.address} at {own.log_end} of epoch {own.epoch}. It has "
                f"{counted(units, 'more message')} with delayInSeconds. Promote it instead: wheelmq promote {address} "
                "--force. Or stop it first, and lose these messages"
            )
    return silent


def more_in_blocks(own: dict[str, int], theirs: dict[str, int]) -> int:
    """Return the number of messages that blocks of another slave have and own blocks lack.

    Blocks before the first own one do not count: this slave may have removed them already.
    """
    first = min(map(int, own), default=0)
    return sum(max(0, units - own.get(number, 0)) for number, units in theirs.items() if int(number) >= first)


def _hand_over(slave: SyncConnection, master: SyncConnection, successor: str, *, force: bool) -> int:
    """Stop the master, and wait until the slave has its last message.

    The master resumes 15 s after it has stopped. A promotion after that time would remove its new messages. So the
    deadline counts from before the request, also if the last answer shows that the slave has everything.

    Returns the end of the master's log, or 0 with `force` if the master is not reachable. Raises SwitchRejected.
    """
    deadline_s = time.monotonic() + CATCH_UP_S
    try:
        ext = headers.texts(successor=successor)
        answer = master.ask(Command(code=RequestCode.WMQ_HAND_OVER, ext=ext))
    except (CallError, Refused) as error:
        if force:
            return 0
        if isinstance(error, Refused) and error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise SwitchRejected(APACHE_STILL_RUNS.format(master.address)) from None
        raise SwitchRejected(
            f"the name server knows a master at {master.address}, which cannot hand over: {error}. With --force the "
            "slave takes over without it, and messages that it has not got are lost"
        ) from None
    end = int(answer.ext["logEnd"])
    while True:
        behind = _behind(slave, master, end)
        if time.monotonic() > deadline_s:
            raise SwitchRejected(
                f"{behind or 'the answers came too late'}: it did not catch up within {CATCH_UP_S:.0f} s. The master "
                "takes messages again. Look at the logs of both"
            )
        if behind is None:
            return end
        time.sleep(POLL_S)


def _behind(slave: SyncConnection, master: SyncConnection, end: int) -> str | None:
    """Return what the slave lacks of a master whose log ends at `end`, or None. Raises CallError, Refused."""
    state = state_at(slave)
    if state.log_end < end:
        return f"the slave has the log up to {state.log_end}, and the master up to {end}"
    theirs = state_at(master)
    lacking = theirs.lacking.get(str(state.broker_id))
    if lacking is None and theirs.has_blocks:
        return "the slave does not copy the blocks of the master"
    return f"the slave lacks {counted(lacking, 'message')} with delayInSeconds" if lacking else None
