"""Raw pulls: many connections, each with one pull at a time through its share of a backlog.

All messages have one size, so the length of an answer shows that all its messages are present.
"""

from __future__ import annotations

import re
import selectors
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bench.rawload import dial, receive

BATCH: Final = 32
RECEIVE_BYTES: Final = 1 << 20
ANSWER_S: Final = 30.0

_PREFIX: Final = struct.Struct(">ii")
_NEXT: Final = re.compile(rb'"nextBeginOffset":"(\d+)"')


class PullFailed(Exception):
    """An answer is not that of a backlog. The text begins like the answer's header."""


@dataclass(frozen=True)
class Share:
    """Messages `first` to `end` - 1 of a queue."""

    queue_id: int
    first: int
    end: int


@dataclass
class Result:
    messages: int = 0
    pulls: int = 0
    seconds: float = 0.0
    processor_seconds: float = 0.0
    """Processor seconds of this process."""


def shares(ends: Sequence[int], connections: int) -> list[Share]:
    """Split queues 0, 1, ... with messages up to `ends` into about as many parts as there are connections."""
    parts = max(1, connections // len(ends))
    return [
        Share(queue_id, end * i // parts, end * (i + 1) // parts)
        for queue_id, end in enumerate(ends)
        for i in range(parts)
    ]


def pull_all(address: str, topic: str, group: str, wanted: Sequence[Share], *, tls: bool = False) -> Result:
    """Pull all shares, with one connection per share. Raises PullFailed, TimeoutError."""
    result = Result()
    walks = [_Walk(address, topic, group, share, tls=tls) for share in wanted]
    processor_s, began_s = time.process_time(), time.monotonic()
    with selectors.DefaultSelector() as selector:
        for walk in walks:
            selector.register(walk.socket, selectors.EVENT_READ, walk)
            walk.ask()
        under_way = len(walks)
        while under_way:
            ready = selector.select(ANSWER_S)
            if not ready:
                raise TimeoutError(f"no answer in {ANSWER_S:g} s")
            for key, _ in ready:
                taken = key.data.receive()
                if not taken:
                    continue
                result.messages += taken
                result.pulls += 1
                if not key.data.ask():
                    selector.unregister(key.data.socket)
                    under_way -= 1
    result.seconds = time.monotonic() - began_s
    result.processor_seconds = time.process_time() - processor_s
    for walk in walks:
        walk.socket.close()
    return result


class _Walk:
    """A connection, and its position in its share."""

    def __init__(self, address: str, topic: str, group: str, share: Share, *, tls: bool) -> None:
        host, _, port = address.rpartition(":")
        self.socket = dial(host, int(port), tls=tls)
        self.socket.settimeout(ANSWER_S)
        self._share, self._at = share, share.first
        self._received = memoryview(bytearray(RECEIVE_BYTES))
        self._filled = 0
        where = f'"consumerGroup":"{group}","topic":"{topic}","queueId":"{share.queue_id}"'
        how = '"sysFlag":"4","commitOffset":"0","suspendTimeoutMillis":"0","subscription":"*","subVersion":"0"'
        self._fixed = f'{{"code":11,"extFields":{{{where},{how},"expressionType":"TAG"'
        self._rest = '},"flag":0,"language":"JAVA","opaque":1,"serializeTypeCurrentRPC":"JSON","version":479}'

    def ask(self) -> bool:
        """Send the next pull. Returns False at the end of the share."""
        count = min(BATCH, self._share.end - self._at)
        if count <= 0:
            return False
        header = f'{self._fixed},"queueOffset":"{self._at}","maxMsgNums":"{count}"{self._rest}'.encode()
        self.socket.sendall(_PREFIX.pack(4 + len(header), len(header)) + header)
        return True

    def receive(self) -> int:
        """Receive bytes. Returns the number of messages in the answer; 0 while it is incomplete."""
        try:
            self._filled += receive(self.socket, self._received[self._filled :])
        except ConnectionError as error:
            raise PullFailed(str(error)) from None
        if self._filled < _PREFIX.size:
            return 0
        length, word = _PREFIX.unpack_from(self._received, 0)
        if self._filled < 4 + length:
            return 0
        self._filled = 0
        body_at = _PREFIX.size + (word & 0xFF_FFFF)
        header = bytes(self._received[_PREFIX.size : body_at])
        found = _NEXT.search(header)
        if b'"code":0,' not in header or found is None:
            raise PullFailed(header[:500].decode("utf-8", "replace"))
        taken = int(found[1]) - self._at
        size = int.from_bytes(self._received[body_at : body_at + 4], "big")
        if taken <= 0 or 4 + length - body_at != taken * size:
            raise PullFailed(f"{taken} messages of {size} bytes, from {self._at} on: {header[:500]!r}")
        self._at += taken
        return taken
