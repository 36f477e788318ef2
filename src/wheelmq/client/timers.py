"""Pending delayed messages of WheelMQ's brokers: lists, counts, states by key, and bodies.

A broker of Apache RocketMQ has no such requests, and rejects them with code 3.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Final, TypeVar

import msgspec

from wheelmq.client.message import read_records, received
from wheelmq.formats.units import Millis
from wheelmq.formats.wire import headers
from wheelmq.formats.wire import timer_requests as requests
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.timer_requests import TimerQuery
from wheelmq.net.errors import CallError
from wheelmq.net.rpc_client import RpcClient

S = TypeVar("S")

_BLOCK_ORIGIN: Final = 2 << 60
"""The kind of a block in an origin (formats/disk/origin.py). The number of the block begins at bit 40."""


class PendingTimer(msgspec.Struct, frozen=True, kw_only=True):
    """A delayed message. Times are in milliseconds since 1970."""

    topic: str
    due_ms: int
    stored_ms: int
    state: str
    """`parked`, `indexed`, `level`, `block` or `armed`."""
    unique_key: str | None = None
    """With topic and `due_ms`, it cancels the message."""
    keys: str | None = None
    tags: str | None = None
    body_bytes: int
    queue_offset: int
    log_position: int
    block: int | None = None
    broker_name: str = ""
    end: str | None = None
    """None while it is pending; else `released`, `cancelled`, `rolled`, `dead letter` or `settled`."""


class _Found(msgspec.Struct):
    message: PendingTimer
    end: str | None = None


async def listed(connection: RpcClient, timeout_s: float, asked: TimerQuery) -> AsyncIterator[PendingTimer]:
    """Yield the pending messages of a broker, not in the order of their due times. Raises CallError, Refused."""
    async for answer in _answers(connection, timeout_s, partial(requests.list_request, asked)):
        for line in filter(None, bytes(answer.body).split(b"\n")):
            yield _decode(line, PendingTimer, connection)


async def found(connection: RpcClient, timeout_s: float, topic: str, key: str) -> AsyncIterator[PendingTimer]:
    """Yield the delayed messages for a topic with a unique or business key, settled ones too."""
    async for answer in _answers(connection, timeout_s, partial(requests.find_request, topic, key)):
        for line in filter(None, bytes(answer.body).split(b"\n")):
            one = _decode(line, _Found, connection)
            yield msgspec.structs.replace(one.message, end=one.end)


async def counted(connection: RpcClient, timeout_s: float, step_ms: int, asked: TimerQuery) -> Counter[int]:
    """Return the number of messages due in each interval of `step_ms`, by the beginning of the interval."""
    counts: Counter[int] = Counter()
    async for answer in _answers(connection, timeout_s, partial(requests.count_request, asked, step_ms=step_ms)):
        counts.update(_decode(bytes(answer.body), dict[int, int], connection))
    return counts


async def body_of(connection: RpcClient, timeout_s: float, timer: PendingTimer, now_ms: Millis) -> bytes:
    """Return the body of a delayed message. Raises CallError, Refused if it is gone, MessageError."""
    at = timer.log_position
    if timer.block is not None:
        at = _BLOCK_ORIGIN | timer.block << 40 | timer.queue_offset
    ext = headers.write(headers.ViewMessageHeader(offset=at))
    answer = await connection.ask(Command(code=RequestCode.VIEW_MESSAGE_BY_ID, ext=ext), timeout_s)
    [record] = read_records(answer.body)
    return received(record, timer.broker_name, now_ms).body


async def _answers(
    connection: RpcClient, timeout_s: float, request: Callable[[int], Command]
) -> AsyncIterator[Command]:
    """Yield the answers up to the last. Each request continues at the place that the previous answer named."""
    place: int | None = requests.FIRST_PLACE
    while place is not None:
        answer = await connection.ask(request(place), timeout_s)
        yield answer
        place = requests.next_place(answer)


def _decode(raw: bytes, shape: type[S], connection: RpcClient) -> S:
    try:
        return msgspec.json.decode(raw, type=shape)
    except msgspec.DecodeError as error:
        raise CallError(f"the answer of {connection.address} is unreadable: {error}") from None
