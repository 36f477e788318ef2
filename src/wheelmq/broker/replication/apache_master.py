"""Requests of a slave to a master of Apache RocketMQ: for log, log files and checkpoints (SlaveSynchronize)."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from wheelmq.broker.replication.apache_checkpoints import ApacheCheckpoint
from wheelmq.broker.replication.master_link import MasterWrong
from wheelmq.formats.units import LogPosition
from wheelmq.formats.wire import bodies
from wheelmq.formats.wire.bodies import Body
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.errors import Refused
from wheelmq.net.rpc_client import RpcClient
from wheelmq.store.commit_log import CommitLog

TIMEOUT_S: Final = 10.0
_FILE_BYTES: Final = re.compile(rb"(?m)^mappedFileSizeCommitLog=(\d+)\s*$")


class RuntimeInfo(Body):
    """The answer to GET_BROKER_RUNTIME_INFO."""

    table: dict[str, str] = {}


class LogRange(NamedTuple):
    """The part of the log that a master has."""

    start: LogPosition
    end: LogPosition


async def log_range(requests: RpcClient) -> LogRange:
    """Return the part of the log that the master has. Raises CallError, Refused, BodyError, MasterWrong."""
    table = bodies.read(await _ask(requests, RequestCode.GET_BROKER_RUNTIME_INFO), RuntimeInfo).table
    try:
        start, end = int(table["commitLogMinOffset"]), int(table["commitLogMaxOffset"])
    except (KeyError, ValueError):
        raise MasterWrong("its runtime info does not say where its log begins and ends") from None
    return LogRange(LogPosition(max(0, start)), LogPosition(max(0, end)))  # an empty log of Apache's begins at -1


def check_range(masters: LogRange, own: CommitLog) -> None:
    """Check that the log of a slave can continue with the log of its master. Raises MasterWrong.

    Apache's own slave is silent in both cases: it gets heartbeats, and counts as in sync.
    """
    if own.files.start == own.files.end:
        return
    check_start(masters.start, own)
    if own.end > masters.end:
        raise MasterWrong(
            f"its log ends at {masters.end}, before the end {own.end} of this slave's log: the master has lost "
            "messages. Promote this slave, or start it with an empty store"
        )


def check_start(masters_start: LogPosition, own: CommitLog) -> None:
    """Check that the master still has the end of a slave's log. Raises MasterWrong."""
    if own.end < masters_start:
        raise MasterWrong(
            f"its log begins at {masters_start}, and the log of this slave ends at {own.end}: the master has deleted "
            "the files between them. Start this slave with an empty store"
        )


async def check_log_files(requests: RpcClient, file_bytes: int) -> None:
    """Check that the master has log files of the same size. Raises CallError, Refused, MasterWrong."""
    raw = await _ask(requests, RequestCode.GET_BROKER_CONFIG)
    found = _FILE_BYTES.search(raw)
    if found is not None and int(found[1]) != file_bytes:
        said = int(found[1])
        raise MasterWrong(
            f"its log files have {said} bytes (mappedFileSizeCommitLog), and those of this slave {file_bytes}. Set "
            f"log_file_bytes={said}, and start this slave with an empty store"
        )


async def checkpoint_of(requests: RpcClient) -> ApacheCheckpoint:
    """Return the present checkpoints of the master. Raises CallError, Refused, BodyError, MasterWrong."""
    delay_offsets = await _ask(requests, RequestCode.GET_ALL_DELAY_OFFSET)
    try:
        timer_check = await _ask(requests, RequestCode.GET_TIMER_CHECK_POINT)
        timer_metrics = await _ask(requests, RequestCode.GET_TIMER_METRICS)
    except Refused:
        timer_check = timer_metrics = b""  # timerWheelEnable is off
    masters = await log_range(requests)  # the checkpoints hold for a log that ends here, or earlier
    return ApacheCheckpoint(timer_check, timer_metrics, delay_offsets, log_end=masters.end, log_start=masters.start)


async def _ask(requests: RpcClient, code: RequestCode) -> bytes:
    return bytes((await requests.ask(Command(code=code), TIMEOUT_S)).body)
