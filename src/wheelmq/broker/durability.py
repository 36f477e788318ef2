"""When a send is safe: its record is on the disk, and on the replicas, as far as the settings ask for that.

An answer waits for both at once. If one of them takes too long, the answer says so: the message is stored, and may be
lost with this machine. If both do, the answer names the replicas, as in Apache RocketMQ.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from wheelmq.broker.answers import Answer, Deferred
from wheelmq.broker.connection import Connection
from wheelmq.broker.flush import End, Flush
from wheelmq.broker.replication.acks import ReplicaAcks
from wheelmq.broker.replication.block_acks import BlockAcks
from wheelmq.broker.replication.block_source import BlockSource
from wheelmq.broker.replication.replicas import Replicas
from wheelmq.delay.blocks.block import Put
from wheelmq.formats.units import LogPosition
from wheelmq.formats.wire import frame
from wheelmq.formats.wire.codes import ResponseCode
from wheelmq.formats.wire.frame import Command

_OF_REPLICAS: Final = (ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE)
Outcome = ResponseCode | None
"""None if the message is safe, or the code of its answer."""


class _Wait:
    """One answer that waits for the disk, for replicas, or for both."""

    __slots__ = ("_give", "_left", "_outcome")

    def __init__(self, count: int, give: Callable[[Outcome], None]) -> None:
        self._left = count
        self._give = give
        self._outcome: Outcome = None

    def end(self, code: ResponseCode, is_safe: bool) -> None:
        """Note the end of one wait. `code` answers if it failed."""
        if not is_safe and self._outcome not in _OF_REPLICAS:
            self._outcome = code
        self._left -= 1
        if self._left == 0:
            self._give(self._outcome)


class Durability:
    """Holds the answers of sends back until the messages are safe."""

    def __init__(
        self, flush: Flush, replicas: Replicas, acks: ReplicaAcks, block_source: BlockSource, block_acks: BlockAcks
    ) -> None:
        self._flush = flush
        self._replicas = replicas
        self._acks = acks
        self._block_source = block_source
        self._block_acks = block_acks

    @property
    def is_sync(self) -> bool:
        """Whether answers of sends wait for anything."""
        return self._flush.is_sync or self._replicas.needed_acks > 0

    def answer_when_safe(self, position: LogPosition, connection: Connection, frames: bytes) -> None:
        """Send `frames`, which the kernel wrote, once the log up to `position` is safe."""

        def give(outcome: Outcome) -> None:
            connection.send(frames if outcome is None else _all_with_code(frames, outcome))

        self._wait_for_log(position, give)

    def defer(self, reply: Command, position: LogPosition, late: Command | None = None) -> Answer:
        """Return `reply` as an answer that waits until the log up to `position` is safe.

        After a failure or a timeout, `late` is given instead. Without `late`, `reply` then gets the code that says so.
        """
        answer = Deferred(reply)
        self._wait_for_log(position, partial(_give, answer, reply, late))
        return reply if answer.given is reply else answer

    def defer_for_blocks(self, reply: Command, put: Put, put_count: int) -> Answer:
        """Return `reply` as an answer that waits until a message of a block is safe.

        `put_count` is the number of messages put into blocks up to it.
        """
        if not self.is_sync:
            return reply
        answer = Deferred(reply)
        on_replicas = partial(self._block_acks.wait, put.number, put.index)
        on_disk = partial(self._flush.wait_for_blocks, put_count)
        self._wait(self._block_source, on_replicas, on_disk, partial(_give, answer, reply, None))
        return reply if answer.given is reply else answer

    def _wait_for_log(self, position: LogPosition, give: Callable[[Outcome], None]) -> None:
        on_replicas, on_disk = partial(self._acks.wait, position), partial(self._flush.wait_for_log, position)
        self._wait(self._replicas, on_replicas, on_disk, give)

    def _wait(
        self,
        source: Replicas | BlockSource,
        on_replicas: Callable[[End], None],
        on_disk: Callable[[End], None],
        give: Callable[[Outcome], None],
    ) -> None:
        """Call `give` once the settings are met. `on_replicas` and `on_disk` begin the two waits."""
        for_disk, for_replicas = self._flush.is_sync, self._replicas.needed_acks > 0
        wait = _Wait(for_disk + for_replicas, give)
        if for_replicas and source.are_available:
            on_replicas(partial(wait.end, ResponseCode.FLUSH_SLAVE_TIMEOUT))
        elif for_replicas:
            wait.end(ResponseCode.SLAVE_NOT_AVAILABLE, is_safe=False)
        if for_disk:
            on_disk(partial(wait.end, ResponseCode.FLUSH_DISK_TIMEOUT))


def _give(answer: Deferred, reply: Command, late: Command | None, outcome: Outcome) -> None:
    if outcome is None:
        answer.give(reply)
    else:
        answer.give(_with_code(reply, outcome) if late is None else late)


def _with_code(reply: Command, code: ResponseCode) -> Command:
    return msgspec.structs.replace(reply, code=int(code))


def _all_with_code(frames: bytes, code: ResponseCode) -> bytes:
    """Return the answers in `frames` with another code."""
    changed = []
    at = 0
    while (end := frame.frame_end(frames, at, len(frames))) is not None:
        changed.append(frame.encode(_with_code(frame.decode(frames, at, end), code)))
        at = end
    return b"".join(changed)
