"""The check of `wheelmq doctor` for replication: the role of the broker, its master or its slaves, and their lag."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Final

import msgspec

from wheelmq.cli.check import Check, CheckStatus
from wheelmq.cli.credentials import own_sign
from wheelmq.cli.ports import HOST, is_free
from wheelmq.cli.tables import counted

if TYPE_CHECKING:
    from wheelmq.broker.settings import BrokerSettings
    from wheelmq.formats.wire.replication_state import ReplicationState
    from wheelmq.system.tls_client import TlsOptions

NAME: Final = "replication"
TIMEOUT_S: Final = 3.0
PAGE: Final = "docs/operations/replication.md"


class Slave(msgspec.Struct, rename="camel"):
    """One connected slave in the status of a master."""

    addr: str
    diff: int
    """Bytes of the log that it lacks."""
    in_sync: bool


class MasterConnection(msgspec.Struct, rename="camel"):
    """The connection of a slave to its master. All fields have their defaults without a connection."""

    master_addr: str = ""
    max_offset: int = 0
    master_flush_offset: int = 0

    @property
    def behind(self) -> int:
        """Bytes of the log that the slave lacks."""
        return max(0, self.master_flush_offset - self.max_offset)


class HaStatus(msgspec.Struct, rename="camel"):
    """The answer to GET_BROKER_HA_STATUS."""

    ha_connection_info: list[Slave] = []
    ha_client_runtime_info: MasterConnection = msgspec.field(default_factory=MasterConnection)


def replication(port: int, settings: BrokerSettings) -> Check:
    """Ask the broker on `port` of this machine for its role, and whether master and slaves are in sync."""
    from wheelmq.cli.local_tls import local_tls
    from wheelmq.formats.wire.frame import FrameError
    from wheelmq.net.errors import CallError, Refused

    if is_free(port):
        return Check(NAME, CheckStatus.OK, f"no broker runs on port {port}")
    try:
        state, status = _ask(port, local_tls(settings.tls))
    except (CallError, Refused, FrameError, msgspec.MsgspecError) as error:
        detail = f"the process on port {port} does not report its replication: {error}"
        return Check(NAME, CheckStatus.WARN, detail, "with users, set WHEELMQ_ACCESS_KEY and WHEELMQ_SECRET_KEY")
    if state.is_master:
        return master_check(state, status.ha_connection_info)
    return slave_check(state, status.ha_client_runtime_info, port, settings.replication.gap_bytes_max)


def master_check(state: ReplicationState, slaves: list[Slave]) -> Check:
    """Check that all connected slaves are in sync, and that the last one is not gone."""
    role = f"{'SYNC' if state.is_sync else 'ASYNC'}_MASTER of {state.broker_name}"
    lag = f"{state.lag_bytes:,} bytes are on no other machine" if state.lag_bytes else ""
    if not slaves and state.is_sync:
        advice = f"it acknowledges sends again once a slave follows it, or with in_sync_replicas=1 ({PAGE})"
        return Check(NAME, CheckStatus.WARN, ", ".join(filter(None, (f"{role} without a slave", lag))), advice)
    if not slaves and lag:
        advice = f"start the slave again ({PAGE})"
        return Check(NAME, CheckStatus.WARN, f"{role}, its last slave is gone: {lag}", advice)
    if not slaves:
        return Check(NAME, CheckStatus.OK, f"{role} without a slave")
    texts = [f"slave {one.addr} {_sync_text(one.in_sync, one.diff)}" for one in slaves]
    if state.lag_bytes:
        texts.append(f"{lag} since {state.lag_ms} ms")
    lacking = sum(state.lacking.values())
    if lacking:
        texts.append(f"slaves lack {counted(lacking, 'message')} with delayInSeconds")
    late = not all(one.in_sync for one in slaves)
    advice = "the network or the slave's disk is slower than the sends; the log of the slave may name a reason"
    status = CheckStatus.WARN if late else CheckStatus.OK
    return Check(NAME, status, f"{role}: {'; '.join(texts)}", advice if late else "")


def slave_check(state: ReplicationState, following: MasterConnection, port: int, gap_bytes_max: int) -> Check:
    """Check that a slave has a connection to its master, and lacks less than `gap_bytes_max`."""
    role = f"slave {state.broker_id} of {state.broker_name}"
    if not following.master_addr:
        advice = f"its log has the reason. If the master is gone, run `wheelmq promote {HOST}:{port}` ({PAGE})"
        return Check(NAME, CheckStatus.FAIL, f"{role}, without a connection to its master", advice)
    in_sync = following.behind < gap_bytes_max
    detail = f"{role} {_sync_text(in_sync, following.behind)} its master {following.master_addr}"
    if in_sync:
        return Check(NAME, CheckStatus.OK, detail)
    return Check(NAME, CheckStatus.WARN, detail, "it catches up after a long stop; wait before you promote it")


def _sync_text(in_sync: bool, behind: int) -> str:
    return f"is {'' if in_sync else 'not '}in sync, {behind:,} bytes behind"


def _ask(port: int, tls: TlsOptions | None) -> tuple[ReplicationState, HaStatus]:
    """Return the state of the broker's replication, and of its connections. Raises CallError, Refused, FrameError,
    MsgspecError."""
    from wheelmq.cli.switch import state_at
    from wheelmq.formats.wire.codes import RequestCode
    from wheelmq.formats.wire.frame import Command
    from wheelmq.net.sync_connection import SyncConnection
    from wheelmq.system.tls_client import client_tls

    with closing(SyncConnection(f"{HOST}:{port}", TIMEOUT_S, client_tls(tls), own_sign())) as link:
        state = state_at(link)
        answer = link.ask(Command(code=RequestCode.GET_BROKER_HA_STATUS))
        return state, msgspec.json.decode(answer.body, type=HaStatus)
