"""Ask a running server for the state of its timers, or whether it is one, for `wheelmq doctor`."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from wheelmq.cli.credentials import own_sign

if TYPE_CHECKING:
    from wheelmq.system.tls_client import TlsOptions

TIMEOUT_S: Final = 3.0


class BrokerState(NamedTuple):
    pending: int
    problem: str
    """The problem of the pipeline as the broker describes it; empty if there is none."""
    late_ms: int
    """How long the message with the earliest due time is overdue."""


class _Timers(msgspec.Struct):
    pending: int
    overdue_ms: int


class _Pipeline(msgspec.Struct):
    problem: str


class _Metrics(msgspec.Struct):
    timers: _Timers
    pipeline: _Pipeline


def ask_state(port: int, tls: TlsOptions | None = None) -> BrokerState | None:
    """Ask the broker on `port` of this machine. Returns None without an answer that has such a state."""
    from wheelmq.formats.wire import headers
    from wheelmq.formats.wire.codes import RequestCode
    from wheelmq.formats.wire.frame import Command, FrameError
    from wheelmq.net.errors import CallError, Refused
    from wheelmq.net.sync_connection import SyncConnection
    from wheelmq.system.tls_client import client_tls

    command = Command(code=RequestCode.WMQ_METRICS, ext=headers.write(headers.MetricsHeader()))
    with closing(SyncConnection(f"127.0.0.1:{port}", TIMEOUT_S, client_tls(tls), own_sign())) as link:
        try:
            found = msgspec.json.decode(link.ask(command).body, type=_Metrics)
        except (CallError, Refused, FrameError, msgspec.MsgspecError):
            return None
    return BrokerState(found.timers.pending, found.pipeline.problem, found.timers.overdue_ms)


def is_server(port: int, tls: TlsOptions | None = None) -> bool:
    """Return whether the process on `port` of this machine answers requests of RocketMQ's protocol, with any code."""
    from wheelmq.formats.wire.codes import RequestCode
    from wheelmq.formats.wire.frame import Command, FrameError
    from wheelmq.net.errors import CallError
    from wheelmq.net.sync_connection import SyncConnection
    from wheelmq.system.tls_client import client_tls

    with closing(SyncConnection(f"127.0.0.1:{port}", TIMEOUT_S, client_tls(tls))) as link:
        try:
            link.call(Command(code=RequestCode.WMQ_METRICS))
        except (CallError, FrameError):
            return False
    return True
